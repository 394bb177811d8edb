// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// path is an owner's whole side over a real database, with a fake broker unless a test brings one.
type path struct {
	t      *testing.T
	db     *testdb.DB
	store  *outbox.Postgres
	broker *outboxtest.Publisher
}

func newPath(t *testing.T) *path {
	t.Helper()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	return &path{t: t, db: db, store: outbox.NewPostgres(db.Service, outbox.PostgresOptions{}), broker: &outboxtest.Publisher{}}
}

// dispatcher makes one with a store and a sealer of its own, as another process would have.
func (p *path) dispatcher(change func(*outbox.DispatcherOptions)) *outbox.Dispatcher {
	return p.dispatcherOn(p.db.Service, change)
}

func (p *path) dispatcherOn(db *pgxpool.Pool, change func(*outbox.DispatcherOptions)) *outbox.Dispatcher {
	p.t.Helper()
	sealer, err := outbox.NewSealer(db, outbox.SealerOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	o := outbox.DispatcherOptions{Store: outbox.NewPostgres(db, outbox.PostgresOptions{}), Publisher: p.broker, Sealer: sealer}
	if change != nil {
		change(&o)
	}
	d, err := outbox.NewDispatcher(o)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// run runs d until the returned function is called, which waits for it; so does the end of the test.
func (p *path) run(d *outbox.Dispatcher) (stop func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("Run: %v", err)
		}
	})
	p.t.Cleanup(stop)
	return stop
}

func (p *path) depth() map[outbox.Status]int64 {
	p.t.Helper()
	s, err := p.store.Status(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return s.Depth
}

func (p *path) untilDelivered(want int64, limit time.Duration) {
	p.t.Helper()
	eventually(p.t, limit, func() error {
		if d := p.depth(); d[outbox.StatusDelivered] != want {
			return fmt.Errorf("depth %v, want %d delivered", d, want)
		}
		return nil
	})
}

func idOf(e *auditv1.AuditEvent) uuid.UUID { return uuid.MustParse(e.GetAuditId()) }

func (p *path) record(e *auditv1.AuditEvent) outbox.Record {
	p.t.Helper()
	r, _, err := p.store.Get(p.t.Context(), idOf(e))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// U20, U22, A49: several dispatchers, no copy without a fault, every row delivered under its number.
func TestDispatchersShareTheWork(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	const total = 10_000
	for range 2 {
		p.run(p.dispatcher(nil))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				appendAll(t, p.db.Service, outboxtest.Events(total/100)...)
			}
		})
	}
	wg.Wait()
	p.untilDelivered(total, 60*time.Second)
	for id, n := range p.broker.Published() {
		if n != 1 {
			t.Errorf("%v was published %d times", id, n)
		}
	}
	if err := faultsOfNumbers(t, p.db.Super); err != nil {
		t.Error(err)
	}
	published := map[int64]uuid.UUID{}
	for _, call := range p.broker.Calls() {
		if !slices.IsSortedFunc(call, func(a, b outbox.Message) int { return int(a.LedgerSeq - b.LedgerSeq) }) {
			t.Error("a page is not in number order")
		}
		for _, m := range call {
			published[m.LedgerSeq] = m.EventID
		}
	}
	if len(slices.Collect(maps.Keys(published))) != total {
		t.Errorf("%d numbers were published, want %d", len(published), total)
	}
	if n := one[int](t, p.db.Super, "SELECT count(*) FROM audit_lifecycle"); n != 0 {
		t.Errorf("%d transitions recorded for plain deliveries", n)
	}
}

// Wake moves an event at once; without it the poll does.
func TestWakeAndPoll(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	d := p.dispatcher(nil)
	p.run(d)
	appendAll(t, p.db.Service, outboxtest.Event())
	start := time.Now()
	d.Wake()
	p.untilDelivered(1, 700*time.Millisecond)
	t.Logf("woken: delivered within %v", time.Since(start))
	appendAll(t, p.db.Service, outboxtest.Event())
	p.untilDelivered(2, 5*time.Second)
}

// BC-01: an event that committed late is not skipped; BC-02: one that is not committed stops nobody.
func TestLateCommitterIsNeitherSkippedNorABarrier(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	p.run(p.dispatcher(nil))
	slow, err := p.db.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	late := outboxtest.Event()
	if err := outbox.Append(t.Context(), slow, late); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		appendAll(t, p.db.Service, outboxtest.Event())
	}
	p.untilDelivered(100, 5*time.Second)
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.untilDelivered(101, 3*time.Second)
	if r := p.record(late); r.LedgerSeq != 101 {
		t.Errorf("the late event has number %d, want 101", r.LedgerSeq)
	}
}

