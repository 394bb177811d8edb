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

	"github.com/counterfoil/counterfoil/pkg/envelope"
)

// PoisonKind is why an entry was not taken over as an event.
type PoisonKind string

// The three kinds.
const (
	Forged   PoisonKind = "FORGED"   // not authentic; its owner sends the true one again
	Parked   PoisonKind = "PARKED"   // authentic, not usable here yet
	Conflict PoisonKind = "CONFLICT" // authentic, and contradicts what is held
)

// PoisonState is what became of it.
type PoisonState string

// The three states.
const (
	PoisonOpen      PoisonState = "OPEN"
	PoisonResolved  PoisonState = "RESOLVED"
	PoisonDiscarded PoisonState = "DISCARDED"
)

// Poison is the distinct content of stream entries that were not taken over.
type Poison struct {
	ID           uuid.UUID
	Stream       string
	Owner        string // of the stream
	Kind         PoisonKind
	Reason       string // one of the Reason constants
	State        PoisonState
	EventID      uuid.UUID // as claimed; zero if that was no UUID
	ClaimedType  string
	LedgerID     uuid.UUID // zero unless authentic
	LedgerSeq    int64     // zero unless authentic
	FirstEntryID string
	LastEntryID  string
	SeenCount    int64
	FirstSeenAt  time.Time
	LastSeenAt   time.Time
	RawSize      int64     // bytes of RawFields before any cut
	RawFields    []byte    // only in GetPoison; DecodeFields reads it
	DecidedBy    string    // who resolved or discarded it
	DecidedAt    time.Time // zero while open
	Decision     string    // the reason given
}

// PoisonFilter chooses poison. A zero field chooses all.
type PoisonFilter struct {
	Kind    PoisonKind
	State   PoisonState
	EventID uuid.UUID
}

// PoisonCursor is where a page of poison ends: at its last row. The zero value is the beginning.
type PoisonCursor struct {
	FirstSeenAt time.Time
	ID          uuid.UUID
}

// Cursor returns the cursor behind the row.
func (p Poison) Cursor() PoisonCursor { return PoisonCursor{FirstSeenAt: p.FirstSeenAt, ID: p.ID} }

// ListPoison returns poison, newest first, after the cursor, at most limit (1 to MaxPage).
func (p *Postgres) ListPoison(ctx context.Context, f PoisonFilter, after PoisonCursor, limit int) ([]Poison, error) {
	if limit < 1 || limit > MaxPage {
		return nil, fmt.Errorf("%w: a page has 1 to %d rows, not %d", ErrInvalid, MaxPage, limit)
	}
	var at *time.Time
	if !after.FirstSeenAt.IsZero() {
		at = &after.FirstSeenAt
	}
	rows, err := p.db.Query(ctx, sqlListPoison, string(f.Kind), string(f.State), optional(f.EventID), at, [16]byte(after.ID), limit)
	if err != nil {
		return nil, fmt.Errorf("list poison: %w", err)
	}
	out, err := pgx.CollectRows(rows, scanPoison)
	if err != nil {
		return nil, fmt.Errorf("list poison: %w", err)
	}
	return out, nil
}

// GetPoison returns one with its raw fields, or ErrNotFound.
func (p *Postgres) GetPoison(ctx context.Context, id uuid.UUID) (Poison, error) {
	rows, err := p.db.Query(ctx, sqlGetPoison, [16]byte(id))
	if err != nil {
		return Poison{}, fmt.Errorf("get poison: %w", err)
	}
	one, err := pgx.CollectExactlyOneRow(rows, scanPoison)
	if errors.Is(err, pgx.ErrNoRows) {
		return Poison{}, ErrNotFound
	}
	if err != nil {
		return Poison{}, fmt.Errorf("get poison: %w", err)
	}
	return one, nil
}

func scanPoison(row pgx.CollectableRow) (Poison, error) {
	var p Poison
	var event, ledger *uuid.UUID
	var decided *time.Time
	err := row.Scan(&p.ID, &p.Stream, &p.Owner, &p.Kind, &p.Reason, &p.State, &event, &p.ClaimedType, &ledger, &p.LedgerSeq,
		&p.FirstEntryID, &p.LastEntryID, &p.SeenCount, &p.FirstSeenAt, &p.LastSeenAt, &p.RawSize, &p.DecidedBy, &decided,
		&p.Decision, &p.RawFields)
	if event != nil {
		p.EventID = *event
	}
	if ledger != nil {
		p.LedgerID = *ledger
	}
	p.DecidedAt = orZero(decided)
	return p, err
}

// parked is a locked row of poison on its way to the inbox.
type parked struct {
	id        uuid.UUID
	kind      PoisonKind
	owner     string
	open      bool
	raw       []byte
	size      int64
	lastEntry string
}

