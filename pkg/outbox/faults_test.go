// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// pool is a pool of the service's role with settings of its own and at most size connections.
func (p *path) pool(settings map[string]string, size int32) *pgxpool.Pool {
	p.t.Helper()
	cfg, err := pgxpool.ParseConfig(p.db.URL("auth_service"))
	if err != nil {
		p.t.Fatal(err)
	}
	cfg.MaxConns = size
	maps.Copy(cfg.ConnConfig.RuntimeParams, settings)
	pool, err := pgxpool.NewWithConfig(p.t.Context(), cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(pool.Close)
	return pool
}

// F17, BC-10: whatever the default isolation, the package's own is READ COMMITTED.
func TestSerializableDefaultChangesNothing(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	db := p.pool(map[string]string{"default_transaction_isolation": "serializable"}, 8)
	first, second := p.dispatcherOn(db, nil), p.dispatcherOn(db, nil)
	p.run(first)
	p.run(second)
	for range 60 {
		inTx(t, p.db.Service, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, outboxtest.Events(20)...) })
	}
	p.untilDelivered(1200, 20*time.Second)
	for _, d := range []*outbox.Dispatcher{first, second} {
		if s := d.Stats(); s.StoreErrors != 0 || s.Lost != 0 {
			t.Errorf("%d store errors, %d lost; want none", s.StoreErrors, s.Lost)
		}
	}
}

// BC-17, T19: no time zone and no clock of this process decides when a lease or a retry is due.
func TestTimeZonesAndClocks(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	e := outboxtest.Event()
	appendAll(t, p.db.Service, e)
	db := p.pool(map[string]string{"timezone": "Asia/Jakarta"}, 8)
	skewed := func() time.Time { return time.Now().Add(time.Hour) }
	d := p.dispatcherOn(db, func(o *outbox.DispatcherOptions) { o.Now, o.RetryUnit = skewed, 100*time.Millisecond })
	p.broker.Reply(outboxtest.Refuse(outbox.FaultBroker, "broker.unavailable"))
	p.run(d)
	eventually(t, 5*time.Second, func() error {
		if len(p.broker.Calls()) < 3 {
			return errNotYet
		}
		return nil
	})
	r, err := p.store.List(t.Context(), outbox.Filter{})
	if err != nil || len(r) != 1 {
		t.Fatal(r, err)
	}
	if age := time.Since(r[0].LastErrorAt).Abs(); age > time.Minute || !r[0].OccurTime.Equal(e.GetOccurTime().AsTime()) {
		t.Errorf("last error %v ago, occurred %v; want now, and the event's own time", age, r[0].OccurTime)
	}
	p.broker.Reply(nil)
	p.untilDelivered(1, 5*time.Second)
}

