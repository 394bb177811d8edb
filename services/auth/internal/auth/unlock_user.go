// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// UnlockUser lifts an account's lock-out and forgets its failed attempts, and records auth.user.unlocked.v1 with that. It
// records nothing for an account without failed attempts. The account's row does not change: the counters are beside it.
func (s *Service) UnlockUser(ctx context.Context, t Target) (store.User, error) {
	var user store.User
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		before, err := store.New(tx).LockUser(ctx, t.ID)
		if err != nil {
			return err
		}
		user = before
		user.FailedCount, user.LockedUntil = 0, nil
		if before.FailedCount == 0 && before.LockedUntil == nil {
			return t.Key.Insert(ctx, tx, idempotency.Result{Name: user.Name(), Version: user.Version})
		}
		var batch pgx.Batch
		t.Key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
		store.ClearAttempts(&batch, user.ID)
		return outbox.AppendBatch(ctx, tx, &batch, userUnlocked(s.origin(ctx), before))
	})
	err = s.settle(ctx, TryUnlockUser.on(t.ID, t.Key), err, s.rereadUser(ctx, t, &user))
	return user, err
}
