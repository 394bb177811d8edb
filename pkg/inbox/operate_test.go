// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Every operator verb leaves exactly one state, and refuses the others (U67).
func TestVerbsLeaveOneStateAndRefuseTheOthers(t *testing.T) {
	t.Parallel()
	requeue := func(p *inbox.Postgres, tx pgx.Tx, id uuid.UUID) (inbox.Outcome, error) {
		return p.Requeue(context.Background(), tx, "log", []uuid.UUID{id})
	}
	replay := func(p *inbox.Postgres, tx pgx.Tx, id uuid.UUID) (inbox.Outcome, error) {
		return p.Replay(context.Background(), tx, "log", []uuid.UUID{id})
	}
	for name, c := range map[string]struct {
		verb func(*inbox.Postgres, pgx.Tx, uuid.UUID) (inbox.Outcome, error)
		from inbox.State
	}{"requeue": {requeue, inbox.Dead}, "replay": {replay, inbox.Processed}} {
		for _, state := range []inbox.State{inbox.Pending, inbox.Processing, inbox.Processed, inbox.Dead} {
			t.Run(name+" from "+string(state), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				id := b.deliver(1)[0]
				b.force(id, state)
				out := in(b, func(tx pgx.Tx) (inbox.Outcome, error) { return c.verb(b.operations("log"), tx, id) })
				want := state
				if state == c.from {
					want = inbox.Pending
					b.want("fresh rows", b.count(`SELECT count(*) FROM consumer_inbox WHERE attempts = 0 AND next_retry_at <= clock_timestamp() AND last_error_code = 'test.old'`), 1)
				} else if len(out.Refused) != 1 || out.Refused[0].Reason != inbox.RefusedState {
					t.Errorf("outcome %+v", out)
				}
				b.want("changed", len(out.Changed), map[bool]int{true: 1, false: 0}[state == c.from])
				inboxtest.RequireState(t, b.db.Service, "log", id, want)
			})
		}
	}
}

// The consumer's statements leave PROCESSING only, under their token; every other pair is refused (U67).
func TestSettlesLeaveProcessingOnly(t *testing.T) {
	t.Parallel()
	for _, state := range []inbox.State{inbox.Pending, inbox.Processed, inbox.Dead, inbox.Processing} {
		for name, result := range map[string]error{"finish": nil, "fail": errBoom, "die": inbox.Permanent("test.no", nil)} {
			t.Run(name+" after "+string(state), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				id := b.deliver(1)[0]
				c := b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error {
					b.force(id, state) // someone else's doing; PROCESSING under another token
					return result
				})
				b.want("processed", b.once(c), 0)
				inboxtest.RequireState(t, b.db.Service, "log", id, state)
				b.want("lost fences", int(c.Stats().LostFences), 1)
			})
		}
	}
}

// force puts a row into a state by hand.
func (b *bundle) force(id uuid.UUID, state inbox.State) {
	b.t.Helper()
	b.exec(`UPDATE consumer_inbox SET state = $2::text, attempts = 3, last_error_code = 'test.old',
		lease_owner = CASE WHEN $2 = 'PROCESSING' THEN 'x' END, lease_token = CASE WHEN $2 = 'PROCESSING' THEN gen_random_uuid() END,
		lease_expires_at = CASE WHEN $2 = 'PROCESSING' THEN now() + interval '1 hour' END,
		next_retry_at = now() + interval '1 hour',
		finished_at = CASE WHEN $2 IN ('PROCESSED', 'DEAD') THEN now() END, dead_at = CASE WHEN $2 = 'DEAD' THEN now() END
		WHERE event_id = $1`, id, string(state))
}

// A replayed event runs the handler again and changes nothing (U51); the caller's rollback undoes a replay.
func TestAReplayRunsTheHandlerAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.deliver(3)
	c := b.consumer(record)
	b.once(c)
	p := b.operations("log")
	err := pgx.BeginFunc(t.Context(), b.db.Service, func(tx pgx.Tx) error {
		if _, err := p.Replay(t.Context(), tx, "log", ids); err != nil {
			return err
		}
		return errBoom
	})
	if !errors.Is(err, errBoom) || b.once(c) != 0 {
		t.Fatalf("a replay that was rolled back has an effect: %v", err)
	}
	out := in(b, func(tx pgx.Tx) (inbox.Outcome, error) {
		return p.Replay(t.Context(), tx, "log", append([]uuid.UUID{uuid.New()}, ids[:2]...))
	})
	if len(out.Changed) != 2 || len(out.Refused) != 1 || out.Refused[0].Reason != inbox.RefusedNotFound {
		t.Fatalf("outcome %+v", out)
	}
	b.want("processed again", b.once(c), 2)
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 3)
}

