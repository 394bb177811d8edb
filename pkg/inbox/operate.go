// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Limits of one call of an operation.
const (
	MaxIDs    = 1000 // ids to change
	MaxPage   = 1000 // rows to list
	MaxReason = 512  // characters of a reason
)

// Postgres reads the inbox and does what an operator may do. Methods that change rows take the
// caller's transaction, so that the caller can record the action in it: what an operator did and the
// record of it commit together. They lock rows in the order of their ids and can be repeated: an id
// whose state has moved on is refused, so of several calls at once one has an effect.
type Postgres struct {
	db      *pgxpool.Pool
	catalog Catalog
	begin   string
}

// NewPostgres checks the catalog, which ReplayPoison and Status use. It connects to nothing.
func NewPostgres(db *pgxpool.Pool, catalog Catalog) (*Postgres, error) {
	if db == nil {
		return nil, errors.New("inbox: NewPostgres needs a pool")
	}
	if err := catalog.validate(); err != nil {
		return nil, err
	}
	return &Postgres{db: db, catalog: catalog, begin: begin(5*time.Second, 20*time.Second, true)}, nil
}

// Outcome is what a change did, id by id.
type Outcome struct {
	// Changed lists the ids that were changed, in order.
	Changed []uuid.UUID
	// Refused lists the others, with a reason.
	Refused []Refusal
}

// Refusal says why one id was left as it was.
type Refusal struct {
	ID     uuid.UUID
	Reason string // one of the Refused constants
	Detail string // for RefusedUnusable, why: a reason code of poison
}

func (o *Outcome) refuse(id uuid.UUID, reason string) {
	o.Refused = append(o.Refused, Refusal{ID: id, Reason: reason})
}

// Actor is who decides, and why.
type Actor struct {
	ID     string // opaque id
	Reason string // required, at most MaxReason characters
}

func (a Actor) validate() error {
	switch {
	case a.ID == "" || len(a.ID) > 128:
		return fmt.Errorf("%w: an actor's id has 1 to 128 bytes", ErrInvalid)
	case strings.TrimSpace(a.Reason) == "" || utf8.RuneCountInString(a.Reason) > MaxReason:
		return fmt.Errorf("%w: a reason has 1 to %d characters", ErrInvalid, MaxReason)
	case !storable(a.ID) || !storable(a.Reason):
		return fmt.Errorf("%w: a reason is text without U+0000", ErrInvalid)
	}
	return nil
}

func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// sortedIDs returns ids once each, in the order in which rows are locked.
func sortedIDs(ids []uuid.UUID) ([]uuid.UUID, error) {
	if len(ids) == 0 || len(ids) > MaxIDs {
		return nil, fmt.Errorf("%w: 1 to %d ids at a time, not %d", ErrInvalid, MaxIDs, len(ids))
	}
	ids = slices.Clone(ids)
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(ids), nil
}

func rawIDs(ids []uuid.UUID) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}

// Requeue sets DEAD rows of one consumer to PENDING with fresh attempts, due at once. The last error
// code is kept until the row is PROCESSED. At most MaxIDs events; ErrInvalid otherwise.
func (p *Postgres) Requeue(ctx context.Context, tx pgx.Tx, consumer string, events []uuid.UUID) (Outcome, error) {
	return p.reopen(ctx, tx, consumer, events, Dead)
}

// Replay sets PROCESSED rows of one consumer to PENDING with fresh attempts, due at once: its handler
// runs again for them. Rows that retention removed are refused as not found. At most MaxIDs events;
// ErrInvalid otherwise.
func (p *Postgres) Replay(ctx context.Context, tx pgx.Tx, consumer string, events []uuid.UUID) (Outcome, error) {
	return p.reopen(ctx, tx, consumer, events, Processed)
}

func (p *Postgres) reopen(ctx context.Context, tx pgx.Tx, consumer string, events []uuid.UUID, from State) (Outcome, error) {
	var out Outcome
	ids, err := sortedIDs(events)
	if err != nil {
		return out, err
	}
	states, err := lockRows(ctx, tx, consumer, ids)
	if err != nil {
		return out, err
	}
	for _, id := range ids {
		switch state, ok := states[id]; {
		case !ok:
			out.refuse(id, RefusedNotFound)
		case state != from:
			out.refuse(id, RefusedState)
		default:
			out.Changed = append(out.Changed, id)
		}
	}
	if len(out.Changed) == 0 {
		return out, nil
	}
	tag, err := tx.Exec(ctx, sqlReopen, consumer, rawIDs(out.Changed), string(from))
	if err != nil {
		return Outcome{}, fmt.Errorf("reopen rows: %w", err)
	}
	if tag.RowsAffected() != int64(len(out.Changed)) {
		return Outcome{}, fmt.Errorf("inbox: reopened %d of %d locked rows", tag.RowsAffected(), len(out.Changed))
	}
	return out, nil
}

func lockRows(ctx context.Context, tx pgx.Tx, consumer string, ids []uuid.UUID) (map[uuid.UUID]State, error) {
	type lock struct {
		ID    uuid.UUID
		State State
	}
	rows, err := tx.Query(ctx, sqlLockRows, consumer, rawIDs(ids))
	if err != nil {
		return nil, fmt.Errorf("lock rows: %w", err)
	}
	locked, err := pgx.CollectRows(rows, pgx.RowToStructByPos[lock])
	if err != nil {
		return nil, fmt.Errorf("lock rows: %w", err)
	}
	states := make(map[uuid.UUID]State, len(locked))
	for _, l := range locked {
		states[l.ID] = l.State
	}
	return states, nil
}

// WakeAll wakes every subscribed consumer of this process: after a commit that made rows PENDING.
func (p *Postgres) WakeAll() {
	for _, s := range p.catalog.Subscriptions {
		if s.Wake != nil {
			s.Wake()
		}
	}
}

// Prune removes PROCESSED rows that finished more than age ago (at least an hour), at most limit (1 to
// 10000) of them, oldest first, and events that no row needs any more. It returns how many rows went;
// while that is limit, there may be more. It skips rows that anybody is working with.
func (p *Postgres) Prune(ctx context.Context, age time.Duration, limit int) (int, error) {
	n := 0
	err := inTx(ctx, p.db, p.begin, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, sqlPrune, age, limit).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("prune the inbox: %w", err)
	}
	return n, nil
}
