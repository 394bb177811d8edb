// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/services/app/internal/app"
)

// journal records what operators do to the service's outbox; it is an outboxrpc.Journal.
type journal struct {
	app *app.Service
}

// Requeued implements outboxrpc.Journal.
func (j journal) Requeued(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, reason string) error {
	call, err := callOf(ctx)
	if err != nil {
		return err
	}
	return j.app.Requeued(ctx, tx, call, ids, reason)
}

// RequeueRefused implements outboxrpc.Journal.
func (j journal) RequeueRefused(ctx context.Context, ids []uuid.UUID, err error) {
	if call, unknown := callOf(ctx); unknown == nil {
		j.app.RequeueRefused(ctx, call, ids, err)
	}
}
