// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/pkg/audit"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// One insert carries at most this much; a larger append becomes several inserts in one round trip.
const (
	insertRows  = 5000
	insertBytes = 16 << 20
)

// InvalidEventError says which event was refused before anything was sent.
type InvalidEventError struct {
	// Index is the event's place in the call.
	Index int
	// EventType is the event's type as given, cut to 128 bytes.
	EventType string
	// Err lists the fields and rules; it is an *audit.InvalidError unless the event was nil or too large.
	Err error
}

// Error names the event's type and every offending field, and no value.
func (e *InvalidEventError) Error() string {
	return fmt.Sprintf("outbox: event %d (%s) is refused: %v", e.Index, e.EventType, e.Err)
}

// Unwrap returns Err.
func (e *InvalidEventError) Unwrap() error { return e.Err }

// Append records events in the caller's open transaction: they commit with the
// business change or not at all, and there is no other way in (U18).
//
// Every event is checked before anything is sent, so nothing unpublishable is
// ever committed; the error is then an *InvalidEventError, and the transaction
// is still usable. An event is marshalled once, at most audit.MaxPayload bytes,
// and never encoded again. Any number of events fits into one call. Repeating a
// call in one transaction violates the primary key and fails: Append never
// ignores a conflict.
func Append(ctx context.Context, tx pgx.Tx, events ...*auditv1.AuditEvent) error {
	inserts, err := prepare(events)
	if err != nil {
		return err
	}
	if len(inserts) == 1 {
		sql, args := inserts[0].statement(traceFrom(ctx))
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			return fmt.Errorf("append to outbox: %w", err)
		}
	} else if len(inserts) > 1 {
		batch := &pgx.Batch{}
		for _, ins := range inserts {
			sql, args := ins.statement(traceFrom(ctx))
			batch.Queue(sql, args...)
		}
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return fmt.Errorf("append to outbox: %w", err)
		}
	}
	failpoint.Hit(failpoint.OutboxAppended)
	return nil
}

// AppendBatch sends the caller's queued statements and the insert of the events
// in one round trip, so that an audited transaction costs no more trips than an
// unaudited one. The caller gives each event its resource's version, which it
// knows beforehand: 1, or the etag read plus 1.
//
// It runs and closes batch, which must not be used again. The caller reads
// results through the callbacks of pgx.QueuedQuery (Query, QueryRow, Exec); an
// error from one of them is returned as it is. Statements run in the order of
// queueing, the insert last. The events are checked first, as by Append: after
// an *InvalidEventError nothing was sent. After any other error the transaction
// can only be rolled back.
func AppendBatch(ctx context.Context, tx pgx.Tx, batch *pgx.Batch, events ...*auditv1.AuditEvent) error {
	inserts, err := prepare(events)
	if err != nil {
		return err
	}
	for _, ins := range inserts {
		sql, args := ins.statement(traceFrom(ctx))
		batch.Queue(sql, args...)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	failpoint.Hit(failpoint.OutboxAppended)
	return nil
}

// insert is the columns of one INSERT, as arrays for unnest: the number of
// parameters does not grow with the number of rows (BC-20).
type insert struct {
	ids           []uuid.UUID
	occurred      []time.Time
	versions      []*int64
	schemas       []int32
	types         []string
	operations    []string
	resourceTypes []string
	resourceIDs   []string
	payloads      [][]byte
	size          int
}

func (i *insert) statement(trace traceContext) (sql string, args []any) {
	if len(i.ids) == 1 {
		return sqlAppendOne, []any{
			[16]byte(i.ids[0]), i.occurred[0], i.versions[0], i.schemas[0], i.types[0], i.operations[0], i.resourceTypes[0],
			i.resourceIDs[0], i.payloads[0], trace.parent, trace.state,
		}
	}
	return sqlAppend, []any{
		i.ids, i.occurred, i.versions, i.schemas, i.types, i.operations, i.resourceTypes, i.resourceIDs, i.payloads,
		trace.parent, trace.state,
	}
}

func (i *insert) add(e *auditv1.AuditEvent, payload []byte) {
	var version *int64
	if v := e.GetResource().GetVersion(); v != 0 {
		version = &v
	}
	i.ids = append(i.ids, uuid.MustParse(e.GetAuditId())) // audit.Check has seen it
	i.occurred = append(i.occurred, e.GetOccurTime().AsTime())
	i.versions = append(i.versions, version)
	i.schemas = append(i.schemas, e.GetSchemaVersion())
	i.types = append(i.types, e.GetEventType())
	i.operations = append(i.operations, strings.TrimPrefix(e.GetOperation().String(), "OPERATION_"))
	i.resourceTypes = append(i.resourceTypes, e.GetResource().GetType())
	i.resourceIDs = append(i.resourceIDs, e.GetResource().GetId())
	i.payloads = append(i.payloads, payload)
	i.size += len(payload)
}

// prepare checks and marshals every event; it returns no insert for no event.
func prepare(events []*auditv1.AuditEvent) ([]*insert, error) {
	var inserts []*insert
	var current *insert
	for n, e := range events {
		payload, err := encode(e)
		if err != nil {
			return nil, &InvalidEventError{Index: n, EventType: cut(e.GetEventType(), 128), Err: err}
		}
		if current == nil || len(current.ids) == insertRows || current.size+len(payload) > insertBytes {
			current = &insert{}
			inserts = append(inserts, current)
		}
		current.add(e, payload)
	}
	return inserts, nil
}

func encode(e *auditv1.AuditEvent) ([]byte, error) {
	if e == nil {
		return nil, errors.New("it is nil")
	}
	if err := audit.Check(e); err != nil {
		return nil, err
	}
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("marshal: %w", err)
	}
	if len(payload) > audit.MaxPayload {
		return nil, fmt.Errorf("it takes %d bytes, at most %d are recorded", len(payload), audit.MaxPayload)
	}
	return payload, nil
}

func cut(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "?")
}
