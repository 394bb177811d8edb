// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

const (
	housekeepingEvery = 10 * time.Minute
	housekeepingBatch = 1000
	expireBatch       = 100 // sessions that end, and their events, in one transaction
	// tokenGrace keeps expired refresh tokens a while, so that using one is still recorded with its session.
	tokenGrace = 24 * time.Hour
)

// Housekeeper ends sessions that are past their lifetime, with an event for each, and deletes what is of no more use:
// request ids after their 24 hours, refresh tokens a day after they expired. Deleting is not audited
// (migrations/auth/unaudited.txt). Several may run at once.
type Housekeeper struct {
	Auth *Service
}

// Run tidies at once and then every 10 minutes until ctx ends; then it returns nil. A failed pass is logged and the next
// one does its work.
func (h Housekeeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(housekeepingEvery)
	defer ticker.Stop()
	for {
		if err := h.Once(ctx); err != nil && ctx.Err() == nil {
			h.Auth.log.WarnContext(ctx, "housekeeping", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Once does what is due, in small batches. What fails of it keeps nothing else from being done.
func (h Housekeeper) Once(ctx context.Context) error {
	return errors.Join(
		inBatches(expireBatch, func(limit int) (int, error) { return h.Auth.expireSessions(ctx, limit) }),
		idempotency.Pruner{DB: h.Auth.db, Logger: h.Auth.log}.Once(ctx),
		inBatches(housekeepingBatch, func(limit int) (int, error) {
			return store.PruneRefreshTokens(ctx, h.Auth.db, h.Auth.now().Add(-tokenGrace), limit)
		}),
	)
}

// inBatches repeats do until it finds less than the limit.
func inBatches(limit int, do func(limit int) (int, error)) error {
	for {
		if n, err := do(limit); err != nil || n < limit {
			return err
		}
	}
}
