// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/pkg/envelope"
)

// takeOver commits a page: the one transaction after which its events are the receiver's. The
// verdicts of the page are final in it, since it begins by locking the owner's position.
func (b *Bridge) takeOver(ctx context.Context, entries []Entry) (Takeover, error) {
	t, err := b.tryTakeOver(ctx, entries, sqlInsertInboxNew)
	if errors.Is(err, errNoPosition) { // the database was set back to before this owner was known
		if err := b.makePosition(ctx); err != nil {
			return t, err
		}
		t, err = b.tryTakeOver(ctx, entries, sqlInsertInboxNew)
	}
	if isUnique(err) {
		// Another owner's takeover wrote an id of this page meanwhile, or a row is there without its number.
		return b.tryTakeOver(ctx, entries, sqlInsertInbox)
	}
	return t, err
}

var errNoPosition = errors.New("inbox: ledger_positions has no row of this owner")

// makePosition makes the row that takeovers lock, if it is not there.
func (b *Bridge) makePosition(ctx context.Context) error {
	err := oneTrip(ctx, b.o.DB, b.settings, func(batch *pgx.Batch) { batch.Queue(sqlMakePosition, b.o.Owner, b.o.Stream) })
	if err != nil {
		return fmt.Errorf("make the position row: %w", err)
	}
	return nil
}

func isUnique(err error) bool {
	var p *pgconn.PgError
	return errors.As(err, &p) && p.Code == "23505"
}

func (b *Bridge) tryTakeOver(ctx context.Context, entries []Entry, insertInbox string) (Takeover, error) {
	page := b.checkAll(entries)
	var t Takeover
	err := onConn(ctx, b.o.DB, func(conn *pgxpool.Conn) error {
		r, err := b.lookUp(ctx, conn, page)
		if err != nil {
			return err
		}
		r.decide(b.o.Owner, page)
		t = b.tally(page)
		for i := range page {
			if page[i].verdict == isCheckpoint && b.o.Checkpoint != nil {
				if err := b.o.Checkpoint(ctx, conn, page[i].env); err != nil {
					return fmt.Errorf("checkpoint: %w", err)
				}
			}
		}
		return b.store(ctx, conn, page, t, r.at, insertInbox)
	})
	if err != nil {
		return t, err
	}
	for i := range page {
		if v := page[i].verdict; v == isEvent || v == isRenumbered {
			b.ownLedgers[page[i].env.LedgerID] = true // it has a number of this owner, and always will
		}
	}
	failpoint.Hit(failpoint.InboxTakenOver)
	b.wake(page)
	return t, nil
}

// checkAll checks a page, on every processor if it is long.
func (b *Bridge) checkAll(entries []Entry) []checked {
	page := make([]checked, len(entries))
	part := max(len(entries)/runtime.GOMAXPROCS(0)+1, 64)
	var parts sync.WaitGroup
	for from := 0; from < len(entries); from += part {
		parts.Go(func() {
			for i := from; i < min(from+part, len(entries)); i++ {
				page[i] = b.check(entries[i])
			}
		})
	}
	parts.Wait()
	return page
}

// tally counts a page's verdicts.
func (b *Bridge) tally(page []checked) Takeover {
	t := Takeover{Owner: b.o.Owner, Stream: b.o.Stream, PoisonReasons: map[string]int64{}}
	for i := range page {
		c := &page[i]
		t.LastEntryID = laterID(t.LastEntryID, c.entryID)
		switch c.verdict {
		case isEvent:
			if c.reason != "" {
				t.Parked++
			} else {
				t.Received++
			}
		case isForged:
			t.Forged++
		case isCheckpoint:
			t.Checkpoints++
		case isDuplicate:
			t.Duplicates++
		case isRenumbered:
			t.Renumbered++
		case isConflict:
			t.Conflicts++
		}
		if _, ok := c.poison(); ok {
			t.PoisonReasons[c.reason]++
		}
	}
	return t
}

