// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/pkg/audit"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// Owner is the name under which Auth's events are recorded.
const Owner = "auth"

// The actions that succeeded; an event's type is its action and ".v1". Those with a version in their resource belong to
// a row and come with each change of it; the others are about no row.
const (
	ActionUserCreated        = "auth.user.created"
	ActionUserUpdated        = "auth.user.updated"
	ActionUserDisabled       = "auth.user.disabled"
	ActionUserEnabled        = "auth.user.enabled"
	ActionUserDeleted        = "auth.user.deleted"
	ActionPasswordChanged    = "auth.user.password_changed"  // by the user
	ActionPasswordReset      = "auth.user.password_reset"    // by an admin
	ActionPasswordRehashed   = "auth.user.password_rehashed" // same password, today's cost
	ActionUserLocked         = "auth.user.locked"            // no version
	ActionUserUnlocked       = "auth.user.unlocked"          // no version
	ActionRoleGranted        = "auth.role.granted"
	ActionRoleRevoked        = "auth.role.revoked"
	ActionLoginSucceeded     = "auth.login.succeeded"   // makes the session
	ActionSessionRefreshed   = "auth.session.refreshed" // no version
	ActionSessionEnded       = "auth.session.ended"
	ActionSessionRevoked     = "auth.session.revoked"
	ActionSessionDeleted     = "auth.session.deleted" // with its user
	ActionLoginPolicyCreated = "auth.login_policy.created"
	ActionLoginPolicyUpdated = "auth.login_policy.updated"
	ActionOutboxRequeued     = "auth.outbox.requeued" // no version
	actionLoginFailed        = "auth.login.failed"    // wrong password or unknown address
	actionLoginDenied        = "auth.login.denied"    // locked, disabled, or from a network that is not allowed
)

// Attempt is an operation that was refused (outcome DENIED) or failed (FAILED). Its events carry a reason code, the
// target's id where the call names one, and no version.
type Attempt struct {
	Action    string
	operation auditv1.Operation
	resource  string // type
}

// The attempts.
var (
	TryLogin             = Attempt{actionLoginDenied, auditv1.Operation_OPERATION_LOGIN, "user"}
	TryRefresh           = Attempt{"auth.session.refresh_refused", auditv1.Operation_OPERATION_UPDATE, "session"}
	TryLogout            = Attempt{"auth.session.logout_refused", auditv1.Operation_OPERATION_LOGOUT, "session"}
	TryChangePassword    = Attempt{"auth.user.password_change_refused", auditv1.Operation_OPERATION_UPDATE, "user"}
	TryCreateUser        = Attempt{"auth.user.create_refused", auditv1.Operation_OPERATION_CREATE, "user"}
	TryUpdateUser        = Attempt{"auth.user.update_refused", auditv1.Operation_OPERATION_UPDATE, "user"}
	TryDisableUser       = Attempt{"auth.user.disable_refused", auditv1.Operation_OPERATION_UPDATE, "user"}
	TryEnableUser        = Attempt{"auth.user.enable_refused", auditv1.Operation_OPERATION_UPDATE, "user"}
	TryDeleteUser        = Attempt{"auth.user.delete_refused", auditv1.Operation_OPERATION_DELETE, "user"}
	TryResetPassword     = Attempt{"auth.user.password_reset_refused", auditv1.Operation_OPERATION_UPDATE, "user"}
	TryUnlockUser        = Attempt{"auth.user.unlock_refused", auditv1.Operation_OPERATION_UPDATE, "user"}
	TryGrantRole         = Attempt{"auth.role.grant_refused", auditv1.Operation_OPERATION_CREATE, "user"}
	TryRevokeRole        = Attempt{"auth.role.revoke_refused", auditv1.Operation_OPERATION_DELETE, "user"}
	TryRevokeSession     = Attempt{"auth.session.revoke_refused", auditv1.Operation_OPERATION_UPDATE, "session"}
	TryRevokeSessions    = Attempt{"auth.session.revoke_all_refused", auditv1.Operation_OPERATION_UPDATE, "user"}
	TryUpdateLoginPolicy = Attempt{"auth.login_policy.update_refused", auditv1.Operation_OPERATION_UPDATE, "login_policy"}
	TryBootstrap         = Attempt{"auth.bootstrap_refused", auditv1.Operation_OPERATION_CREATE, "user"}
	TryRequeue           = Attempt{"auth.outbox.requeue_refused", auditv1.Operation_OPERATION_OPERATE, "outbox_event"}
)

