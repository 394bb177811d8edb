// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package idempotency

import (
	"context"
	"log/slog"
	"time"
)

const (
	defaultEvery = 10 * time.Minute
	pruneRows    = 1000
)

// Pruner deletes request ids that are older than Keep. DB and Logger are required. Any number of them may work on one
// database; if none does, the table grows and nothing else changes.
type Pruner struct {
	DB     Execer
	Logger *slog.Logger
	// Every is the time between two rounds. Default 10 min.
	Every time.Duration
}

// Run prunes at once and then each round, until ctx ends. Trouble of the database is logged and left to the next round.
func (p Pruner) Run(ctx context.Context) error {
	if p.Every == 0 {
		p.Every = defaultEvery
	}
	ticker := time.NewTicker(p.Every)
	defer ticker.Stop()
	for {
		if err := p.Once(ctx); err != nil && ctx.Err() == nil {
			p.Logger.WarnContext(ctx, "request ids are not pruned", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Once is one round: it deletes all there is to delete, in small statements.
func (p Pruner) Once(ctx context.Context) error {
	for {
		n, err := Prune(ctx, p.DB, Keep, pruneRows)
		if err != nil || n < pruneRows {
			return err
		}
	}
}