// lookUp begins the transaction, locks the owner's position and reads, in statements after it, what is
// on record.
func (b *Bridge) lookUp(ctx context.Context, conn *pgxpool.Conn, page []checked) (record, error) {
	r := record{byNumber: map[numbered]held{}, byEvent: map[uuid.UUID]held{}, foreign: map[uuid.UUID]bool{}}
	asked := newNumbers(page)
	var unknown []uuid.UUID
	for id := range asked.ledgers {
		if !b.ownLedgers[id] {
			unknown = append(unknown, id)
		}
	}
	var batch pgx.Batch
	batch.Queue(sqlBegin)
	batch.Queue(b.settings)
	locked := false
	batch.Queue(sqlLockPosition, b.o.Owner).QueryRow(func(row pgx.Row) error {
		var last string
		err := row.Scan(&last)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		locked = err == nil
		return err
	})
	if len(asked.events) > 0 {
		batch.Queue(sqlHeldEvents, asked.events).Query(r.scan)
	}
	for id, span := range asked.ledgers {
		if span.dense() {
			batch.Queue(sqlHeldRange, [16]byte(id), span.first, span.last).Query(r.scan)
		} else {
			batch.Queue(sqlHeldNumbers, [16]byte(id), span.seqs).Query(r.scan)
		}
	}
	for _, id := range unknown {
		batch.Queue(sqlLedgerOwner, [16]byte(id)).QueryRow(func(row pgx.Row) error {
			var owner string
			err := row.Scan(&owner)
			r.foreign[id] = err == nil && owner != b.o.Owner
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		})
	}
	if len(page) >= copyFrom {
		batch.Queue(sqlNow).QueryRow(func(row pgx.Row) error { return row.Scan(&r.at) })
	}
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return r, fmt.Errorf("lock position and look up: %w", err)
	}
	if !locked {
		return r, errNoPosition
	}
	return r, nil
}

// numbers are the events and numbers that a page asks about.
type numbers struct {
	events  [][16]byte
	ledgers map[uuid.UUID]*span
}

// span is one ledger's part of a page.
type span struct {
	seqs        []int64
	first, last int64
}

// dense says that reading everything between first and last reads little else.
func (s *span) dense() bool { return s.last-s.first < 2*int64(len(s.seqs))+64 }

func newNumbers(page []checked) numbers {
	n := numbers{ledgers: map[uuid.UUID]*span{}}
	for i := range page {
		c := &page[i]
		if c.verdict != isEvent {
			continue
		}
		n.events = append(n.events, c.env.EventID)
		s := n.ledgers[c.env.LedgerID]
		if s == nil {
			s = &span{first: c.env.LedgerSeq, last: c.env.LedgerSeq}
			n.ledgers[c.env.LedgerID] = s
		}
		s.seqs = append(s.seqs, c.env.LedgerSeq)
		s.first, s.last = min(s.first, c.env.LedgerSeq), max(s.last, c.env.LedgerSeq)
	}
	return n
}

func (r record) scan(rows pgx.Rows) error {
	for rows.Next() {
		var at numbered
		var h held
		var leaf []byte
		if err := rows.Scan(&at.ledger, &at.seq, &h.event, &leaf, &h.owner); err != nil {
			return err
		}
		copy(h.leaf[:], leaf)
		r.byNumber[at] = h
		if old, ok := r.byEvent[h.event]; !ok || old == h {
			r.byEvent[h.event] = h
		}
	}
	return rows.Err()
}

// store writes a decided page, rows in the order of event ids, and commits. Many rows are copied in,
// unless an insert into the inbox must pass over those that are there.
func (b *Bridge) store(ctx context.Context, conn *pgxpool.Conn, page []checked, t Takeover, at time.Time, insertInbox string) error {
	slices.SortStableFunc(page, func(x, y checked) int { return bytes.Compare(x.env.EventID[:], y.env.EventID[:]) })
	entries, events := taken(page), usable(page)
	var batch pgx.Batch
	if len(entries) < copyFrom || insertInbox != sqlInsertInboxNew {
		b.queueInserts(&batch, entries, events, insertInbox)
	} else if err := b.copyIn(ctx, conn, entries, events, at); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	for _, p := range collectPoison(page) {
		queuePoison(&batch, b.o, p)
	}
	batch.Queue(sqlMovePosition, b.o.Owner, b.o.Stream, t.LastEntryID, t.Received)
	batch.Queue(sqlCommit)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	return nil
}

// taken returns what gets a ledger entry.
func taken(page []checked) []*checked {
	var out []*checked
	for i := range page {
		if c := &page[i]; c.verdict == isEvent || c.verdict == isRenumbered {
			out = append(out, c)
		}
	}
	return out
}

// usable returns the new events that consumers get.
func usable(page []checked) []*checked {
	var out []*checked
	for i := range page {
		if c := &page[i]; c.verdict == isEvent && c.reason == "" {
			out = append(out, c)
		}
	}
	return out
}

func wanted(s Subscription, owner string, events []*checked) [][16]byte {
	var ids [][16]byte
	for _, c := range events {
		if s.Wants == nil || s.Wants(owner, c.env.EventType) {
			ids = append(ids, c.env.EventID)
		}
	}
	return ids
}

