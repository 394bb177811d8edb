// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Row is one consumer's work on one event, with what the event says of itself.
type Row struct {
	Consumer      string
	EventID       uuid.UUID
	Owner         string
	EventType     string
	SchemaVersion int32
	LedgerID      uuid.UUID
	LedgerSeq     int64
	EntryID       string // stream entry that brought it
	State         State
	Attempts      int
	ReceivedAt    time.Time
	NextRetryAt   time.Time // zero unless PENDING
	LeasedAt      time.Time // zero unless PROCESSING
	LeaseOwner    string    // only while PROCESSING
	LeaseExpires  time.Time // zero unless PROCESSING
	FinishedAt    time.Time // zero unless PROCESSED or DEAD
	LastErrorCode string
	LastErrorAt   time.Time // zero without an error
}

// Filter chooses rows. A zero field chooses all.
type Filter struct {
	Consumer string
	State    State
	EventID  uuid.UUID
	Owner    string
}

// RowCursor is where a page of rows ends: at its last row. The zero value is the beginning.
type RowCursor struct {
	EventID  uuid.UUID
	Consumer string
}

// Cursor returns the cursor behind the row.
func (r Row) Cursor() RowCursor { return RowCursor{EventID: r.EventID, Consumer: r.Consumer} }

// List returns rows, newest event first, after the cursor, at most limit (1 to MaxPage).
func (p *Postgres) List(ctx context.Context, f Filter, after RowCursor, limit int) ([]Row, error) {
	if limit < 1 || limit > MaxPage {
		return nil, fmt.Errorf("%w: a page has 1 to %d rows, not %d", ErrInvalid, MaxPage, limit)
	}
	rows, err := p.db.Query(ctx, sqlList, f.Consumer, string(f.State), optional(f.EventID), f.Owner, optional(after.EventID),
		after.Consumer, limit)
	if err != nil {
		return nil, fmt.Errorf("list the inbox: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanRow)
	if err != nil {
		return nil, fmt.Errorf("list the inbox: %w", err)
	}
	return out, nil
}

// Get returns one row, or ErrNotFound.
func (p *Postgres) Get(ctx context.Context, consumer string, event uuid.UUID) (Row, error) {
	rows, err := p.db.Query(ctx, sqlGet, consumer, [16]byte(event))
	if err != nil {
		return Row{}, fmt.Errorf("get inbox row: %w", err)
	}
	row, err := pgx.CollectExactlyOneRow(rows, scanRow)
	if errors.Is(err, pgx.ErrNoRows) {
		return Row{}, ErrNotFound
	}
	if err != nil {
		return Row{}, fmt.Errorf("get inbox row: %w", err)
	}
	return row, nil
}

func scanRow(row pgx.CollectableRow) (Row, error) {
	var r Row
	var due time.Time
	var expires, finished, failed *time.Time
	err := row.Scan(&r.Consumer, &r.EventID, &r.Owner, &r.EventType, &r.SchemaVersion, &r.LedgerID, &r.LedgerSeq, &r.EntryID, &r.State,
		&r.Attempts, &r.ReceivedAt, &due, &r.LeaseOwner, &expires, &finished, &r.LastErrorCode, &failed)
	switch r.State {
	case Pending:
		r.NextRetryAt = due
	case Processing:
		r.LeasedAt = due
	}
	r.LeaseExpires, r.FinishedAt, r.LastErrorAt = orZero(expires), orZero(finished), orZero(failed)
	return r, err
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// optional is nil for the zero id, which no row has.
func optional(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}