// Five terminals requeue one dead item at once: one changes it, and its effect happens once (BC-62).
func TestFiveRequeuesAtOnceHaveOneEffect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.deliver(1)[0]
	b.once(b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { return inbox.Permanent("test.no", nil) }))
	var runs, changed atomic.Int64
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		runs.Add(1)
		return record(ctx, tx, batch)
	})
	p := b.operations("log")
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			out := in(b, func(tx pgx.Tx) (inbox.Outcome, error) { return p.Requeue(t.Context(), tx, "log", []uuid.UUID{id}) })
			changed.Add(int64(len(out.Changed)))
		})
	}
	wg.Wait()
	b.once(c)
	b.want("requeues that changed it", int(changed.Load()), 1)
	b.want("runs", int(runs.Load()), 1)
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 1)
}

// A requeue while the cause persists ends in DEAD again, with the history right (BC-62).
func TestARequeueWhileTheCausePersists(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.deliver(1)[0]
	c := b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { return errBoom }, func(o *inbox.ConsumerOptions) { o.MaxAttempts = 1 })
	b.once(c)
	for range 2 {
		in(b, func(tx pgx.Tx) (inbox.Outcome, error) {
			return b.operations("log").Requeue(t.Context(), tx, "log", []uuid.UUID{id})
		})
		b.once(c)
		row, err := b.operations("log").Get(t.Context(), "log", id)
		if err != nil || row.State != inbox.Dead || row.Attempts != 1 {
			t.Fatalf("row %+v, %v", row, err)
		}
	}
}

// A v2 event with a v1 receiver is parked; after the upgrade it is replayed once, however many ask (T17, U83, BC-62).
func TestParkedEventsAreReplayedAfterAnUpgrade(t *testing.T) {
	t.Parallel()
	b := setup(t)
	v2 := b.seal(func(e *auditv1.AuditEvent) { e.SchemaVersion = 2 })
	b.stream.Add(inboxtest.Values(v2), inboxtest.Values(b.seal()))
	b.take(b.bridge("a"))
	before := b.operations("log")
	poison, err := before.ListPoison(t.Context(), inbox.PoisonFilter{State: inbox.PoisonOpen}, inbox.PoisonCursor{}, 10)
	if err != nil || len(poison) != 1 {
		t.Fatalf("poison %+v, %v", poison, err)
	}
	ids, by := []uuid.UUID{poison[0].ID}, inbox.Actor{ID: "users/1", Reason: "upgraded"}
	out := in(b, func(tx pgx.Tx) (inbox.Outcome, error) { return before.ReplayPoison(t.Context(), tx, ids, by) })
	if len(out.Changed) != 0 || out.Refused[0].Reason != inbox.RefusedUnusable || out.Refused[0].Detail != inbox.ReasonVersionUnknown {
		t.Fatalf("before the upgrade: %+v", out)
	}
	upgraded, err := inbox.NewPostgres(b.db.Service, inbox.Catalog{Subscriptions: []inbox.Subscription{{Consumer: "log"}}})
	if err != nil {
		t.Fatal(err)
	}
	var changed atomic.Int64
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			out := in(b, func(tx pgx.Tx) (inbox.Outcome, error) { return upgraded.ReplayPoison(t.Context(), tx, ids, by) })
			changed.Add(int64(len(out.Changed)))
		})
	}
	wg.Wait()
	b.want("replays that changed it", int(changed.Load()), 1)
	b.want("processed", b.once(b.consumer(record)), 2)
	got, err := upgraded.GetPoison(t.Context(), ids[0])
	if err != nil || got.State != inbox.PoisonResolved || got.DecidedBy != by.ID || got.Decision != by.Reason {
		t.Fatalf("poison %+v, %v", got, err)
	}
	fields, err := inbox.DecodeFields(got.RawFields)
	if err != nil || !bytes.Equal(fields["payload"], v2.Payload) {
		t.Fatalf("raw fields %v, %v", fields, err)
	}
	var payload []byte
	if err := b.db.Super.QueryRow(t.Context(), `SELECT payload FROM inbox_events WHERE event_id = $1`, v2.EventID).Scan(&payload); err != nil || !bytes.Equal(payload, v2.Payload) {
		t.Errorf("the payload was changed on the way (%v)", err)
	}
	b.want("numbers", b.count(`SELECT count(*) FROM ledger_entries`), 2)
}

