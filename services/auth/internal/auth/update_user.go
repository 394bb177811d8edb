// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// UserChange names the fields of an account to change; nil leaves a field as it is.
type UserChange struct {
	Email       *string
	DisplayName *string
}

// UpdateUser changes an account and records auth.user.updated.v1 with it. A change that leaves every field as it is
// makes no new version and records nothing.
func (s *Service) UpdateUser(ctx context.Context, t Target, c UserChange) (store.User, error) {
	var user store.User
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		before, err := store.New(tx).LockUser(ctx, t.ID)
		if err != nil {
			return err
		}
		if err := requireETag(t.ETag, before.Version); err != nil {
			return err
		}
		user = c.apply(before)
		if user.Email == before.Email && user.DisplayName == before.DisplayName {
			return t.Key.Insert(ctx, tx, idempotency.Result{Name: user.Name(), Version: user.Version})
		}
		o := s.origin(ctx)
		user.Version, user.UpdateTime = before.Version+1, o.at
		var batch pgx.Batch
		t.Key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
		store.UpdateUser(&batch, user)
		return outbox.AppendBatch(ctx, tx, &batch, userChanged(o, ActionUserUpdated, before, user))
	})
	err = s.settle(ctx, TryUpdateUser.on(t.ID, t.Key), err, s.rereadUser(ctx, t, &user))
	return user, err
}

func (c UserChange) apply(u store.User) store.User {
	if c.Email != nil {
		u.Email = strings.ToLower(*c.Email)
	}
	if c.DisplayName != nil {
		u.DisplayName = *c.DisplayName
	}
	return u
}

// rereadUser answers a repeated call with the account as it is now.
func (s *Service) rereadUser(ctx context.Context, t Target, user *store.User) func(idempotency.Result) error {
	return func(idempotency.Result) (err error) {
		*user, err = store.New(s.db).User(ctx, t.ID)
		return err
	}
}
