// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// DisableUser keeps an account from logging in, and revokes its sessions. It records auth.user.disabled.v1 with the
// account's row and auth.session.revoked.v1 with each session's.
func (s *Service) DisableUser(ctx context.Context, t Target) (store.User, error) {
	var user store.User
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		before, err := lockButLastAdmin(ctx, tx, t)
		if err != nil {
			return err
		}
		if before.State == store.UserDisabled {
			return apperr.FailedPrecondition("USER_ALREADY_DISABLED", "the account is disabled already")
		}
		sessions, err := store.New(tx).LockSessions(ctx, t.ID, true)
		if err != nil {
			return err
		}
		o := s.origin(ctx)
		user = before
		user.Version, user.State, user.UpdateTime = before.Version+1, store.UserDisabled, o.at
		var batch pgx.Batch
		t.Key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
		store.UpdateUser(&batch, user)
		events := []*auditv1.AuditEvent{userChanged(o, ActionUserDisabled, before, user)}
		events = append(events, revokeAll(&batch, o, sessions, user, uuid.Nil, reasonUserDisabled)...)
		return outbox.AppendBatch(ctx, tx, &batch, events...)
	})
	err = s.settle(ctx, TryDisableUser.on(t.ID, t.Key), err, s.rereadUser(ctx, t, &user))
	return user, err
}

// EnableUser lets a disabled account log in again and records auth.user.enabled.v1 with it.
func (s *Service) EnableUser(ctx context.Context, t Target) (store.User, error) {
	var user store.User
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		before, err := store.New(tx).LockUser(ctx, t.ID)
		if err != nil {
			return err
		}
		if err := requireETag(t.ETag, before.Version); err != nil {
			return err
		}
		if before.State == store.UserActive {
			return apperr.FailedPrecondition("USER_ALREADY_ACTIVE", "the account is active already")
		}
		o := s.origin(ctx)
		user = before
		user.Version, user.State, user.UpdateTime = before.Version+1, store.UserActive, o.at
		var batch pgx.Batch
		t.Key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
		store.UpdateUser(&batch, user)
		return outbox.AppendBatch(ctx, tx, &batch, userChanged(o, ActionUserEnabled, before, user))
	})
	err = s.settle(ctx, TryEnableUser.on(t.ID, t.Key), err, s.rereadUser(ctx, t, &user))
	return user, err
}

// lockButLastAdmin locks an account that is about to lose its power, and refuses the last one that can manage others.
func lockButLastAdmin(ctx context.Context, tx pgx.Tx, t Target) (store.User, error) {
	q := store.New(tx)
	if err := q.LockAccounts(ctx); err != nil {
		return store.User{}, err
	}
	user, err := q.LockUser(ctx, t.ID)
	if err != nil {
		return store.User{}, err
	}
	if err := requireETag(t.ETag, user.Version); err != nil {
		return store.User{}, err
	}
	others, err := q.OtherAdmins(ctx, t.ID)
	if err != nil {
		return store.User{}, err
	}
	if others == 0 && slices.Contains(user.Roles, RoleAdmin) && user.State == store.UserActive {
		return store.User{}, lastAdmin()
	}
	return user, nil
}

func lastAdmin() error {
	return apperr.FailedPrecondition("LAST_ADMIN", "this is the last active admin: make another one first")
}