// Forged and conflicting poison can only be discarded, with an actor and a reason, and stays as evidence (U77, F30).
func TestOnlyParkedPoisonIsReplayedAndNothingIsDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.seal()
	forged := inboxtest.Values(e)
	forged["mac"] = strings.Repeat("f", 32)
	conflict := inboxtest.Sealed(t, b.keys, inboxtest.NewEvent(t, "auth", "user.updated"), e.LedgerID, e.LedgerSeq)
	b.stream.Add(inboxtest.Values(e), forged, inboxtest.Values(conflict))
	b.take(b.bridge("a"))
	p := b.operations("log")
	poison, err := p.ListPoison(t.Context(), inbox.PoisonFilter{}, inbox.PoisonCursor{}, 10)
	if err != nil || len(poison) != 2 {
		t.Fatalf("poison %+v, %v", poison, err)
	}
	ids, by := []uuid.UUID{poison[0].ID, poison[1].ID}, inbox.Actor{ID: "users/1", Reason: "seen"}
	for name, bad := range map[string]inbox.Actor{
		"no reason": {ID: "users/1"}, "a blank one": {ID: "users/1", Reason: "  "},
		"no actor": {Reason: "x"}, "a long one": {ID: "users/1", Reason: strings.Repeat("x", 513)}, "NUL": {ID: "users/1", Reason: "a\x00"},
	} {
		if err := pgx.BeginFunc(t.Context(), b.db.Service, func(tx pgx.Tx) error {
			_, err := p.DiscardPoison(t.Context(), tx, ids, bad)
			return err
		}); !errors.Is(err, inbox.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	out := in(b, func(tx pgx.Tx) (inbox.Outcome, error) { return p.ReplayPoison(t.Context(), tx, ids, by) })
	if len(out.Changed) != 0 || len(out.Refused) != 2 || out.Refused[0].Reason != inbox.RefusedKind {
		t.Fatalf("replay %+v", out)
	}
	out = in(b, func(tx pgx.Tx) (inbox.Outcome, error) { return p.DiscardPoison(t.Context(), tx, ids, by) })
	b.want("discarded", len(out.Changed), 2)
	out = in(b, func(tx pgx.Tx) (inbox.Outcome, error) { return p.DiscardPoison(t.Context(), tx, ids, by) })
	b.want("discarded twice", len(out.Changed), 0)
	if _, err := b.db.Super.Exec(t.Context(), `DELETE FROM inbox_poison`); err == nil {
		t.Error("poison can be deleted")
	}
	// It comes again: counted, and still discarded.
	b.stream.Add(forged)
	b.take(b.bridge("a"))
	b.want("open poison", b.count(`SELECT count(*) FROM inbox_poison WHERE discarded_at IS NULL`), 0)
	b.want("copies", b.count(`SELECT max(seen_count) FROM inbox_poison`), 2)
}

// Bytes over 1 MiB are cut with their size kept, and cannot be replayed; parked events of any allowed size can.
func TestRawFieldsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stream.Add(map[string]any{"payload": strings.Repeat("x", 3<<20)})
	big := b.seal()
	big.Payload = bytes.Repeat([]byte{0xff}, 1<<20) // the largest that the contract allows
	b.stream.Add(inboxtest.Values(b.resign(big)))
	b.take(b.bridge("a"))
	b.want("cut to 1 MiB", b.count(`SELECT count(*) FROM inbox_poison WHERE octet_length(raw_fields) = 1048576 AND raw_size > 3 * 1048576`), 1)
	b.want("kept whole", b.count(`SELECT count(*) FROM inbox_poison WHERE kind = 'PARKED' AND octet_length(raw_fields) = raw_size`), 1)
}

