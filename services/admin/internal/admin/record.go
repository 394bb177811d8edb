// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// recordTimeout bounds the recording of a refusal or a listing, which has no transaction of its own to share.
const recordTimeout = 5 * time.Second

// record writes Admin's own events into the audit log, in the transaction of what they tell of. Where everything is in
// one database there is nothing to deliver, so no outbox is needed (U85); the number is taken here instead of by a
// sealer. The row of the ledger is locked until the transaction ends: record comes last in it.
func record(ctx context.Context, tx pgx.Tx, own ...*auditv1.AuditEvent) error {
	if len(own) == 0 {
		return nil
	}
	rows := make([]store.AuditLog, len(own))
	leaves := make([]store.Leaf, len(own))
	for i, event := range own {
		if err := audit.Check(event); err != nil {
			return fmt.Errorf("check own event: %w", err)
		}
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
		if err != nil {
			return fmt.Errorf("marshal own event: %w", err)
		}
		id := uuid.MustParse(event.GetAuditId()) // Check has parsed it
		rows[i] = logRow(id, event, payload)
		leaves[i] = store.Leaf{EventID: id, Hash: envelope.LeafHash(id, payload)}
	}
	db := store.New(tx)
	ledger, first, err := db.TakeNumbers(ctx, len(own))
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].LedgerID, rows[i].LedgerSeq = ledger, first+int64(i)
		leaves[i].Position = store.Position{Owner: Owner, LedgerID: ledger, LedgerSeq: first + int64(i)}
	}
	if err := db.InsertLeaves(ctx, leaves); err != nil {
		return err
	}
	inserted, err := db.InsertAuditLogs(ctx, rows)
	if err != nil {
		return err
	}
	if inserted != int64(len(rows)) {
		return fmt.Errorf("record own events: %d of %d ids are new", inserted, len(rows))
	}
	return nil
}

// recordAlone is record in a transaction of its own, for what changes nothing else. It ends within recordTimeout, also
// when the caller has gone away.
func (s *Service) recordAlone(ctx context.Context, event *auditv1.AuditEvent) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	return pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error { return record(ctx, tx, event) })
}

// Refused records that a known caller was refused a method, with the code of the refusal. Anonymous refusals are not
// recorded: anyone could fill the log with them. A refusal that cannot be recorded stays a refusal, and is counted.
func (s *Service) Refused(ctx context.Context, c Caller, method, reason string) {
	event, err := s.events.callRefused(c, method, reason)
	if err == nil {
		err = s.recordAlone(ctx, event)
	}
	if err != nil {
		s.missed.Add(ctx, 1)
		s.log.ErrorContext(ctx, "a refused call was not recorded", slog.String("method", method), slog.Any("error", err))
	}
}