// A late transaction with far more events than a page is numbered whole.
func TestLargeLateTransaction(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	s, err := outbox.NewSealer(p.db.Service, outbox.SealerOptions{Rows: 10})
	if err != nil {
		t.Fatal(err)
	}
	seal := func() int {
		_, n, _, err := s.Seal(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	slow, err := p.db.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Append(t.Context(), slow, outboxtest.Events(100)...); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		appendAll(t, p.db.Service, outboxtest.Event())
		seal()
	}
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for seal() > 0 {
	}
	if n := one[int](t, p.db.Super, "SELECT count(*) FROM audit_outbox WHERE ledger_seq IS NULL"); n != 0 {
		t.Errorf("%d events were passed over for ever", n)
	}
	if err := faultsOfNumbers(t, p.db.Super); err != nil {
		t.Error(err)
	}
}

// BC-29: what a stopped dispatcher held goes out elsewhere within a second, its claim count given back.
func TestStopReleases(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	events := outboxtest.Events(1200)
	appendAll(t, p.db.Service, events...)
	stuck := make(chan struct{})
	p.broker.Reply(func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		select {
		case stuck <- struct{}{}:
		default:
		}
		<-ctx.Done() // until the stop's grace is over
		return outboxtest.Refuse(outbox.FaultBroker, "broker.timeout")(ctx, msgs)
	})
	stop := p.run(p.dispatcher(nil))
	<-stuck
	eventually(t, 5*time.Second, func() error { // one page with the broker, the next one claimed
		if one[int](t, p.db.Super, "SELECT count(*) FROM audit_outbox WHERE claim_token IS NOT NULL") != 1000 {
			return errNotYet
		}
		return nil
	})
	start := time.Now()
	stop()
	if d := time.Since(start); d > 1500*time.Millisecond {
		t.Errorf("the stop took %v", d)
	}
	if n := one[int](t, p.db.Super, "SELECT count(*) FROM audit_outbox WHERE claim_token IS NOT NULL OR claim_count <> 0 OR status <> 'PENDING'"); n != 0 {
		t.Errorf("%d entries are still claimed, counted or moved", n)
	}
	p.broker.Reply(nil)
	p.run(p.dispatcher(nil))
	p.untilDelivered(1200, 5*time.Second)
}

// BC-27: a broker slower than the lease costs no claim: the page with the broker is renewed, and so is the next one, which
// is claimed meanwhile and waits for its turn.
func TestSlowBrokerKeepsItsClaims(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	appendAll(t, p.db.Service, outboxtest.Events(50)...)
	p.broker.Reply(func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		pause(1200 * time.Millisecond)
		return outboxtest.Accept(ctx, msgs)
	})
	short := func(o *outbox.DispatcherOptions) {
		o.Lease, o.Renew, o.Poll = 600*time.Millisecond, 150*time.Millisecond, 50*time.Millisecond
		o.PageRows = 10
	}
	first, second := p.dispatcher(short), p.dispatcher(short)
	p.run(first)
	p.run(second)
	p.untilDelivered(50, 20*time.Second)
	if lost := first.Stats().Lost + second.Stats().Lost; lost != 0 {
		t.Errorf("%d claims lost", lost)
	}
	for id, n := range p.broker.Published() {
		if n != 1 {
			t.Errorf("%v was published %d times", id, n)
		}
	}
}

// T11, U22: a dispatcher that stalled past its lease settles nothing and says so.
func TestStalledDispatcherLoses(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	appendAll(t, p.db.Service, outboxtest.Events(5)...)
	stalled := p.dispatcher(func(o *outbox.DispatcherOptions) {
		o.Lease, o.Renew = 100*time.Millisecond, 50*time.Millisecond
		o.Store = neverRenewing{o.Store}
	})
	var stalls atomic.Bool
	stalls.Store(true)
	heir := p.dispatcher(nil)
	p.broker.Reply(func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		if stalls.Swap(false) {
			eventually(t, 5*time.Second, func() error {
				if n, err := heir.Once(ctx); err != nil || n != 5 {
					return fmt.Errorf("the heir claimed %d: %w", n, cmp.Or(err, errNotYet))
				}
				return nil
			})
		}
		return outboxtest.Accept(ctx, msgs)
	})
	if _, err := stalled.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := stalled.Stats(); s.Lost != 5 || s.Delivered != 0 {
		t.Errorf("the stalled one counts %d lost and %d delivered, want 5 and 0", s.Lost, s.Delivered)
	}
	if s := heir.Stats(); s.Lost != 0 || s.Delivered != 5 {
		t.Errorf("the heir counts %d lost and %d delivered, want 0 and 5", s.Lost, s.Delivered)
	}
}

