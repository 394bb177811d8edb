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

// Login checks a password and starts a session, and records auth.login.succeeded.v1 with it. A failed login is recorded
// as auth.login.failed.v1 with the counter that it raises, and as auth.user.locked.v1 if that locks the account; one that
// was not looked at as auth.login.denied.v1.
//
// All refusals that depend on the account are one Unauthenticated error (INVALID_LOGIN) and cost one password hash.
// Failures in parallel are counted one by one under the user's lock, and a right password beside them does not pass a
// lock-out that they reach first. Repeating a login starts another session.
func (s *Service) Login(ctx context.Context, email, password string) (Tokens, store.User, store.Session, error) {
	email = strings.ToLower(email)
	policy, err := store.New(s.db).LoginPolicy(ctx)
	if err != nil {
		return Tokens{}, store.User{}, store.Session{}, err
	}
	known, found, err := store.New(s.db).CredentialByEmail(ctx, email)
	if err != nil {
		return Tokens{}, store.User{}, store.Session{}, err
	}
	id := s.opaqueID(email)
	if found {
		id = known.UserID.String()
	}
	if !networkAllowed(ctx, policy) {
		s.record(ctx, loginDeniedHere(s.origin(ctx), id))
		return Tokens{}, store.User{}, store.Session{}, networkNotAllowed()
	}
	matches, stale, err := s.hasher.Matches(ctx, password, known.PasswordHash)
	if err != nil {
		return Tokens{}, store.User{}, store.Session{}, err
	}
	if !found {
		s.record(ctx, loginFailedUnknown(s.origin(ctx), id))
		return Tokens{}, store.User{}, store.Session{}, invalidLogin()
	}
	rehashed := ""
	if stale {
		if rehashed, err = s.hasher.Hash(ctx, password); err != nil {
			return Tokens{}, store.User{}, store.Session{}, err
		}
	}

	var user store.User
	var session store.Session
	var refresh string
	var refusal error
	err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		var batch pgx.Batch
		o := s.origin(ctx)
		user, err = store.New(tx).LockUser(ctx, known.UserID)
		if err != nil {
			return err
		}
		if event := s.countLogin(&batch, o, policy, user, matches && user.PasswordHash == known.PasswordHash); event != nil {
			refusal = invalidLogin()
			return outbox.AppendBatch(ctx, tx, &batch, event...)
		}
		refusal = nil
		session = store.Session{
			ID: s.newID(), Version: 1, UserID: user.ID, State: store.SessionActive,
			CreateTime: o.at, ExpireTime: o.at.Add(policy.SessionLifetime), LastSeen: &o.at,
		}
		store.InsertSession(&batch, session)
		refresh = queueRefreshToken(&batch, session, o.at)
		events := []*auditv1.AuditEvent{loginSucceeded(o.by(user, session.ID), session, user)}
		if rehashed != "" {
			before := user
			user.Version, user.UpdateTime = user.Version+1, o.at
			store.UpdateUser(&batch, user)
			store.SetPassword(&batch, user.ID, rehashed, o.at)
			events = append(events, userChanged(o.bySystem("login"), ActionPasswordRehashed, before, user))
		}
		return outbox.AppendBatch(ctx, tx, &batch, events...)
	})
	switch {
	case apperr.KindOf(err) == apperr.KindNotFound: // deleted in between
		s.record(ctx, loginFailedUnknown(s.origin(ctx), s.opaqueID(email)))
		return Tokens{}, store.User{}, store.Session{}, invalidLogin()
	case err != nil:
		return Tokens{}, store.User{}, store.Session{}, err
	}
	s.wake()
	if refusal != nil {
		return Tokens{}, store.User{}, store.Session{}, refusal
	}
	tokens, err := s.sign(user, session, refresh)
	return tokens, user, session, err
}

// countLogin queues what a login does to the counter behind lock-out. It returns the events of a login that is refused,
// and none for one that may go on.
func (s *Service) countLogin(b *pgx.Batch, o origin, policy store.LoginPolicy, u store.User, matches bool) []*auditv1.AuditEvent {
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