// Why a session ended or a login was refused, beside the reasons of errors.
const (
	reasonBadPassword     = "BAD_PASSWORD"
	reasonUnknownUser     = "UNKNOWN_USER"
	reasonLockedOut       = "LOCKED_OUT"
	reasonUserDisabled    = "USER_DISABLED"
	reasonUserDeleted     = "USER_DELETED"
	reasonLogout          = "LOGOUT"
	reasonExpired         = "EXPIRED"
	reasonRevoked         = "REVOKED"
	reasonPasswordChanged = "PASSWORD_CHANGED"
	reasonPasswordReset   = "PASSWORD_RESET"
	reasonTokenReused     = "REFRESH_TOKEN_REUSED"
	reasonNetwork         = "NETWORK_NOT_ALLOWED"
	reasonTooManyFailures = "TOO_MANY_FAILED_ATTEMPTS"
)

// origin is what all events of one transaction share: when, who, and from where.
type origin struct {
	at      time.Time
	newID   func() uuid.UUID
	method  string // of the call, without its package
	actor   *auditv1.Actor
	context *auditv1.RequestContext
}

// origin reads who calls, and from where, from ctx. Without a principal the actor is anonymous.
func (s *Service) origin(ctx context.Context) origin {
	info := grpcserver.RequestInfo(ctx)
	o := origin{
		at: s.now(), newID: s.newID, method: info.Method[strings.LastIndexByte(info.Method, '/')+1:], actor: &auditv1.Actor{Type: "anonymous"},
		context: &auditv1.RequestContext{
			CorrelationId: info.CorrelationID, TraceId: info.TraceID, ClientAddress: audit.Plain(info.ClientAddress),
			ClientAddressClaimed: info.ClientAddressClaimed, UserAgent: info.UserAgent,
		},
	}
	if p, ok := authn.PrincipalFrom(ctx); ok {
		o.actor = &auditv1.Actor{Type: "user", Id: p.UserID, DisplayName: audit.Plain(p.DisplayName), SessionId: p.SessionID}
	}
	return o
}

// by is o with a user as the actor: one who has just proved to be it, in a session.
func (o origin) by(u store.User, session uuid.UUID) origin {
	o.actor = &auditv1.Actor{Type: "user", Id: u.ID.String(), DisplayName: audit.Plain(u.DisplayName), SessionId: session.String()}
	return o
}

// bySystem is o with the service itself as the actor, under the name of what it was doing.
func (o origin) bySystem(id string) origin {
	o.actor = &auditv1.Actor{Type: "system", Id: id}
	return o
}

func (o origin) event(action string, operation auditv1.Operation, resource *auditv1.Resource, changes ...*auditv1.Change) *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId: o.newID().String(), EventType: action + ".v1", SchemaVersion: 1, Owner: Owner, Action: action, Operation: operation,
		Actor: o.actor, Resource: resource, Outcome: auditv1.Outcome_OUTCOME_SUCCEEDED, OccurTime: timestamppb.New(o.at),
		Changes: changes, Context: o.context,
	}
}

func with(e *auditv1.AuditEvent, outcome auditv1.Outcome, reason string) *auditv1.AuditEvent {
	e.Outcome, e.Reason = outcome, reason
	return e
}

func refused(o origin, tried Attempt, id string, outcome auditv1.Outcome, reason string) *auditv1.AuditEvent {
	e := with(o.event(tried.Action, tried.operation, &auditv1.Resource{Type: tried.resource, Id: id}), outcome, reason)
	e.Metadata = map[string]string{"method": o.method}
	return e
}

// Users

func userResource(u store.User) *auditv1.Resource {
	return &auditv1.Resource{Type: "user", Id: u.ID.String(), DisplayName: audit.Plain(u.DisplayName), Version: u.Version}
}

// aboutUser is a user in an event that changes no row of it.
func aboutUser(u store.User) *auditv1.Resource {
	r := userResource(u)
	r.Version = 0
	return r
}

func userCreated(o origin, u store.User) *auditv1.AuditEvent {
	return o.event(ActionUserCreated, auditv1.Operation_OPERATION_CREATE, userResource(u), userChanges(store.User{}, u)...)
}

