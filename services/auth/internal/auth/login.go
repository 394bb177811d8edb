// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// Tokens is what a session's owner acts with.
type Tokens struct {
	Access        string
	AccessExpire  time.Time
	Refresh       string
	RefreshExpire time.Time
}

// LoggedIn is what a login gives.
type LoggedIn struct {
	Tokens  Tokens
	User    store.User
	Session store.Session
}

// Login checks a password and starts a session, and records auth.login.succeeded.v1 with it. A failed login is recorded
// as auth.login.failed.v1 with the counter that it raises, and as auth.user.locked.v1 if that locks the account; one that
// was not looked at as auth.login.denied.v1.
//
// All refusals that depend on the account are one Unauthenticated error (INVALID_LOGIN) and cost one password hash.
// Failures in parallel are counted one by one under the user's lock, and a right password beside them does not pass a
// lock-out that they reach first. Repeating a login starts another session.
func (s *Service) Login(ctx context.Context, email, password string) (LoggedIn, error) {
	checked, err := s.checkLogin(ctx, strings.ToLower(email), password)
	if err != nil {
		return LoggedIn{}, err
	}
	var in LoggedIn
	var refresh string
	var refusal error
	err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		user, err := store.New(tx).LockUser(ctx, checked.known.UserID)
		if err != nil {
			return err
		}
		var batch pgx.Batch
		o := s.origin(ctx)
		matches := checked.matches && user.PasswordHash == checked.known.PasswordHash
		if events := countLogin(&batch, o, checked.policy, user, matches); events != nil {
			refusal = invalidLogin()
			return outbox.AppendBatch(ctx, tx, &batch, events...)
		}
		refusal = nil
		session := store.Session{
			ID: s.newID(), Version: 1, UserID: user.ID, State: store.SessionActive,
			CreateTime: o.at, ExpireTime: o.at.Add(checked.policy.SessionLifetime), LastSeen: &o.at,
		}
		store.InsertSession(&batch, session)
		refresh = queueRefreshToken(&batch, session, o.at)
		events := []*auditv1.AuditEvent{loginSucceeded(o.by(user, session.ID), session, user)}
		if checked.rehashed != "" {
			before := user
			user.Version, user.UpdateTime = user.Version+1, o.at
			store.UpdateUser(&batch, user)
			store.SetPassword(&batch, user.ID, checked.rehashed, o.at)
			events = append(events, userChanged(o.bySystem("login"), ActionPasswordRehashed, before, user))
		}
		in.User, in.Session = user, session
		return outbox.AppendBatch(ctx, tx, &batch, events...)
	})
	switch {
	case apperr.KindOf(err) == apperr.KindNotFound: // deleted in between
		s.record(ctx, loginFailedUnknown(s.origin(ctx), s.opaqueID(strings.ToLower(email))))
		return LoggedIn{}, invalidLogin()
	case err != nil:
		return LoggedIn{}, err
	}
	s.wake()
	if refusal != nil {
		return LoggedIn{}, refusal
	}
	in.Tokens, err = s.sign(in.User, in.Session, refresh)
	return in, err
}

// checkedLogin is what was found out about a login before anything is locked.
type checkedLogin struct {
	policy   store.LoginPolicy
	known    store.Credential
	matches  bool
	rehashed string // the password at today's cost, if it was stored at another
}

// checkLogin does what is slow or needs no lock. It refuses, and records, a login from a network that is not allowed and one
// to no account, the latter after the same work as any other.
func (s *Service) checkLogin(ctx context.Context, email, password string) (c checkedLogin, err error) {
	q := store.New(s.db)
	if c.policy, err = q.LoginPolicy(ctx); err != nil {
		return c, err
	}
	var found bool
	if c.known, found, err = q.CredentialByEmail(ctx, email); err != nil {
		return c, err
	}
	id := s.opaqueID(email)
	if found {
		id = c.known.UserID.String()
	}
	if !networkAllowed(ctx, c.policy) {
		s.recordCheap(ctx, loginDeniedHere(s.origin(ctx), id))
		return c, networkNotAllowed()
	}
	var stale bool
	if c.matches, stale, err = s.hasher.Matches(ctx, password, c.known.PasswordHash); err != nil {
		if apperr.KindOf(err) == apperr.KindResourceExhausted {
			s.recordCheap(ctx, loginUnchecked(s.origin(ctx), id, apperr.ReasonOf(err)))
		}
		return c, err
	}
	if !found {
		s.record(ctx, loginFailedUnknown(s.origin(ctx), id))
		return c, invalidLogin()
	}
	if stale {
		c.rehashed, err = s.hasher.Hash(ctx, password)
	}
	return c, err
}

// countLogin queues what a login does to the counter behind lock-out. It returns the events of a login that is refused,
// and none for one that may go on.
func countLogin(b *pgx.Batch, o origin, policy store.LoginPolicy, u store.User, matches bool) []*auditv1.AuditEvent {
	switch {
	case isLocked(u, o.at):
		return []*auditv1.AuditEvent{loginDenied(o, u, reasonLockedOut)}
	case !matches:
		return append([]*auditv1.AuditEvent{loginFailed(o, u)}, countFailure(b, o, policy, u)...)
	case u.State != store.UserActive:
		return []*auditv1.AuditEvent{loginDenied(o, u, reasonUserDisabled)}
	}
	if u.FailedCount > 0 || u.LockedUntil != nil {
		store.ClearAttempts(b, u.ID)
	}
	return nil
}

// countFailure queues one more failed attempt and returns the event of the lock-out, if it is the one too many. A
// lock-out starts the count anew.
func countFailure(b *pgx.Batch, o origin, policy store.LoginPolicy, u store.User) []*auditv1.AuditEvent {
	if u.FailedCount+1 < policy.MaxFailedAttempts {
		store.SetAttempts(b, u.ID, u.FailedCount+1, nil, o.at)
		return nil
	}
	until := o.at.Add(policy.Lockout)
	store.SetAttempts(b, u.ID, 0, &until, o.at)
	return []*auditv1.AuditEvent{userLocked(o.bySystem("login"), u, until)}
}

func isLocked(u store.User, at time.Time) bool {
	return u.LockedUntil != nil && u.LockedUntil.After(at)
}

// queueRefreshToken queues a session's next refresh token and returns it.
func queueRefreshToken(b *pgx.Batch, session store.Session, at time.Time) string {
	token, hash := newRefreshToken()
	store.InsertRefreshToken(b, store.RefreshToken{Hash: hash, SessionID: session.ID, CreateTime: at, ExpireTime: session.ExpireTime})
	return token
}

// sign adds an access token to a refresh token that is committed. If it fails, the caller has to log in again.
func (s *Service) sign(u store.User, session store.Session, refresh string) (Tokens, error) {
	access, expire, err := s.signer.Sign(authn.Principal{
		UserID: u.ID.String(), SessionID: session.ID.String(), DisplayName: u.DisplayName, Roles: u.Roles,
	})
	if err != nil {
		return Tokens{}, fmt.Errorf("sign access token: %w", err)
	}
	return Tokens{Access: access, AccessExpire: expire, Refresh: refresh, RefreshExpire: session.ExpireTime}, nil
}

func invalidLogin() error {
	return apperr.Unauthenticated("INVALID_LOGIN", "the address or the password is wrong, or the account is locked or disabled")
}