func TestStatusCountsByStateAndAge(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.deliver(6)
	b.force(ids[0], inbox.Dead)
	b.force(ids[1], inbox.Processing)
	b.force(ids[2], inbox.Processed)
	b.exec(`UPDATE consumer_inbox SET received_at = now() - interval '1 hour', attempts = 2 WHERE event_id = $1`, ids[3])
	b.exec(`UPDATE consumer_inbox SET received_at = now() - interval '2 hours' WHERE event_id = $1`, ids[4])
	b.exec(`UPDATE consumer_inbox SET next_retry_at = now() - interval '3 minutes' WHERE event_id = $1`, ids[1])
	b.stream.Add(map[string]any{"x": "y"})
	b.take(b.bridge("a"))
	s, err := b.operations("log", "quiet").Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Consumers) != 2 || s.Consumers[1].Consumer != "quiet" || s.Consumers[1].Pending != 0 {
		t.Fatalf("consumers %+v", s.Consumers)
	}
	c := s.Consumers[0]
	if c.Pending != 3 || c.Processing != 1 || c.Dead != 1 || c.DeadByCode["test.old"] != 1 {
		t.Errorf("depths %+v", c)
	}
	for what, d := range map[string][2]time.Duration{
		"pending": {c.OldestPendingAge, 2 * time.Hour}, "lease": {c.OldestLeaseAge, 3 * time.Minute}, "retry": {c.OldestRetryAge, time.Hour},
	} {
		if d[0] < d[1] || d[0] > d[1]+time.Minute {
			t.Errorf("oldest %s age is %v, want %v", what, d[0], d[1])
		}
	}
	if len(s.Poison) != 1 || s.Poison[0].Kind != inbox.Forged || s.Poison[0].Reason != inbox.ReasonFieldMissing || s.Poison[0].Count != 1 {
		t.Errorf("poison %+v", s.Poison)
	}
	if len(s.Streams) != 1 || s.Streams[0].Stream == "" || s.Streams[0].TakenOver != 6 || s.Streams[0].LastEntryID == "" {
		t.Errorf("streams %+v", s.Streams)
	}
}

// The stream may look consumed while the inbox is stalled: a consumer that always fails, or hangs, shows (U88, U89).
func TestAStalledConsumerShowsInStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	hang := make(chan struct{})
	stop := b.run(b.consumer(func(ctx context.Context, _ pgx.Tx, _ []inbox.Event) error {
		select {
		case <-hang:
		case <-ctx.Done():
		}
		return ctx.Err()
	}, func(o *inbox.ConsumerOptions) { o.Budget, o.IdleTimeout, o.Lease = time.Hour, 2*time.Hour, 3*time.Hour }).Run)
	p := b.operations("log")
	status := func() inbox.ConsumerStatus {
		s, err := p.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Consumers[0]
	}
	eventually(t, 10*time.Second, func() error {
		if status().OldestLeaseAge < 300*time.Millisecond {
			return errors.New("the lease age does not rise")
		}
		return nil
	})
	stop()
	eventually(t, 10*time.Second, func() error {
		if status().OldestPendingAge < 500*time.Millisecond {
			return errors.New("the pending age does not rise")
		}
		return nil
	})
	b.run(b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { return errBoom }).Run)
	eventually(t, 10*time.Second, func() error {
		if s := status(); s.OldestRetryAge < 500*time.Millisecond && s.Dead == 0 {
			return errors.New("the retry age does not rise")
		}
		return nil
	})
}

func TestListPagesNeitherSkipNorRepeat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(25)
	b.take(b.bridge("a")) // 50 rows
	p := b.operations("log")
	seen := map[string]bool{}
	var cursor inbox.RowCursor
	for {
		rows, err := p.List(t.Context(), inbox.Filter{State: inbox.Pending, Owner: "auth"}, cursor, 7)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			break
		}
		for _, r := range rows {
			key := r.Consumer + r.EventID.String()
			if seen[key] || r.EventType != "auth.user.updated.v1" || r.LedgerSeq == 0 || r.NextRetryAt.IsZero() {
				t.Errorf("row %+v", r)
			}
			seen[key] = true
		}
		cursor = rows[len(rows)-1].Cursor()
	}
	b.want("rows seen", len(seen), 50)
	if _, err := p.List(t.Context(), inbox.Filter{}, inbox.RowCursor{}, 1001); !errors.Is(err, inbox.ErrInvalid) {
		t.Errorf("a page of 1001: %v", err)
	}
	if _, err := p.Get(t.Context(), "log", uuid.New()); !errors.Is(err, inbox.ErrNotFound) {
		t.Errorf("Get = %v", err)
	}
	if rows, err := p.List(t.Context(), inbox.Filter{State: inbox.Dead}, inbox.RowCursor{}, 10); err != nil || len(rows) != 0 {
		t.Errorf("dead rows %v, %v", rows, err)
	}
}

