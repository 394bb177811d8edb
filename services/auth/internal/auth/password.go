// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// ResetPassword sets an account's password for its user, lifts the lock-out and revokes all sessions. It records
// auth.user.password_reset.v1 with the account's row and auth.session.revoked.v1 with each session's.
func (s *Service) ResetPassword(ctx context.Context, t Target, password string) (store.User, error) {
	var user store.User
	hash, err := s.hashNew(ctx, password)
	if err == nil {
		err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
			before, err := store.New(tx).LockUser(ctx, t.ID)
			if err != nil {
				return err
			}
			if err := requireETag(t.ETag, before.Version); err != nil {
				return err
			}
			sessions, err := store.New(tx).LockSessions(ctx, t.ID, true)
			if err != nil {
				return err
			}
			o := s.origin(ctx)
			var batch pgx.Batch
			user = renewed(before, o)
			t.Key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
			store.UpdateUser(&batch, user)
			store.SetPassword(&batch, user.ID, hash, o.at)
			store.ClearAttempts(&batch, user.ID)
			events := []*auditv1.AuditEvent{userChanged(o, ActionPasswordReset, before, user)}
			events = append(events, revokeAll(&batch, o, sessions, user, uuid.Nil, reasonPasswordReset)...)
			return outbox.AppendBatch(ctx, tx, &batch, events...)
		})
	}
	err = s.settle(ctx, TryResetPassword.on(t.ID, t.Key), err, s.rereadUser(ctx, t, &user))
	return user, err
}

// ChangePassword sets the caller's own password and revokes the caller's other sessions. It records
// auth.user.password_changed.v1 with the account's row and auth.session.revoked.v1 with each session's.
//
// A wrong current password is PermissionDenied (BAD_PASSWORD) and counts towards the lock-out as at login, and a locked
// account cannot change it (LOCKED_OUT): a stolen access token is no way to try passwords. Both cost one hash, whether the
// password was right or not, so the time that LOCKED_OUT takes tells nothing of it.
func (s *Service) ChangePassword(ctx context.Context, key idempotency.Key, current, next string) (store.User, error) {
	userID, sessionID, err := callerIDs(ctx)
	if err != nil {
		return store.User{}, err
	}
	try := TryChangePassword.on(userID, key)
	c := passwordChange{s: s, key: key, userID: userID, sessionID: sessionID}
	if err := c.compare(ctx, current); err != nil {
		return store.User{}, s.refuse(ctx, try, err)
	}
	// The new password is not worth a hash before the current one was found right under the user's lock. If the account is
	// locked meanwhile, the guess came before: it is refused all the same, and the time gives away no more than an answer.
	err = c.commit(ctx, "")
	if err == nil && !c.over {
		var hash string
		if hash, err = s.hashNew(ctx, next); err == nil {
			err = c.commit(ctx, hash)
		}
	}
	err = s.settle(ctx, try, err, s.rereadUser(ctx, Target{ID: userID}, &c.user))
	if err == nil && c.refusal != nil {
		return store.User{}, c.refusal // recorded with the counter that it raised
	}
	return c.user, err
}

// passwordChange is one ChangePassword in progress.
type passwordChange struct {
	s                 *Service
	key               idempotency.Key
	userID, sessionID uuid.UUID

	policy  store.LoginPolicy
	known   store.Credential // what the current password was compared with
	matches bool

	user    store.User
	refusal error // already recorded
	over    bool  // refused, or answered before: there is nothing to change
}

// compare looks whether a password is the current one, without a lock.
func (c *passwordChange) compare(ctx context.Context, current string) (err error) {
	if c.policy, err = store.New(c.s.db).LoginPolicy(ctx); err != nil {
		return err
	}
	if c.known, err = store.New(c.s.db).Credential(ctx, c.userID); err != nil {
		return err
	}
	c.matches, _, err = c.s.hasher.Matches(ctx, current, c.known.PasswordHash)
	return err
}

// commit judges the current password under the user's lock and records its refusal. Otherwise it sets the new one; without
// a hash it changes nothing.
func (c *passwordChange) commit(ctx context.Context, hash string) error {
	return pgdb.InTx(ctx, c.s.db, func(tx pgx.Tx) error {
		c.refusal, c.over = nil, false
		before, err := store.New(tx).LockUser(ctx, c.userID)
		if err != nil {
			return err
		}
		// Looked up here, because a repeat brings a password that is no longer the current one.
		if _, repeated, err := c.key.Recall(ctx, tx); repeated || err != nil {
			c.user, c.over = before, true
			return err
		}
		o := c.s.origin(ctx)
		var batch pgx.Batch
		if c.refusal = passwordRefusal(o, before, c.matches && before.PasswordHash == c.known.PasswordHash); c.refusal != nil {
			c.over = true
			events := []*auditv1.AuditEvent{
				refused(o, TryChangePassword, c.userID.String(), auditv1.Outcome_OUTCOME_DENIED, apperr.ReasonOf(c.refusal)),
			}
			if apperr.ReasonOf(c.refusal) == reasonBadPassword {
				events = append(events, countFailure(&batch, o, c.policy, before)...)
			}
			return outbox.AppendBatch(ctx, tx, &batch, events...)
		}
		if hash == "" {
			return nil
		}
		sessions, err := store.New(tx).LockSessions(ctx, c.userID, true)
		if err != nil {
			return err
		}
		c.user = renewed(before, o)
		c.key.Queue(&batch, idempotency.Result{Name: c.user.Name(), Version: c.user.Version})
		store.UpdateUser(&batch, c.user)
		store.SetPassword(&batch, c.userID, hash, o.at)
		store.ClearAttempts(&batch, c.userID)
		events := []*auditv1.AuditEvent{userChanged(o, ActionPasswordChanged, before, c.user)}
		events = append(events, revokeAll(&batch, o, sessions, c.user, c.sessionID, reasonPasswordChanged)...)
		return outbox.AppendBatch(ctx, tx, &batch, events...)
	})
}

// renewed is a user at the version that comes with a new password.
func renewed(u store.User, o origin) store.User {
	u.Version, u.UpdateTime, u.FailedCount, u.LockedUntil = u.Version+1, o.at, 0, nil
	return u
}

func passwordRefusal(o origin, u store.User, matches bool) error {
	switch {
	case isLocked(u, o.at):
		return apperr.PermissionDenied(reasonLockedOut, "the account is locked after too many failed attempts; try later")
	case !matches:
		return apperr.PermissionDenied(reasonBadPassword, "the current password is wrong")
	}
	return nil
}
