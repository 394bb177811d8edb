// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// rule is a pattern in Auth's events that someone should look at.
type rule struct {
	name      string
	severity  string
	threshold int           // events that make the pattern
	window    time.Duration // within which they must occur
	events    []string      // types of Auth that can count: what the consumer subscribes to
	// concerns says whether an event counts, and about whom. The subject is an opaque id.
	concerns func(*auditv1.AuditEvent) (subject string, ok bool)
}

// The rules by name, as alerts show them.
const (
	RuleLoginFailures  = "repeated_login_failures"
	RulePolicyWeakened = "login_policy_weakened"
	RuleRoleGranted    = "privileged_role_granted"
)

func rules() []rule {
	return []rule{
		{
			name: RuleLoginFailures, severity: "MEDIUM", threshold: 5, window: 10 * time.Minute,
			events: []string{"auth.login.failed.v1", "auth.login.denied.v1"}, concerns: loginFailed,
		},
		{
			name: RulePolicyWeakened, severity: "HIGH", threshold: 1,
			events: []string{"auth.login_policy.updated.v1"}, concerns: policyWeakened,
		},
		{name: RuleRoleGranted, severity: "HIGH", threshold: 1, events: []string{"auth.role.granted.v1"}, concerns: roleGranted},
	}
}

// ruleNamed returns a rule of rules(); names in the database come from there.
func ruleNamed(name string) rule {
	all := rules()
	return all[slices.IndexFunc(all, func(r rule) bool { return r.name == name })]
}

// loginFailed counts refused log-ins by user. An attempt on an address that belongs to nobody has no opaque id to count by.
func loginFailed(e *auditv1.AuditEvent) (string, bool) {
	failed := e.GetOperation() == auditv1.Operation_OPERATION_LOGIN && e.GetOutcome() != auditv1.Outcome_OUTCOME_SUCCEEDED
	user := resourceID(e, "user")
	return user, failed && user != ""
}

// policyWeakened looks at each changed field of the login policy for the direction that lets more people in.
func policyWeakened(e *auditv1.AuditEvent) (string, bool) {
	if e.GetResource().GetType() != "login_policy" || e.GetOperation() != auditv1.Operation_OPERATION_UPDATE || !succeeded(e) {
		return "", false
	}
	weaker := map[string]func(before, after string) bool{
		"min_password_length": smaller,
		"max_failed_attempts": larger,
		"lockout_duration":    smaller,
		"session_duration":    larger,
		"allowed_networks":    wider,
	}
	for _, change := range e.GetChanges() {
		test := weaker[change.GetField()]
		if test != nil && test(change.GetOldValue().GetPlain(), change.GetNewValue().GetPlain()) {
			return e.GetResource().GetId(), true
		}
	}
	return "", false
}

// roleGranted looks for a role that lets its holder manage users, read the audit log or operate the delivery.
func roleGranted(e *auditv1.AuditEvent) (string, bool) {
	if e.GetResource().GetType() != "role_grant" || e.GetOperation() != auditv1.Operation_OPERATION_CREATE || !succeeded(e) {
		return "", false
	}
	return resourceID(e, "user"), slices.Contains(privilegedRoles(), e.GetMetadata()["role"])
}

func privilegedRoles() []string { return []string{"admin", "auditor", "operator"} }

func succeeded(e *auditv1.AuditEvent) bool {
	return e.GetOutcome() == auditv1.Outcome_OUTCOME_SUCCEEDED
}

// resourceID returns the id of the event's resource of that type, the related ones included.
func resourceID(e *auditv1.AuditEvent, kind string) string {
	for _, r := range append([]*auditv1.Resource{e.GetResource()}, e.GetRelatedResources()...) {
		if r.GetType() == kind {
			return r.GetId()
		}
	}
	return ""
}

func smaller(before, after string) bool { return larger(after, before) }

func larger(before, after string) bool {
	b, okBefore := quantity(before)
	a, okAfter := quantity(after)
	return okBefore && okAfter && a > b
}

// quantity reads a whole number, or a duration as "15m0s" or "900s".
func quantity(text string) (int64, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	d, err := time.ParseDuration(text)
	return int64(d), err == nil
}

// wider says that a network is allowed now which was not before. An empty list allows all.
func wider(before, after string) bool {
	old, now := networks(before), networks(after)
	if len(old) == 0 {
		return false
	}
	if len(now) == 0 {
		return true
	}
	return slices.ContainsFunc(now, func(n netip.Prefix) bool {
		return !slices.ContainsFunc(old, func(o netip.Prefix) bool { return o.Bits() <= n.Bits() && o.Contains(n.Addr()) })
	})
}

// networks reads prefixes that are separated by commas or spaces, with or without brackets.
func networks(text string) []netip.Prefix {
	var out []netip.Prefix
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", []\"{}", r) }) {
		if prefix, err := netip.ParsePrefix(word); err == nil {
			out = append(out, prefix.Masked())
		}
	}
	return out
}
