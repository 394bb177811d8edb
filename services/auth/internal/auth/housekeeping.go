// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

const (
	housekeepingEvery = 10 * time.Minute
	housekeepingBatch = 1000
	// tokenGrace keeps expired refresh tokens a while, so that using one is still recorded with its session.
	tokenGrace = 24 * time.Hour
)

// Housekeeper deletes what is of no more use: request ids after their 24 hours, refresh tokens a day after they expired.
// Neither is audited (migrations/auth/unaudited.txt). Several may run at once.
type Housekeeper struct {
	DB     *pgxpool.Pool
	Logger *slog.Logger
	Now    func() time.Time // default time.Now
}

// Run tidies at once and then every 10 minutes until ctx ends; then it returns nil. A failed pass is logged and the next
// one does its work.
func (h Housekeeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(housekeepingEvery)
	defer ticker.Stop()
	for {
		if err := h.Once(ctx); err != nil && ctx.Err() == nil {
			h.Logger.WarnContext(ctx, "housekeeping", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Once deletes what is due, in small batches.
func (h Housekeeper) Once(ctx context.Context) error {
	now := time.Now
	if h.Now != nil {
		now = h.Now
	}
	if err := (idempotency.Pruner{DB: h.DB, Logger: h.Logger}).Once(ctx); err != nil {
		return err
	}
	for {
		n, err := store.PruneRefreshTokens(ctx, h.DB, now().Add(-tokenGrace), housekeepingBatch)
		if err != nil || n < housekeepingBatch {
			return err
		}
	}
}
