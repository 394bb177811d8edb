// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/counterfoil/counterfoil/internal/pgdb"
)

// AuditLog is a row of audit_logs.
type AuditLog struct {
	EventID         uuid.UUID
	LedgerID        uuid.UUID
	LedgerSeq       int64
	OccurTime       time.Time
	RecordTime      time.Time // set by the database
	ResourceVersion int64     // 0 is stored as null: an event about no row
	SchemaVersion   int32
	Owner           string
	EventType       string
	Action          string
	Operation       string
	Outcome         string
	Reason          string
	ActorType       string
	ActorID         string
	ResourceType    string
	ResourceID      string
	CorrelationID   string
	TraceID         string
	Payload         []byte
}

// insertAuditLogs writes a batch in one statement, in the order of event ids, so that two writers of the same events
// wait for each other instead of deadlocking.
const insertAuditLogs = `
INSERT INTO audit_logs (
    event_id, ledger_id, ledger_seq, occur_time, resource_version, schema_version, owner, event_type, action, operation,
    outcome, reason, actor_type, actor_id, resource_type, resource_id, correlation_id, trace_id, payload)
SELECT
    event_id, ledger_id, ledger_seq, occur_time, nullif(resource_version, 0), schema_version, owner, event_type, action,
    operation, outcome, reason, actor_type, actor_id, resource_type, resource_id, correlation_id, trace_id, payload
FROM unnest(
    $1::uuid[], $2::uuid[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::integer[], $7::text[], $8::text[],
    $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::text[],
    $18::text[], $19::bytea[])
AS new (
    event_id, ledger_id, ledger_seq, occur_time, resource_version, schema_version, owner, event_type, action, operation,
    outcome, reason, actor_type, actor_id, resource_type, resource_id, correlation_id, trace_id, payload)
ORDER BY event_id
ON CONFLICT (event_id) DO NOTHING`

// planOnce lets a connection keep the plan of a statement that looks nothing up, for which the next one would be no
// better. For a few rows planning takes the server longer than writing them. It holds until the transaction ends.
const planOnce = "SELECT set_config('plan_cache_mode', 'force_generic_plan', true)"

// InsertAuditLogs writes the rows that are not there yet and returns how many it wrote.
func (s Store) InsertAuditLogs(ctx context.Context, rows []AuditLog) (inserted int64, err error) {
	var batch pgx.Batch
	batch.Queue(planOnce)
	batch.Queue(insertAuditLogs,
		column(rows, func(r AuditLog) [16]byte { return r.EventID }),
		column(rows, func(r AuditLog) [16]byte { return r.LedgerID }),
		column(rows, func(r AuditLog) int64 { return r.LedgerSeq }),
		column(rows, func(r AuditLog) time.Time { return r.OccurTime }),
		column(rows, func(r AuditLog) int64 { return r.ResourceVersion }),
		column(rows, func(r AuditLog) int32 { return r.SchemaVersion }),
		column(rows, func(r AuditLog) string { return r.Owner }),
		column(rows, func(r AuditLog) string { return r.EventType }),
		column(rows, func(r AuditLog) string { return r.Action }),
		column(rows, func(r AuditLog) string { return r.Operation }),
		column(rows, func(r AuditLog) string { return r.Outcome }),
		column(rows, func(r AuditLog) string { return r.Reason }),
		column(rows, func(r AuditLog) string { return r.ActorType }),
		column(rows, func(r AuditLog) string { return r.ActorID }),
		column(rows, func(r AuditLog) string { return r.ResourceType }),
		column(rows, func(r AuditLog) string { return r.ResourceID }),
		column(rows, func(r AuditLog) string { return r.CorrelationID }),
		column(rows, func(r AuditLog) string { return r.TraceID }),
		column(rows, func(r AuditLog) []byte { return r.Payload })).Exec(func(tag pgconn.CommandTag) error {
		inserted = tag.RowsAffected()
		return nil
	})
	if err := s.db.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, fmt.Errorf("insert audit logs: %w", err)
	}
	return inserted, nil
}

