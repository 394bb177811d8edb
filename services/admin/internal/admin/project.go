// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// AuditLogConsumer is the consumer that writes the audit log. It takes every event of every owner.
const AuditLogConsumer = "audit-log"

// copyRows is how many rows make a COPY worth its extra round trips.
const copyRows = 32

// Project records a batch in the audit log, byte for byte. It is the handler of AuditLogConsumer: an event that is
// recorded already is left as it is, so running it again changes nothing (U40).
func Project(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
	rows := make([]store.AuditLog, len(batch))
	for i, e := range batch {
		rows[i] = logRow(e.ID, e.Audit, e.Payload)
		rows[i].LedgerID, rows[i].LedgerSeq = e.LedgerID, e.LedgerSeq
	}
	if len(rows) >= copyRows {
		if all, err := store.CopyAuditLogs(ctx, tx, rows); all || err != nil {
			return err
		}
	}
	db := store.New(tx)
	inserted, err := db.InsertAuditLogs(ctx, rows)
	if err != nil || inserted == int64(len(rows)) {
		return err
	}
	// Some are recorded already. Takeover refuses other bytes under a known id, so none should be found here.
	other, err := db.OtherBytes(ctx, rows)
	if err != nil {
		return err
	}
	if len(other) > 0 {
		return inbox.Permanent("audit_log.other_bytes", fmt.Errorf("%d events are recorded with other bytes, first %s", len(other), other[0]))
	}
	return nil
}

// logRow puts into columns what is searched for. Nothing personal is among it: that stays in the payload.
func logRow(id uuid.UUID, e *auditv1.AuditEvent, payload []byte) store.AuditLog {
	return store.AuditLog{
		EventID:         id,
		OccurTime:       e.GetOccurTime().AsTime(),
		ResourceVersion: e.GetResource().GetVersion(),
		SchemaVersion:   e.GetSchemaVersion(),
		Owner:           e.GetOwner(),
		EventType:       e.GetEventType(),
		Action:          e.GetAction(),
		Operation:       strings.TrimPrefix(e.GetOperation().String(), "OPERATION_"),
		Outcome:         strings.TrimPrefix(e.GetOutcome().String(), "OUTCOME_"),
		Reason:          e.GetReason(),
		ActorType:       e.GetActor().GetType(),
		ActorID:         e.GetActor().GetId(),
		ResourceType:    e.GetResource().GetType(),
		ResourceID:      e.GetResource().GetId(),
		CorrelationID:   e.GetContext().GetCorrelationId(),
		TraceID:         e.GetContext().GetTraceId(),
		Payload:         payload,
	}
}