// ReplayPoison checks PARKED poison again by today's catalog, and what passes becomes an event:
// inbox rows PENDING, the poison resolved by actor. Its number was taken over when it was parked.
// Forged and conflicting poison can only be discarded. After the caller's commit, WakeAll.
func (p *Postgres) ReplayPoison(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, by Actor) (Outcome, error) {
	var out Outcome
	all, sorted, err := lockPoison(ctx, tx, ids, by)
	if err != nil {
		return out, err
	}
	passed := map[string][]*checked{} // by owner
	for _, id := range sorted {
		row, ok := all[id]
		refusal, entry := p.recheck(row, ok)
		if refusal.Reason != "" {
			refusal.ID = id
			out.Refused = append(out.Refused, refusal)
			continue
		}
		out.Changed = append(out.Changed, id)
		passed[row.owner] = append(passed[row.owner], entry)
	}
	if len(out.Changed) == 0 {
		return out, nil
	}
	var batch pgx.Batch
	for owner, events := range passed {
		p.queueTakeover(&batch, owner, events)
	}
	batch.Queue(sqlResolvePoison, rawIDs(out.Changed), by.ID, by.Reason)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return Outcome{}, fmt.Errorf("replay poison: %w", err)
	}
	return out, nil
}

func (p *Postgres) queueTakeover(batch *pgx.Batch, owner string, events []*checked) {
	queueEvents(batch, owner, events)
	for _, s := range p.catalog.Subscriptions {
		if ids := wanted(s, owner, events); len(ids) > 0 {
			batch.Queue(sqlInsertInbox, ids, s.Consumer)
		}
	}
}

// recheck says whether a locked row may become an event now. Its authenticity was established when
// it was parked, and is not asked again: keys come and go.
func (p *Postgres) recheck(row parked, found bool) (Refusal, *checked) {
	switch {
	case !found:
		return Refusal{Reason: RefusedNotFound}, nil
	case !row.open:
		return Refusal{Reason: RefusedState}, nil
	case row.kind != Parked:
		return Refusal{Reason: RefusedKind}, nil
	case row.size > int64(len(row.raw)):
		return Refusal{Reason: RefusedCut}, nil
	}
	fields, err := DecodeFields(row.raw)
	if err != nil {
		return Refusal{Reason: RefusedUnusable, Detail: ReasonFieldInvalid}, nil
	}
	values := make(map[string]any, len(fields))
	for name, v := range fields {
		values[name] = string(v)
	}
	env, err := envelope.Parse(values)
	if err != nil {
		return Refusal{Reason: RefusedUnusable, Detail: fieldReason(err)}, nil
	}
	if why := p.catalog.unusable(&env); why != "" {
		return Refusal{Reason: RefusedUnusable, Detail: why}, nil
	}
	return Refusal{}, &checked{entryID: row.lastEntry, env: env}
}

// DiscardPoison marks open poison of any kind as discarded by actor. Nothing is deleted: the bytes
// stay as evidence, and its number stays taken.
func (p *Postgres) DiscardPoison(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, by Actor) (Outcome, error) {
	var out Outcome
	all, sorted, err := lockPoison(ctx, tx, ids, by)
	if err != nil {
		return out, err
	}
	for _, id := range sorted {
		switch row, ok := all[id]; {
		case !ok:
			out.refuse(id, RefusedNotFound)
		case !row.open:
			out.refuse(id, RefusedState)
		default:
			out.Changed = append(out.Changed, id)
		}
	}
	if len(out.Changed) == 0 {
		return out, nil
	}
	if _, err := tx.Exec(ctx, sqlDiscardPoison, rawIDs(out.Changed), by.ID, by.Reason); err != nil {
		return Outcome{}, fmt.Errorf("discard poison: %w", err)
	}
	return out, nil
}

func lockPoison(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, by Actor) (map[uuid.UUID]parked, []uuid.UUID, error) {
	if err := by.validate(); err != nil {
		return nil, nil, err
	}
	sorted, err := sortedIDs(ids)
	if err != nil {
		return nil, nil, err
	}
	rows, err := tx.Query(ctx, sqlLockPoison, rawIDs(sorted))
	if err != nil {
		return nil, nil, fmt.Errorf("lock poison: %w", err)
	}
	all := map[uuid.UUID]parked{}
	locked, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (parked, error) {
		var r parked
		err := row.Scan(&r.id, &r.kind, &r.owner, &r.open, &r.raw, &r.size, &r.lastEntry)
		return r, err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("lock poison: %w", err)
	}
	for _, r := range locked {
		all[r.id] = r
	}
	return all, sorted, nil
}