func TestPoisonPagesNeitherSkipNorRepeat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 20 {
		b.stream.Add(map[string]any{"n": strings.Repeat("n", i+1)})
	}
	b.take(b.bridge("a"))
	p := b.operations("log")
	seen := map[uuid.UUID]bool{}
	var cursor inbox.PoisonCursor
	for {
		page, err := p.ListPoison(t.Context(), inbox.PoisonFilter{Kind: inbox.Forged, State: inbox.PoisonOpen}, cursor, 6)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, r := range page {
			if seen[r.ID] {
				t.Errorf("%s is there twice", r.ID)
			}
			seen[r.ID] = true
		}
		cursor = page[len(page)-1].Cursor()
	}
	b.want("poison seen", len(seen), 20)
}

// Retention removes PROCESSED rows past their age and the content that nobody needs, nothing else (U82, F15).
func TestPruneRemovesOnlyOldProcessedRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(8)
	b.take(b.bridge("a"))
	b.once(b.consumer(record))
	ids := b.eventIDs()
	b.exec(`UPDATE consumer_inbox SET finished_at = now() - interval '8 days' WHERE consumer = 'log' AND event_id = ANY ($1)`, ids[:6])
	b.force(ids[0], inbox.Dead) // both consumers'
	b.exec(`UPDATE consumer_inbox SET state = 'PROCESSED', finished_at = now() - interval '8 days' WHERE consumer = 'alerts' AND event_id = $1`, ids[1])
	p := b.operations("log")
	n, err := p.Prune(t.Context(), 7*24*time.Hour, 3)
	if err != nil || n != 3 {
		t.Fatalf("pruned %d, %v, want 3", n, err)
	}
	if n, err = p.Prune(t.Context(), 7*24*time.Hour, 100); err != nil || n != 3 {
		t.Fatalf("pruned %d, %v, want the other 3", n, err)
	}
	b.want("rows left", b.count(`SELECT count(*) FROM consumer_inbox`), 10)
	b.want("events left: all but the one that both consumers finished", b.count(`SELECT count(*) FROM inbox_events`), 7)
	b.want("numbers left", b.count(`SELECT count(*) FROM ledger_entries`), 8)
	if _, err := p.Prune(t.Context(), time.Minute, 10); err == nil {
		t.Error("an age of a minute is accepted")
	}
}

func (b *bundle) eventIDs() []uuid.UUID {
	b.t.Helper()
	rows, err := b.db.Super.Query(b.t.Context(), `SELECT event_id FROM inbox_events ORDER BY ledger_seq`)
	if err != nil {
		b.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		b.t.Fatal(err)
	}
	return ids
}

func TestArgumentsOfVerbsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.operations("log")
	err := pgx.BeginFunc(t.Context(), b.db.Service, func(tx pgx.Tx) error {
		_, err := p.Requeue(t.Context(), tx, "log", make([]uuid.UUID, 1001))
		return err
	})
	if !errors.Is(err, inbox.ErrInvalid) {
		t.Errorf("1001 ids: %v", err)
	}
	err = pgx.BeginFunc(t.Context(), b.db.Service, func(tx pgx.Tx) error {
		_, err := p.Replay(t.Context(), tx, "log", nil)
		return err
	})
	if !errors.Is(err, inbox.ErrInvalid) {
		t.Errorf("no ids: %v", err)
	}
}

func TestTheMigratedSchemaPasses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := inbox.CheckSchema(t.Context(), b.db.Service); err != nil {
		t.Error(err)
	}
	b.exec(`ALTER TABLE inbox_events RENAME COLUMN payload TO body`)
	if err := inbox.CheckSchema(t.Context(), b.db.Service); err == nil || !strings.Contains(err.Error(), "inbox_events.payload") {
		t.Errorf("CheckSchema = %v, want the missing column named", err)
	}
	b.exec(`ALTER TABLE inbox_events RENAME COLUMN body TO payload; DROP INDEX consumer_inbox_open_idx, ledger_entries_event_idx`)
	err := inbox.CheckSchema(t.Context(), b.db.Service)
	for _, name := range []string{"consumer_inbox_open_idx", "ledger_entries_event_idx"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("CheckSchema = %v, want the index %s named", err, name)
		}
	}
}