// userChanged is one of the actions on a user's row that is no creation or deletion.
func userChanged(o origin, action string, before, after store.User) *auditv1.AuditEvent {
	return o.event(action, auditv1.Operation_OPERATION_UPDATE, userResource(after), userChanges(before, after)...)
}

func userDeleted(o origin, u store.User) *auditv1.AuditEvent {
	return o.event(ActionUserDeleted, auditv1.Operation_OPERATION_DELETE, userResource(u), userChanges(u, store.User{})...)
}

func userLocked(o origin, u store.User, until time.Time) *auditv1.AuditEvent {
	e := o.event(ActionUserLocked, auditv1.Operation_OPERATION_UPDATE, aboutUser(u), changed("lock_expire_time", "", formatTime(until))...)
	return with(e, auditv1.Outcome_OUTCOME_SUCCEEDED, reasonTooManyFailures)
}

func userUnlocked(o origin, u store.User) *auditv1.AuditEvent {
	var until string
	if u.LockedUntil != nil {
		until = formatTime(*u.LockedUntil)
	}
	return o.event(ActionUserUnlocked, auditv1.Operation_OPERATION_UPDATE, aboutUser(u), changed("lock_expire_time", until, "")...)
}

// userChanges shows a user's email, display_name and state, and nothing else: a password never, not even as a hash.
func userChanges(before, after store.User) []*auditv1.Change {
	return concat(
		changed("email", before.Email, after.Email),
		changed("display_name", before.DisplayName, after.DisplayName),
		changed("state", before.State, after.State),
	)
}

// Roles

func roleGranted(o origin, g store.RoleGrant, u store.User) *auditv1.AuditEvent {
	return grantEvent(o, ActionRoleGranted, auditv1.Operation_OPERATION_CREATE, g, u, changed("role", "", g.Role))
}

func roleRevoked(o origin, g store.RoleGrant, u store.User) *auditv1.AuditEvent {
	return grantEvent(o, ActionRoleRevoked, auditv1.Operation_OPERATION_DELETE, g, u, changed("role", g.Role, ""))
}

// grantEvent names the role in its metadata too, where rules can read it without opening personal values.
func grantEvent(o origin, action string, op auditv1.Operation, g store.RoleGrant, u store.User, changes []*auditv1.Change) *auditv1.AuditEvent {
	e := o.event(action, op, &auditv1.Resource{Type: "role_grant", Id: g.ID.String(), Version: g.Version}, changes...)
	e.RelatedResources = []*auditv1.Resource{aboutUser(u)}
	e.Metadata = map[string]string{"role": g.Role}
	return e
}

// Logins and sessions

func sessionEvent(o origin, action string, op auditv1.Operation, s store.Session, u store.User, changes ...*auditv1.Change) *auditv1.AuditEvent {
	e := o.event(action, op, &auditv1.Resource{Type: "session", Id: s.ID.String(), Version: s.Version}, changes...)
	e.RelatedResources = []*auditv1.Resource{aboutUser(u)}
	return e
}

func loginSucceeded(o origin, s store.Session, u store.User) *auditv1.AuditEvent {
	return sessionEvent(o, ActionLoginSucceeded, auditv1.Operation_OPERATION_LOGIN, s, u, concat(
		changed("state", "", s.State), changed("expire_time", "", formatTime(s.ExpireTime)))...)
}

func loginFailed(o origin, u store.User) *auditv1.AuditEvent {
	return with(o.event(actionLoginFailed, auditv1.Operation_OPERATION_LOGIN, aboutUser(u)), auditv1.Outcome_OUTCOME_FAILED, reasonBadPassword)
}

func loginFailedUnknown(o origin, opaqueID string) *auditv1.AuditEvent {
	e := o.event(actionLoginFailed, auditv1.Operation_OPERATION_LOGIN, &auditv1.Resource{Type: "user", Id: opaqueID})
	return with(e, auditv1.Outcome_OUTCOME_FAILED, reasonUnknownUser)
}

// loginDeniedHere is a login from a network that is not allowed: nobody has looked at the account yet.
func loginDeniedHere(o origin, id string) *auditv1.AuditEvent {
	e := o.event(actionLoginDenied, auditv1.Operation_OPERATION_LOGIN, &auditv1.Resource{Type: "user", Id: id})
	return with(e, auditv1.Outcome_OUTCOME_DENIED, reasonNetwork)
}

