// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Requeued records, in the transaction that does it, that an operator sent events on their way again: one
// app.outbox.requeued for each, so that the audit log can tell of each event who touched its delivery and why.
func (s *Service) Requeued(ctx context.Context, tx pgx.Tx, call Call, ids []uuid.UUID, reason string) error {
	now := s.now()
	events := make([]*auditv1.AuditEvent, len(ids))
	for i, id := range ids {
		events[i] = outboxRequeued(call, id, reason, now)
	}
	return outbox.Append(ctx, tx, events...)
}

// RequeueRefused records that err kept an operator from sending events on their way again: one event, which names the
// only id or, of several, none.
func (s *Service) RequeueRefused(ctx context.Context, call Call, ids []uuid.UUID, err error) {
	resource := outboxEvent(uuid.Nil)
	if len(ids) == 1 {
		resource = outboxEvent(ids[0])
	}
	_ = s.refuse(ctx, attempt{call, OutboxRefused, auditv1.Operation_OPERATION_OPERATE, resource}, err) // the same err, which the caller has
}
