// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Requeued records, in the transaction that does it, that an operator sent events on their way again: one
// auth.outbox.requeued.v1 for each. It implements outboxrpc.Journal.
func (s *Service) Requeued(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, reason string) error {
	o := s.origin(ctx)
	events := make([]*auditv1.AuditEvent, len(ids))
	for i, id := range ids {
		events[i] = requeued(o, id, reason)
	}
	return outbox.Append(ctx, tx, events...)
}

// RequeueRefused records that err kept an operator from it: one event, which names the only id or, of several, none. It
// implements outboxrpc.Journal.
func (s *Service) RequeueRefused(ctx context.Context, ids []uuid.UUID, err error) {
	try := attempt{Attempt: TryRequeue}
	if len(ids) == 1 {
		try.resource = ids[0].String()
	}
	_ = s.refuse(ctx, try, err) // the same err, which the caller has
}