// CopyAuditLogs writes rows in the order of event ids at a third less of the server's work than InsertAuditLogs. It writes
// all or, if one of them is there already, nothing: false then, and the caller's transaction goes on.
func CopyAuditLogs(ctx context.Context, tx pgx.Tx, rows []AuditLog) (bool, error) {
	sorted := slices.SortedFunc(slices.Values(rows), func(a, b AuditLog) int { return bytes.Compare(a.EventID[:], b.EventID[:]) })
	err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
		// Given, and not left to the column's default: COPY writes row by row where a default is a clock.
		var now time.Time
		if err := savepoint.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
			return err
		}
		_, err := savepoint.CopyFrom(ctx, pgx.Identifier{"audit_logs"}, []string{
			"event_id", "ledger_id", "ledger_seq", "occur_time", "record_time", "resource_version", "schema_version", "owner", "event_type",
			"action", "operation", "outcome", "reason", "actor_type", "actor_id", "resource_type", "resource_id", "correlation_id", "trace_id",
			"payload",
		}, pgx.CopyFromSlice(len(sorted), func(i int) ([]any, error) { return copyRow(&sorted[i], now), nil }))
		return err
	})
	if pgdb.Code(err) == uniqueViolation {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("copy audit logs: %w", err)
	}
	return true, nil
}

// uniqueViolation is the SQLSTATE of a row that is there already.
const uniqueViolation = "23505"

// copyRow is a row as COPY takes it.
func copyRow(r *AuditLog, now time.Time) []any {
	var version any
	if r.ResourceVersion != 0 {
		version = r.ResourceVersion
	}
	return []any{
		[16]byte(r.EventID), [16]byte(r.LedgerID), r.LedgerSeq, r.OccurTime, now, version, r.SchemaVersion, r.Owner, r.EventType,
		r.Action, r.Operation, r.Outcome, r.Reason, r.ActorType, r.ActorID, r.ResourceType, r.ResourceID, r.CorrelationID, r.TraceID, r.Payload,
	}
}

// column turns one field of rows into the array that unnest takes.
func column[R, T any](rows []R, field func(R) T) []T {
	out := make([]T, len(rows))
	for i, r := range rows {
		out[i] = field(r)
	}
	return out
}

const otherBytes = `
SELECT l.event_id
FROM unnest($1::uuid[], $2::bytea[]) AS new (event_id, payload)
JOIN audit_logs l USING (event_id)
WHERE l.payload <> new.payload
ORDER BY l.event_id`

// OtherBytes returns the ids of rows whose event is recorded with another payload.
func (s Store) OtherBytes(ctx context.Context, rows []AuditLog) ([]uuid.UUID, error) {
	found, err := s.db.Query(ctx, otherBytes,
		column(rows, func(r AuditLog) uuid.UUID { return r.EventID }),
		column(rows, func(r AuditLog) []byte { return r.Payload }))
	if err != nil {
		return nil, fmt.Errorf("compare audit logs: %w", err)
	}
	ids, err := pgx.CollectRows(found, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("compare audit logs: %w", err)
	}
	return ids, nil
}

const auditLogColumns = `event_id, ledger_id, ledger_seq, occur_time, record_time, coalesce(resource_version, 0),
    schema_version, owner, event_type, action, operation, outcome, reason, actor_type, actor_id, resource_type,
    resource_id, correlation_id, trace_id, payload`

func scanAuditLog(row pgx.CollectableRow) (AuditLog, error) {
	var r AuditLog
	err := row.Scan(&r.EventID, &r.LedgerID, &r.LedgerSeq, &r.OccurTime, &r.RecordTime, &r.ResourceVersion,
		&r.SchemaVersion, &r.Owner, &r.EventType, &r.Action, &r.Operation, &r.Outcome, &r.Reason, &r.ActorType, &r.ActorID,
		&r.ResourceType, &r.ResourceID, &r.CorrelationID, &r.TraceID, &r.Payload)
	return r, err
}

// Predicate is a condition on audit_logs: SQL made of column names and $1, $2, … only, and the values of those.
// The zero value holds for every row.
type Predicate struct {
	SQL  string
	Args []any
}

