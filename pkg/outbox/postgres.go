// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/failpoint"
)

// PostgresOptions configures a Postgres store. The zero value works.
type PostgresOptions struct {
	// FullScan is how often a claim looks from the start instead of from its
	// low-water mark, and so finds what was requeued or sent again. Default 5 s.
	FullScan time.Duration
	// Unnumbered is for an outbox that no Sealer numbers: claims then go by append_no.
	Unnumbered bool
	// Trail is how far behind the low-water mark stays in an Unnumbered outbox,
	// where a slow transaction may still commit below it. Default 10 s.
	Trail time.Duration
	// Now is this process's clock, for FullScan and Trail alone. Default time.Now.
	Now func() time.Time
}

// Postgres is the store over audit_outbox. It is safe for concurrent use; one
// process should share one, since its low-water mark makes claims cheap.
type Postgres struct {
	db *pgxpool.Pool
	o  PostgresOptions

	mu  sync.Mutex
	low lowWater
}

var _ Store = (*Postgres)(nil)

// NewPostgres returns the store over audit_outbox in db. It does no I/O.
func NewPostgres(db *pgxpool.Pool, o PostgresOptions) *Postgres {
	o.FullScan = defaulted(o.FullScan, 5*time.Second)
	o.Trail = defaulted(o.Trail, 10*time.Second)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Postgres{db: db, o: o}
}

// lowWater is a place below which nothing was open when last looked. A place
// below it can open again (a requeue), so a scan from 0 follows now and then.
type lowWater struct {
	mark    int64
	full    time.Time // of the last scan from 0
	next    int64     // becomes mark after a trail
	nextSet time.Time
}

// start returns the place to claim from.
func (l *lowWater) start(now time.Time, every time.Duration) int64 {
	if now.Sub(l.full) >= every {
		l.full = now
		return 0
	}
	return l.mark
}

// saw takes note of what a claim from a place found: the lowest open place (0: none
// is open, and it is not known what is done) and the highest place claimed.
func (l *lowWater) saw(from, lowest, claimed int64, now time.Time, trail time.Duration) {
	place := lowest - 1
	if lowest == 0 {
		place = claimed
	}
	if from == 0 && lowest != 0 && place < l.mark {
		l.mark, l.next = place, 0 // what was done is open again
	}
	if trail == 0 {
		l.mark = max(l.mark, place)
		return
	}
	if l.next != 0 && now.Sub(l.nextSet) >= trail {
		l.mark, l.next = max(l.mark, l.next), 0
	}
	if l.next == 0 && place > l.mark {
		l.next, l.nextSet = place, now
	}
}

// Claim implements Store: one round trip, committed without waiting for the disk.
func (p *Postgres) Claim(ctx context.Context, req ClaimRequest) (Page, error) {
	lowestSQL, claimSQL, trail := sqlLowestNumber, sqlClaimNumbered, time.Duration(0)
	if p.o.Unnumbered {
		lowestSQL, claimSQL, trail = sqlLowestAppendNo, sqlClaimUnnumbered, p.o.Trail
	}
	p.mu.Lock()
	from := p.low.start(p.o.Now(), p.o.FullScan)
	p.mu.Unlock()

	var lowest int64
	var msgs []Message
	err := roundTrip(ctx, p.db, func(b *pgx.Batch) {
		b.Queue(lowestSQL, from).QueryRow(func(row pgx.Row) error { return row.Scan(&lowest) })
		b.Queue(claimSQL, from, req.Rows, req.Bytes, req.Owner, req.Token, req.Lease.Microseconds(), req.AloneAfter, req.Except).
			Query(func(rows pgx.Rows) error {
				var err error
				msgs, err = scanMessages(rows)
				return err
			})
	})
	if err != nil {
		return Page{}, fmt.Errorf("claim: %w", err)
	}
	place := func(m Message) int64 { return cmp.Or(m.LedgerSeq, m.AppendNo) }
	slices.SortFunc(msgs, func(a, b Message) int { return cmp.Compare(place(a), place(b)) })
	claimed := int64(0)
	if n := len(msgs); n > 0 {
		claimed = place(msgs[n-1])
		failpoint.Hit(failpoint.OutboxClaimed)
	}
	p.mu.Lock()
	p.low.saw(from, lowest, claimed, p.o.Now(), trail)
	p.mu.Unlock()
	return Page{Token: req.Token, Messages: msgs, Alone: len(msgs) == 1 && msgs[0].ClaimCount > req.AloneAfter}, nil
}

