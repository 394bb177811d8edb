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
)

// List implements Store.
func (p *Postgres) List(ctx context.Context, f Filter) ([]Record, error) {
	limit, err := f.PageSize()
	if err != nil {
		return nil, err
	}
	var statuses []string
	for _, s := range f.Statuses {
		statuses = append(statuses, string(s))
	}
	rows, err := p.db.Query(ctx, sqlList, statuses, null(&f.EventType), like(f.EventType), nullable(f.EventID), null(&f.ErrorCode),
		null(&f.ResourceType), null(&f.ResourceID), nullable(f.OccurredFrom), nullable(f.OccurredBefore), nullable(f.After), limit)
	if err != nil {
		return nil, fmt.Errorf("list outbox: %w", err)
	}
	records, err := pgx.CollectRows(rows, scanRecord)
	if err != nil {
		return nil, fmt.Errorf("list outbox: %w", err)
	}
	return records, nil
}

// like returns the pattern for a type with a trailing "*", and null for any other.
func like(eventType string) *string {
	prefix, ok := strings.CutSuffix(eventType, "*")
	if !ok {
		return nil
	}
	pattern := strings.NewReplacer("\\", "\\\\", "%", "\\%", "_", "\\_").Replace(prefix) + "%"
	return &pattern
}

// nullable returns v, or nil for the zero value.
func nullable[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func scanRecord(row pgx.CollectableRow) (Record, error) {
	var r Record
	var ledgerID *uuid.UUID
	var claimed, expires, delivered, failed *time.Time
	err := row.Scan(&r.EventID, &r.EventType, &r.SchemaVersion, &r.Operation, &r.ResourceType, &r.ResourceID, &r.ResourceVersion,
		&r.OccurTime, &r.CreateTime, &r.AppendNo, &ledgerID, &r.LedgerSeq, &r.Status, &r.Attempts, &r.MaxAttempts, &r.ClaimCount,
		&r.RedeliveryCount, &r.NextAttemptTime, &r.ClaimOwner, &claimed, &expires, &delivered,
		&r.Provider, &r.RecordID, &r.LastErrorCode, &failed, &r.DeadReason, &r.PayloadBytes, &r.Traceparent)
	r.LedgerID, r.ClaimedAt, r.ClaimExpiresAt = value(ledgerID), value(claimed), value(expires)
	r.DeliveredAt, r.LastErrorAt = value(delivered), value(failed)
	for _, t := range []*time.Time{&r.OccurTime, &r.CreateTime, &r.NextAttemptTime, &r.ClaimedAt, &r.ClaimExpiresAt, &r.DeliveredAt, &r.LastErrorAt} {
		*t = t.UTC()
	}
	return r, err
}

// Get implements Store.
func (p *Postgres) Get(ctx context.Context, id uuid.UUID) (Record, []Transition, error) {
	rows, err := p.db.Query(ctx, sqlGet, id)
	if err != nil {
		return Record{}, nil, fmt.Errorf("get outbox entry: %w", err)
	}
	r, err := pgx.CollectExactlyOneRow(rows, scanRecord)
	if errors.Is(err, pgx.ErrNoRows) {
		return Record{}, nil, ErrNotFound
	}
	if err != nil {
		return Record{}, nil, fmt.Errorf("get outbox entry: %w", err)
	}
	rows, err = p.db.Query(ctx, sqlHistory, id, nullable(r.LedgerID), r.LedgerSeq)
	if err != nil {
		return Record{}, nil, fmt.Errorf("get history: %w", err)
	}
	history, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Transition, error) {
		var t Transition
		var eventID, ledgerID *uuid.UUID
		err := row.Scan(&t.Time, &t.Name, &eventID, &ledgerID, &t.FirstSeq, &t.LastSeq, &t.Count, &t.From, &t.To, &t.Code, &t.Actor, &t.Reason)
		t.Time, t.EventID, t.LedgerID = t.Time.UTC(), value(eventID), value(ledgerID)
		return t, err
	})
	if err != nil {
		return Record{}, nil, fmt.Errorf("get history: %w", err)
	}
	return r, history, nil
}

// Status implements Store. It reads the whole table once: it is for a person, or for once a minute.
func (p *Postgres) Status(ctx context.Context) (Snapshot, error) {
	s := Snapshot{Depth: make(map[Status]int64), DeadByReason: make(map[string]int64)}
	for _, status := range Statuses() {
		s.Depth[status] = 0
	}
	err := p.snapshot(ctx, &s, sqlCounts, func(b *pgx.Batch) {
		b.Queue(sqlDeadByReason).Query(func(rows pgx.Rows) error {
			var reason string
			var n int64
			_, err := pgx.ForEachRow(rows, []any{&reason, &n}, func() error {
				s.DeadByReason[reason] = n
				return nil
			})
			return err
		})
	})
	if err != nil {
		return Snapshot{}, fmt.Errorf("outbox status: %w", err)
	}
	return s, nil
}

// Backlog is Status for the open statuses alone, by their index: it is for
// metrics. Depth has the three open statuses; DeadByReason is nil.
func (p *Postgres) Backlog(ctx context.Context) (Snapshot, error) {
	s := Snapshot{Depth: map[Status]int64{StatusPending: 0, StatusDeferred: 0, StatusRetryableFailure: 0}}
	if err := p.snapshot(ctx, &s, sqlOpenCounts, func(*pgx.Batch) {}); err != nil {
		return Snapshot{}, fmt.Errorf("outbox backlog: %w", err)
	}
	return s, nil
}

func (p *Postgres) snapshot(ctx context.Context, s *Snapshot, counts string, more func(*pgx.Batch)) error {
	return roundTrip(ctx, p.db, func(b *pgx.Batch) {
		b.Queue(counts).Query(func(rows pgx.Rows) error {
			var now, oldest time.Time
			var status Status
			var n, unsealed, held int64
			_, err := pgx.ForEachRow(rows, []any{&now, &status, &n, &unsealed, &held, &oldest}, func() error {
				s.Depth[status] = n
				s.Unsealed += unsealed
				s.ClaimsHeld += held
				if status.Open() {
					s.OldestUndelivered = max(s.OldestUndelivered, now.Sub(oldest))
				}
				return nil
			})
			return err
		})
		b.Queue(sqlLedger).QueryRow(func(row pgx.Row) error {
			var sealed *time.Time
			err := row.Scan(&s.Owner, &s.LedgerID, &s.Head, &sealed, &s.Time)
			s.SealedAt, s.Time = value(sealed).UTC(), s.Time.UTC()
			return err
		})
		more(b)
	})
}

// Requeue implements Store.
func (p *Postgres) Requeue(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, actor, reason string) (int, error) {
	if err := CheckRequeue(ids, actor, reason); err != nil {
		return 0, err
	}
	var n int
	if err := tx.QueryRow(ctx, sqlRequeue, raw(ids), actor, reason).Scan(&n); err != nil {
		return 0, fmt.Errorf("requeue: %w", err)
	}
	return n, nil
}

// Prune deletes up to batch (1 to 10000) finished entries past their retention, oldest
// first, and returns how many. The function in the database decides what is
// finished and how long it stays; this can ask for nothing else. Repeat it until
// it returns less than batch; it never waits for a claim (BC-08).
func (p *Postgres) Prune(ctx context.Context, batch int) (int64, error) {
	var n int64
	if err := p.db.QueryRow(ctx, sqlPrune, batch).Scan(&n); err != nil {
		return 0, fmt.Errorf("prune outbox: %w", err)
	}
	return n, nil
}
