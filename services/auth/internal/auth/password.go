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
// account cannot change it (LOCKED_OUT): a stolen access token is no way to try passwords.
func (s *Service) ChangePassword(ctx context.Context, key idempotency.Key, current, next string) (store.User, error) {
	userID, sessionID, err := callerIDs(ctx)
	if err != nil {
		return store.User{}, err
	}
	known, policy, err := s.ownCredential(ctx, userID)
	if err != nil {
		return store.User{}, err
	}
	matches, _, err := s.hasher.Matches(ctx, current, known.PasswordHash)
	if err != nil {
		return store.User{}, err
	}
	hash, weak := s.hashNew(ctx, next)

	var user store.User
	var refusal error
	err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		refusal = nil
		before, err := store.New(tx).LockUser(ctx, userID)
		if err != nil {
			return err
		}
		// Looked up here, because a repeat brings a password that is no longer the current one.
		if _, repeated, err := key.Recall(ctx, tx); repeated || err != nil {
			user = before
			return err
		}
		o := s.origin(ctx)
		var batch pgx.Batch
		if refusal = passwordRefusal(o, before, matches && before.PasswordHash == known.PasswordHash); refusal != nil {
			events := []*auditv1.AuditEvent{
				refused(o, TryChangePassword, userID.String(), auditv1.Outcome_OUTCOME_DENIED, apperr.ReasonOf(refusal)),
			}
			if apperr.ReasonOf(refusal) == reasonBadPassword {
				events = append(events, countFailure(&batch, o, policy, before)...)
			}
			return outbox.AppendBatch(ctx, tx, &batch, events...)
		}
		if weak != nil {
			return weak
		}
		sessions, err := store.New(tx).LockSessions(ctx, userID, true)
		if err != nil {
			return err
		}
		user = renewed(before, o)
		key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
		store.UpdateUser(&batch, user)
		store.SetPassword(&batch, user.ID, hash, o.at)
		store.ClearAttempts(&batch, user.ID)
		events := []*auditv1.AuditEvent{userChanged(o, ActionPasswordChanged, before, user)}
		events = append(events, revokeAll(&batch, o, sessions, user, sessionID, reasonPasswordChanged)...)
		return outbox.AppendBatch(ctx, tx, &batch, events...)
	})
	err = s.settle(ctx, TryChangePassword.on(userID, key), err, s.rereadUser(ctx, Target{ID: userID}, &user))
	if err == nil && refusal != nil {
		return store.User{}, refusal // recorded with the counter that it raised
	}
	return user, err
}

// ownCredential returns what a caller's current password is compared with, and the policy.
func (s *Service) ownCredential(ctx context.Context, user uuid.UUID) (store.Credential, store.LoginPolicy, error) {
	policy, err := store.New(s.db).LoginPolicy(ctx)
	if err != nil {
		return store.Credential{}, store.LoginPolicy{}, err
	}
	known, err := store.New(s.db).Credential(ctx, user)
	return known, policy, err
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