// Page bounds one page of audit_logs.
type Page struct {
	Before   uuid.UUID // only rows with a smaller event id; the zero id starts at the newest
	Rows     int
	MaxBytes int64 // of payload; the first row is returned whatever its size
}

// ListAuditLogs returns the newest rows that p holds for, newest first, and whether there are more.
//
// The limit in bytes is applied by the database from the stored lengths, so a row that does not fit is not even read.
func (s Store) ListAuditLogs(ctx context.Context, p Predicate, page Page) (rows []AuditLog, more bool, err error) {
	sql, args := listStatement(p, page)
	result, err := s.db.Query(ctx, sql, args...)
	if err != nil {
		return nil, false, fmt.Errorf("list audit logs: %w", err)
	}
	var found int
	rows, err = pgx.CollectRows(result, func(row pgx.CollectableRow) (AuditLog, error) {
		return scanAuditLog(withTrailing{CollectableRow: row, last: &found})
	})
	if err != nil {
		return nil, false, fmt.Errorf("list audit logs: %w", err)
	}
	return rows, found > len(rows), nil
}

// listStatement builds the one statement that is not constant. What varies is bound, but for the predicate's SQL.
func listStatement(p Predicate, page Page) (sql string, args []any) {
	where := "true"
	if p.SQL != "" {
		where = "(" + p.SQL + ")"
	}
	args = append(args, p.Args...)
	bind := func(v any) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	if page.Before != uuid.Nil {
		where += " AND event_id < " + bind(page.Before)
	}
	// One row more than asked for is counted, and never read, to know whether there is another page.
	return `
WITH page AS MATERIALIZED (
    SELECT event_id, octet_length(payload) AS size
    FROM audit_logs WHERE ` + where + ` ORDER BY event_id DESC LIMIT ` + bind(page.Rows+1) + `
), sized AS (
    SELECT event_id, row_number() OVER newest AS position, sum(size) OVER newest AS bytes
    FROM page WINDOW newest AS (ORDER BY event_id DESC)
)
SELECT ` + auditLogColumns + `, (SELECT count(*) FROM page) AS found
FROM sized JOIN audit_logs USING (event_id)
WHERE position <= ` + bind(page.Rows) + ` AND (position = 1 OR bytes <= ` + bind(page.MaxBytes) + `)
ORDER BY event_id DESC`, args
}

// withTrailing scans one column more than its caller asks for.
type withTrailing struct {
	pgx.CollectableRow
	last any
}

// Scan implements pgx.CollectableRow.
func (r withTrailing) Scan(dest ...any) error {
	return r.CollectableRow.Scan(append(dest, r.last)...)
}

// GetAuditLog returns one row, and false if there is none.
func (s Store) GetAuditLog(ctx context.Context, id uuid.UUID) (AuditLog, bool, error) {
	rows, err := s.db.Query(ctx, "SELECT "+auditLogColumns+" FROM audit_logs WHERE event_id = $1", id)
	if err != nil {
		return AuditLog{}, false, fmt.Errorf("get audit log: %w", err)
	}
	row, err := pgx.CollectExactlyOneRow(rows, scanAuditLog)
	if errors.Is(err, pgx.ErrNoRows) {
		return AuditLog{}, false, nil
	}
	if err != nil {
		return AuditLog{}, false, fmt.Errorf("get audit log: %w", err)
	}
	return row, true, nil
}

// EachPayload calls visit with the payload of each of the events that is still in the inbox.
func (s Store) EachPayload(ctx context.Context, events []uuid.UUID, visit func(id uuid.UUID, payload []byte)) error {
	rows, err := s.db.Query(ctx, "SELECT event_id, payload FROM inbox_events WHERE event_id = ANY ($1)", events)
	if err != nil {
		return fmt.Errorf("read inbox payloads: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		var payload []byte
		if err := rows.Scan(&id, &payload); err != nil {
			return fmt.Errorf("read inbox payloads: %w", err)
		}
		visit(id, payload)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read inbox payloads: %w", err)
	}
	return nil
}