type neverRenewing struct{ outbox.Store }

func (neverRenewing) Renew(context.Context, uuid.UUID, []uuid.UUID, time.Duration) (int, error) {
	return 0, nil
}

// BC-36: a thousand starts and stops leave nothing behind.
func TestStartAndStopLeaveNothing(t *testing.T) {
	p := newPath(t)
	appendAll(t, p.db.Service, outboxtest.Events(2000)...)
	ignore := append(testdb.IgnoreServer(), goleak.IgnoreCurrent())
	d := p.dispatcher(func(o *outbox.DispatcherOptions) { o.PageRows = 10 })
	for i := range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond)
		if err := d.Run(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	if n := one[int](t, p.db.Super, "SELECT count(*) FROM audit_outbox WHERE claim_token IS NOT NULL"); n != 0 {
		t.Errorf("%d entries are still claimed", n)
	}
	if n := p.db.Service.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are still in use", n)
	}
	goleak.VerifyNone(t, append(ignore, goleak.IgnoreAnyFunction("github.com/jackc/pgx/v5/pgxpool.(*Pool).backgroundHealthCheck"))...)
}

func TestRunTwiceIsRefused(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	d := p.dispatcher(nil)
	p.run(d)
	appendAll(t, p.db.Service, outboxtest.Event())
	p.untilDelivered(1, 5*time.Second) // it runs
	if err := d.Run(t.Context()); err == nil {
		t.Error("a second Run was accepted")
	}
}

// F18: pages of large events stay within the bytes of a page.
func TestPagesOfLargeEvents(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	var events []*auditv1.AuditEvent
	for range 24 {
		e := outboxtest.Event()
		for range 60 {
			e.Changes = append(e.Changes, &auditv1.Change{Field: "note", NewValue: sealed(8192), OldValue: sealed(8192)})
		}
		events = append(events, e)
	}
	appendAll(t, p.db.Service, events...)
	p.run(p.dispatcher(nil))
	p.untilDelivered(24, 20*time.Second)
	for _, call := range p.broker.Calls() {
		size := 0
		for _, m := range call {
			size += len(m.Payload)
		}
		if size > 8<<20 {
			t.Errorf("a page of %d events has %d bytes", len(call), size)
		}
	}
}

// A47, A58: the database allows the six statuses and no other.
func TestDatabaseKnowsSixStatuses(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	e := outboxtest.Event()
	appendAll(t, p.db.Service, e)
	for _, s := range append(outbox.Statuses(), "CLAIMED", "PROCESSING") {
		_, err := p.db.Super.Exec(t.Context(), "UPDATE audit_outbox SET status = $1", string(s))
		if (err == nil) != s.Valid() {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// The schema that this release needs is the one that migrations make; a missing part is named.
func TestCheckSchema(t *testing.T) {
	t.Parallel()
	for _, schema := range []testdb.Schema{testdb.Auth, testdb.App} {
		db := testdb.New(t, schema).WithoutGuard(t)
		if err := outbox.CheckSchema(t.Context(), db.Service); err != nil {
			t.Errorf("%s: %v", schema, err)
		}
	}
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	if _, err := db.Super.Exec(t.Context(), "DROP INDEX audit_outbox_open_idx; ALTER TABLE audit_lifecycle ALTER reason TYPE varchar(9); ALTER TABLE audit_ledger DROP COLUMN sealed_at"); err != nil {
		t.Fatal(err)
	}
	err := outbox.CheckSchema(t.Context(), db.Service)
	for _, want := range []string{"audit_outbox_open_idx", "audit_lifecycle.reason is character varying(9), not text", "audit_ledger.sealed_at is missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// Of two operators who requeue one entry at once, one counts it.
func TestConcurrentRequeueCountsOnce(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	e := outboxtest.Event()
	appendAll(t, p.db.Service, e)
	p.broker.Reply(outboxtest.Refuse(outbox.FaultPermanent, outbox.CodeTooLarge))
	if _, err := p.dispatcher(nil).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	total := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			inTx(t, p.db.Service, func(tx pgx.Tx) error {
				n, err := p.store.Requeue(t.Context(), tx, []uuid.UUID{idOf(e)}, "op", "limit raised")
				mu.Lock()
				total += n
				mu.Unlock()
				return err
			})
		})
	}
	wg.Wait()
	if total != 1 {
		t.Errorf("requeued %d times", total)
	}
	p.broker.Reply(nil)
	p.run(p.dispatcher(nil))
	p.untilDelivered(1, 5*time.Second)
}