// queueInserts queues the rows of a page, a statement for each table and consumer.
func (b *Bridge) queueInserts(batch *pgx.Batch, entries, events []*checked, insertInbox string) {
	if n := len(entries); n > 0 {
		ledgers, seqs, ids, leaves := make([][16]byte, n), make([]int64, n), make([][16]byte, n), make([][]byte, n)
		for i, c := range entries {
			ledgers[i], seqs[i], ids[i], leaves[i] = c.env.LedgerID, c.env.LedgerSeq, c.env.EventID, c.leaf[:]
		}
		batch.Queue(sqlInsertLedger, ledgers, seqs, ids, leaves, b.o.Owner)
	}
	queueEvents(batch, b.o.Owner, events)
	for _, s := range b.o.Catalog.Subscriptions {
		if ids := wanted(s, b.o.Owner, events); len(ids) > 0 {
			batch.Queue(insertInbox, ids, s.Consumer)
		}
	}
}

// queueEvents queues the insert of the events' content.
func queueEvents(batch *pgx.Batch, owner string, events []*checked) {
	n := len(events)
	if n == 0 {
		return
	}
	ids, ledgers := make([][16]byte, n), make([][16]byte, n)
	seqs, versions := make([]int64, n), make([]int32, n)
	types, entries, parents, states := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	payloads := make([][]byte, n)
	for i, c := range events {
		ids[i], ledgers[i], seqs[i], versions[i] = c.env.EventID, c.env.LedgerID, c.env.LedgerSeq, c.env.SchemaVersion
		types[i], entries[i], parents[i], states[i] = c.env.EventType, c.entryID, c.env.Traceparent, c.env.Tracestate
		payloads[i] = c.env.Payload
	}
	batch.Queue(sqlInsertEvents, ids, ledgers, seqs, versions, types, entries, parents, states, owner, payloads)
}

// copyFrom is how many rows make COPY pay, which needs more round trips and half the server's work.
const copyFrom = 64

// copyIn is queueInserts for many rows. Times are given, since COPY writes row by row where a default is
// a clock.
func (b *Bridge) copyIn(ctx context.Context, conn *pgxpool.Conn, entries, events []*checked, at time.Time) error {
	err := copyRows(ctx, conn, "ledger_entries", []string{"ledger_id", "ledger_seq", "event_id", "leaf_hash", "owner"},
		len(entries), func(i int) []any {
			e := &entries[i].env
			return []any{[16]byte(e.LedgerID), e.LedgerSeq, [16]byte(e.EventID), entries[i].leaf[:], b.o.Owner}
		})
	if err != nil || len(events) == 0 {
		return err
	}
	err = copyRows(ctx, conn, "inbox_events", []string{
		"event_id", "ledger_id", "ledger_seq", "received_at", "schema_version", "owner", "event_type", "entry_id", "traceparent",
		"tracestate", "payload",
	}, len(events), func(i int) []any {
		e := &events[i].env
		return []any{
			[16]byte(e.EventID), [16]byte(e.LedgerID), e.LedgerSeq, at, e.SchemaVersion, b.o.Owner, e.EventType, events[i].entryID,
			e.Traceparent, e.Tracestate, e.Payload,
		}
	})
	if err != nil {
		return err
	}
	var rows [][]any
	for _, s := range b.o.Catalog.Subscriptions {
		for _, id := range wanted(s, b.o.Owner, events) {
			rows = append(rows, []any{id, s.Consumer, at, at})
		}
	}
	return copyRows(ctx, conn, "consumer_inbox", []string{"event_id", "consumer", "received_at", "next_retry_at"},
		len(rows), func(i int) []any { return rows[i] })
}

func copyRows(ctx context.Context, conn *pgxpool.Conn, table string, columns []string, n int, row func(int) []any) error {
	_, err := conn.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromSlice(n, func(i int) ([]any, error) { return row(i), nil }))
	return err
}

// queuePoison queues one distinct content. What it says of itself is stored only as far as columns can hold it.
func queuePoison(batch *pgx.Batch, o BridgeOptions, p poisoned) {
	env := p.of.env
	var event, ledger *uuid.UUID
	var seq *int64
	if p.kind == Forged {
		if id, err := uuid.Parse(fieldText(p.of.values[envelope.FieldEventID])); err == nil {
			event = &id
		}
	} else {
		event, ledger, seq = &env.EventID, &env.LedgerID, &env.LedgerSeq
	}
	claimed, _ := p.of.values[envelope.FieldEventType].(string)
	batch.Queue(sqlInsertPoison, o.Stream, p.hash[:], string(p.kind), p.reason, o.Owner, event, ledger, seq,
		claimedText(claimed, 128), p.first, p.last, p.seen, p.raw, p.size)
}

// laterID returns the later of two entry ids, which are pairs of numbers and not texts.
func laterID(a, b string) string {
	if compareIDs(a, b) < 0 {
		return b
	}
	return a
}