// BC-22, U23, U57, A67a: while the broker is down nothing counts as delivered, the
// trouble stands in the rows, sealing goes on, and afterwards all of it arrives.
func TestBrokerDownAndBack(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	r := testdb.RedisWith(t, devserver.RedisOptions{})
	d := p.dispatcher(func(o *outbox.DispatcherOptions) {
		o.Publisher = redisPublisher(t, r)
		o.CircuitMin, o.CircuitMax = 20*time.Millisecond, 200*time.Millisecond
	})
	r.Kill()
	p.run(d)
	appendAll(t, p.db.Service, outboxtest.Events(800)...)
	d.Wake()
	eventually(t, 10*time.Second, func() error {
		s, err := p.store.Status(t.Context())
		if err != nil || s.Depth[outbox.StatusDeferred] < 500 || s.Unsealed != 0 {
			return fmt.Errorf("depth %v, %d unsealed: %w", s.Depth, s.Unsealed, cmp.Or(err, errNotYet))
		}
		return nil
	})
	if depth := p.depth(); depth[outbox.StatusDelivered] != 0 {
		t.Errorf("%d delivered to a dead broker", depth[outbox.StatusDelivered])
	}
	records, err := p.store.List(t.Context(), outbox.Filter{Statuses: []outbox.Status{outbox.StatusDeferred}, Limit: 1})
	if err != nil || records[0].LastErrorCode != "broker.unavailable" || records[0].Attempts != 0 {
		t.Errorf("a deferred entry: %+v, %v", records[0], err)
	}
	if s := d.Stats(); !s.CircuitOpen || s.ConsecutiveFailures == 0 {
		t.Errorf("stats: %+v", s)
	}
	_, history, err := p.store.Get(t.Context(), records[0].EventID)
	if err != nil || len(history) == 0 || history[0].To != outbox.StatusDeferred {
		t.Errorf("history %+v, %v", history, err)
	}
	if n := one[int](t, p.db.Super, "SELECT count(*) FROM audit_lifecycle WHERE event_count >= 500 AND last_seq - first_seq >= 499"); n == 0 {
		t.Error("the page's transition is not one row with its range")
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.untilDelivered(800, 10*time.Second)
	eventually(t, 5*time.Second, func() error {
		if n := r.Client.XLen(t.Context(), "audit:{auth}").Val(); n != 800 {
			return fmt.Errorf("%d entries in the stream", n)
		}
		return nil
	})
}

// BC-25: more unsendable entries than a page, at the front, and what is behind them flows.
func TestPoisonInFrontBlocksNobody(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	bad := outboxtest.Events(501)
	var ids []uuid.UUID
	for _, e := range bad {
		ids = append(ids, idOf(e))
	}
	p.broker.Reply(outboxtest.RefuseOnly(outbox.FaultPermanent, outbox.CodeTooLarge, ids...))
	appendAll(t, p.db.Service, bad...)
	appendAll(t, p.db.Service, outboxtest.Events(100)...)
	p.run(p.dispatcher(nil))
	p.untilDelivered(100, 10*time.Second)
	s, err := p.store.Status(t.Context())
	if err != nil || s.Depth[outbox.StatusFailed] != 501 || s.DeadByReason[outbox.CodeTooLarge] != 501 {
		t.Errorf("status %+v, %v; want 501 failed, with the reason", s, err)
	}
}

// BC-23: a stop between the broker's answer and the settling repeats entries and loses none.
func TestStopAfterPublishRepeats(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	appendAll(t, p.db.Service, outboxtest.Events(300)...)
	broken := p.dispatcher(func(o *outbox.DispatcherOptions) {
		o.Store, o.Lease, o.Renew = failingSettle{o.Store}, 200*time.Millisecond, 100*time.Millisecond
		o.PageRows, o.StopGrace = 100, 50*time.Millisecond
	})
	if _, err := broken.Once(t.Context()); err == nil {
		t.Error("a settle that failed was not reported")
	}
	if s := broken.Stats(); s.Delivered != 0 || s.Lost != 100 {
		t.Errorf("%d delivered, %d lost; want 0 and 100", s.Delivered, s.Lost)
	}
	p.run(p.dispatcher(nil))
	p.untilDelivered(300, 10*time.Second)
	published := p.broker.Published()
	twice := 0
	for _, n := range published {
		if n == 2 {
			twice++
		}
	}
	if len(published) != 300 || twice != 100 {
		t.Errorf("%d events published, %d of them twice; want 300 and 100", len(published), twice)
	}
}

type failingSettle struct{ outbox.Store }

func (failingSettle) Settle(context.Context, uuid.UUID, []outbox.Outcome) (outbox.Settled, error) {
	return outbox.Settled{}, errors.New("connection reset")
}

// BC-32: one row that the database will not settle does not hold back its page.
func TestOneBadRowInAPage(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	events := outboxtest.Events(100)
	appendAll(t, p.db.Service, events...)
	bad := idOf(events[50])
	if _, err := p.db.Super.Exec(t.Context(), fmt.Sprintf(
		"ALTER TABLE audit_outbox ADD CONSTRAINT broken CHECK (event_id <> '%s' OR status = 'PENDING')", bad)); err != nil {
		t.Fatal(err)
	}
	d := p.dispatcher(nil)
	if _, err := d.Once(t.Context()); err == nil {
		t.Error("the row that did not settle was not reported")
	}
	if depth := p.depth(); depth[outbox.StatusDelivered] != 99 {
		t.Errorf("depth %v, want 99 delivered", depth)
	}
	if s := d.Stats(); s.Delivered != 99 || s.Lost != 1 {
		t.Errorf("%d delivered, %d lost; want 99 and 1", s.Delivered, s.Lost)
	}
	for id, n := range p.broker.Published() {
		if n != 1 {
			t.Errorf("%v was published %d times", id, n)
		}
	}
}

// BC-13: while the database refuses writes the dispatcher waits, and goes on by itself.
func TestReadOnlyDatabaseIsWaitedOut(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	appendAll(t, p.db.Service, outboxtest.Events(50)...)
	name := pgx.Identifier{p.db.Name}.Sanitize()
	db := p.pool(nil, 8)
	if _, err := p.db.Super.Exec(t.Context(), "ALTER DATABASE "+name+" SET default_transaction_read_only = on"); err != nil {
		t.Fatal(err)
	}
	d := p.dispatcherOn(db, func(o *outbox.DispatcherOptions) { o.Poll, o.CircuitMin = 50*time.Millisecond, 10*time.Millisecond })
	p.run(d)
	eventually(t, 5*time.Second, func() error {
		if d.Stats().StoreErrors < 3 {
			return errNotYet
		}
		return nil
	})
	if _, err := p.db.Super.Exec(t.Context(), "SET default_transaction_read_only = off; ALTER DATABASE "+name+" RESET default_transaction_read_only"); err != nil {
		t.Fatal(err)
	}
	db.Reset() // as a failover closes connections
	p.untilDelivered(50, 10*time.Second)
}

// BC-12: a migration that adds a column does not disturb what runs.
func TestColumnAddedWhileRunning(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	d := p.dispatcher(nil)
	p.run(d)
	appendAll(t, p.db.Service, outboxtest.Events(50)...)
	p.untilDelivered(50, 5*time.Second)
	if _, err := p.db.Owner.Exec(t.Context(), "ALTER TABLE audit_outbox ADD COLUMN note text; ALTER TABLE audit_ledger ADD COLUMN note text"); err != nil {
		t.Fatal(err)
	}
	appendAll(t, p.db.Service, outboxtest.Events(50)...)
	d.Wake()
	p.untilDelivered(100, 5*time.Second)
	if s := d.Stats(); s.Lost != 0 {
		t.Errorf("%d lost", s.Lost)
	}
}

// BC-08: retention deletes finished rows in small batches, in nobody's way, and nothing else.
func TestPruneWhileDelivering(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	if _, err := p.db.Owner.Exec(t.Context(), "UPDATE audit_retention SET finished_age = '0', requires_confirmation = false"); err != nil {
		t.Fatal(err)
	}
	bad := outboxtest.Event()
	p.broker.Reply(outboxtest.RefuseOnly(outbox.FaultPermanent, outbox.CodeTooLarge, idOf(bad)))
	appendAll(t, p.db.Service, bad)
	appendAll(t, p.db.Service, outboxtest.Events(3000)...)
	p.run(p.dispatcher(nil))
	deleted := int64(0)
	eventually(t, 20*time.Second, func() error {
		n, err := p.store.Prune(t.Context(), 200)
		if err != nil {
			t.Fatal(err)
		}
		if n > 200 {
			t.Fatalf("a batch of 200 deleted %d", n)
		}
		if deleted += n; deleted < 3000 {
			return fmt.Errorf("deleted %d of 3000", deleted)
		}
		return nil
	})
	if r := p.record(bad); r.Status != outbox.StatusFailed || rows(t, p.db.Super) != 1 {
		t.Errorf("the failed entry is %s among %d rows; want it to stay alone", r.Status, rows(t, p.db.Super))
	}
	if _, err := p.store.Prune(t.Context(), 0); err == nil {
		t.Error("an empty batch was accepted")
	}
}

// BC-09: claims with leases far too short, several dispatchers, retention beside
// them: nothing deadlocks, nothing is lost.
func TestContentionEndsWell(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	const total = 1500
	appendAll(t, p.db.Service, outboxtest.Events(total)...)
	var slow atomic.Int64
	p.broker.Reply(func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		if slow.Add(1)%3 == 0 {
			pause(60 * time.Millisecond)
		}
		return outboxtest.Accept(ctx, msgs)
	})
	for range 4 {
		p.run(p.dispatcher(func(o *outbox.DispatcherOptions) {
			o.Lease, o.Renew, o.Poll, o.PageRows = 30*time.Millisecond, 15*time.Millisecond, 5*time.Millisecond, 40
			o.Store = neverRenewing{o.Store}
		}))
	}
	p.untilDelivered(total, 30*time.Second)
	if got := len(p.broker.Published()); got != total {
		t.Errorf("%d events published, want %d", got, total)
	}
	if n := one[int](t, p.db.Super, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// What the Dispatcher goes on without is counted when the store fails it: claims that end by it are no riddle.
func TestEveryFailedStatementIsCounted(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	store := &failing{Store: p.store, renewed: make(chan struct{})}
	renewing := p.dispatcher(func(o *outbox.DispatcherOptions) { o.Store, o.Renew = store, time.Millisecond })
	appendAll(t, p.db.Service, outboxtest.Event())
	p.broker.Reply(func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		<-store.renewed
		<-store.renewed // the one before has been counted
		return outboxtest.Accept(ctx, msgs)
	})
	if _, err := renewing.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if renewing.Stats().StoreErrors == 0 {
		t.Error("a failed renewal is not counted")
	}

	resetting := p.dispatcher(func(o *outbox.DispatcherOptions) { o.Store, o.CircuitMin = store, time.Millisecond })
	appendAll(t, p.db.Service, outboxtest.Event())
	p.broker.Reply(outboxtest.Refuse(outbox.FaultBroker, "broker.oom"))
	if _, err := resetting.Once(t.Context()); err != nil || !resetting.Stats().CircuitOpen {
		t.Fatalf("the circuit is closed, %v", err)
	}
	p.broker.Reply(nil)
	eventually(t, 10*time.Second, func() error {
		if _, err := resetting.Once(t.Context()); err != nil || resetting.Stats().CircuitOpen {
			return fmt.Errorf("the circuit stays open, %w", err)
		}
		return nil
	})
	if n := resetting.Stats().StoreErrors; n != 1 {
		t.Errorf("%d store errors, want that of making deferred entries due", n)
	}
}

// failing fails what the Dispatcher goes on without.
type failing struct {
	outbox.Store
	renewed chan struct{}
}

var errStore = errors.New("the store is away")

func (f *failing) Renew(ctx context.Context, _ uuid.UUID, _ []uuid.UUID, _ time.Duration) (int, error) {
	select {
	case f.renewed <- struct{}{}:
	case <-ctx.Done():
	}
	return 0, errStore
}

func (*failing) MakeDeferredDue(context.Context) (int, error) { return 0, errStore }