func scanMessages(rows pgx.Rows) ([]Message, error) {
	var msgs []Message
	for rows.Next() {
		var m Message
		var ledgerID *uuid.UUID
		var ledgerSeq *int64
		var failed *time.Time
		if err := rows.Scan(&m.EventID, &m.AppendNo, &m.EventType, &m.SchemaVersion, &m.Payload, &m.Traceparent, &m.Tracestate,
			&m.Status, &m.MaxAttempts, &ledgerID, &ledgerSeq, &m.Attempts, &m.ClaimCount, &failed); err != nil {
			return nil, err
		}
		m.LedgerID, m.LedgerSeq, m.LastErrorAt = value(ledgerID), value(ledgerSeq), value(failed)
		msgs = append(msgs, m)
	}
	return msgs, rows.Err()
}

// value returns *p, or the zero value for null.
func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// Renew implements Store.
func (p *Postgres) Renew(ctx context.Context, token uuid.UUID, ids []uuid.UUID, lease time.Duration) (int, error) {
	held := int64(0)
	err := roundTrip(ctx, p.db, func(b *pgx.Batch) {
		b.Queue(sqlRenew, token, raw(ids), lease.Microseconds()).Exec(count(&held))
	})
	if err != nil {
		return 0, fmt.Errorf("renew: %w", err)
	}
	return int(held), nil
}

// Release implements Store.
func (p *Postgres) Release(ctx context.Context, token uuid.UUID, ids []uuid.UUID) (int, error) {
	held := int64(0)
	err := roundTrip(ctx, p.db, func(b *pgx.Batch) {
		b.Queue(sqlRelease, token, raw(ids)).Exec(count(&held))
	})
	if err != nil {
		return 0, fmt.Errorf("release: %w", err)
	}
	return int(held), nil
}

// Settle implements Store: one statement for the page and its history.
func (p *Postgres) Settle(ctx context.Context, token uuid.UUID, outcomes []Outcome) (Settled, error) {
	if err := CheckOutcomes(outcomes); err != nil {
		return Settled{}, err
	}
	var s Settled
	sql, args := settleStatement(token, outcomes)
	err := roundTrip(ctx, p.db, func(b *pgx.Batch) {
		if sql == sqlSettle {
			b.Queue(sqlByHash)
		}
		b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(&s.Count, &s.Time, &s.Kept) })
	})
	if err != nil {
		return Settled{}, fmt.Errorf("settle: %w", err)
	}
	failpoint.Hit(failpoint.OutboxSettled)
	return s, nil
}

func settleStatement(token uuid.UUID, outcomes []Outcome) (sql string, args []any) {
	outcomes = slices.SortedFunc(slices.Values(outcomes), func(a, b Outcome) int { return bytes.Compare(a.EventID[:], b.EventID[:]) })
	n := len(outcomes)
	ids, records := make([][16]byte, n), make([]*string, n)
	plain := n > 0
	for i := range outcomes {
		o := &outcomes[i]
		ids[i], records[i] = o.EventID, null(&o.RecordID)
		plain = plain && *o == Outcome{
			EventID: o.EventID, From: StatusPending, To: StatusDelivered, Provider: outcomes[0].Provider, RecordID: o.RecordID,
		}
	}
	if plain {
		return sqlDelivered, []any{token, ids, records, null(&outcomes[0].Provider)}
	}
	was, status, delays := make([]string, n), make([]string, n), make([]*int64, n)
	attempts, keep := make([]int32, n), make([]bool, n)
	codes, reasons, providers := make([]*string, n), make([]*string, n), make([]*string, n)
	for i := range outcomes {
		o := &outcomes[i]
		was[i], status[i] = string(o.From), string(o.To)
		if o.To == StatusDeferred || o.To == StatusRetryableFailure {
			us := o.Delay.Microseconds()
			delays[i] = &us
		}
		if o.UsesAttempt {
			attempts[i] = 1
		}
		keep[i] = o.KeepClaimCount
		codes[i], reasons[i], providers[i] = null(&o.Code), null(&o.Reason), null(&o.Provider)
	}
	return sqlSettle, []any{token, ids, was, status, delays, attempts, keep, codes, reasons, providers, records}
}

// null returns s, or nil for empty text.
func null(s *string) *string {
	if *s == "" {
		return nil
	}
	return s
}

// raw returns ids in the form that pgx encodes fastest.
func raw(ids []uuid.UUID) [][16]byte {
	out := make([][16]byte, len(ids))
	for i, id := range ids {
		out[i] = id
	}
	return out
}

// MakeDeferredDue implements Store.
func (p *Postgres) MakeDeferredDue(ctx context.Context) (int, error) {
	due := int64(0)
	err := roundTrip(ctx, p.db, func(b *pgx.Batch) { b.Queue(sqlMakeDeferredDue).Exec(count(&due)) })
	if err != nil {
		return 0, fmt.Errorf("make deferred entries due: %w", err)
	}
	return int(due), nil
}