// loginUnchecked is a login that failed before its password was looked at.
func loginUnchecked(o origin, id, reason string) *auditv1.AuditEvent {
	e := o.event(actionLoginFailed, auditv1.Operation_OPERATION_LOGIN, &auditv1.Resource{Type: "user", Id: id})
	return with(e, auditv1.Outcome_OUTCOME_FAILED, reason)
}

func loginDenied(o origin, u store.User, reason string) *auditv1.AuditEvent {
	return with(o.event(actionLoginDenied, auditv1.Operation_OPERATION_LOGIN, aboutUser(u)), auditv1.Outcome_OUTCOME_DENIED, reason)
}

func refreshRefused(o origin, s store.Session, u store.User, reason string) *auditv1.AuditEvent {
	s.Version = 0
	return with(sessionEvent(o, TryRefresh.Action, TryRefresh.operation, s, u), auditv1.Outcome_OUTCOME_DENIED, reason)
}

func sessionRefreshed(o origin, s store.Session, u store.User) *auditv1.AuditEvent {
	s.Version = 0 // new tokens, same row
	return sessionEvent(o, ActionSessionRefreshed, auditv1.Operation_OPERATION_UPDATE, s, u)
}

// sessionOver is the end of a session: by its user or its lifetime (ended), by anybody or anything else (revoked), or with
// its user (deleted). The reason says which.
func sessionOver(o origin, action string, op auditv1.Operation, before, after store.Session, u store.User, reason string) *auditv1.AuditEvent {
	e := sessionEvent(o, action, op, after, u, changed("state", before.State, after.State)...)
	return with(e, auditv1.Outcome_OUTCOME_SUCCEEDED, reason)
}

// The login policy

func policyCreated(o origin, p store.LoginPolicy) *auditv1.AuditEvent {
	return o.event(ActionLoginPolicyCreated, auditv1.Operation_OPERATION_CREATE, policyResource(p), policyChanges(store.LoginPolicy{}, p)...)
}

func policyUpdated(o origin, before, after store.LoginPolicy) *auditv1.AuditEvent {
	return o.event(ActionLoginPolicyUpdated, auditv1.Operation_OPERATION_UPDATE, policyResource(after), policyChanges(before, after)...)
}

func policyResource(p store.LoginPolicy) *auditv1.Resource {
	return &auditv1.Resource{Type: "login_policy", Id: p.ID.String(), Version: p.Version}
}

// policyChanges shows every field of the policy: none is secret.
func policyChanges(before, after store.LoginPolicy) []*auditv1.Change {
	return concat(
		changed("min_password_length", formatInt(before.MinPasswordLength), formatInt(after.MinPasswordLength)),
		changed("max_failed_attempts", formatInt(before.MaxFailedAttempts), formatInt(after.MaxFailedAttempts)),
		changed("lockout_duration", formatDuration(before.Lockout), formatDuration(after.Lockout)),
		changed("session_duration", formatDuration(before.SessionLifetime), formatDuration(after.SessionLifetime)),
		changed("allowed_networks", formatNetworks(before.AllowedNetworks), formatNetworks(after.AllowedNetworks)),
	)
}

// Operations on the outbox

// requeued is one event that an operator sent on its way again, and why.
func requeued(o origin, id uuid.UUID, reason string) *auditv1.AuditEvent {
	e := o.event(ActionOutboxRequeued, auditv1.Operation_OPERATION_OPERATE, &auditv1.Resource{Type: "outbox_event", Id: id.String()})
	e.Metadata = map[string]string{"reason": reason}
	return e
}

// Values

// changed is one field's change, or nothing if it did not change. Empty text stands for no value.
func changed(field, before, after string) []*auditv1.Change {
	if before == after {
		return nil
	}
	return []*auditv1.Change{{Field: field, OldValue: audit.Plain(before), NewValue: audit.Plain(after)}}
}

func concat(parts ...[]*auditv1.Change) []*auditv1.Change {
	var all []*auditv1.Change
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// formatInt and formatDuration leave zero, which no policy has, empty.
func formatInt(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func formatDuration(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf("%ds", int64(d/time.Second)) // as protobuf's JSON does
}

func formatNetworks(networks []netip.Prefix) string {
	parts := make([]string, len(networks))
	for i, n := range networks {
		parts[i] = n.String()
	}
	return strings.Join(parts, ", ")
}
