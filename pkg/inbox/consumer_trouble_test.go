// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
)

// A table that is locked for 40 simulated minutes costs nobody an attempt (F6, T3).
func TestALockedTableIsNobodysAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(30)
	lock, err := b.db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := lock.Exec(t.Context(), `LOCK TABLE effects IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	// 40 min against attempts that would be used up in seconds, were they counted.
	fast := func(o *inbox.ConsumerOptions) {
		o.LockTimeout, o.PauseMin, o.PauseMax, o.BackoffUnit = 20*time.Millisecond, 5*time.Millisecond, 50*time.Millisecond, time.Millisecond
	}
	c := b.consumer(record, fast)
	b.run(c.Run)
	eventually(t, 20*time.Second, func() error {
		if c.Stats().Troubles < 25 {
			return fmt.Errorf("%d troubles so far", c.Stats().Troubles)
		}
		return nil
	})
	if s := b.states(); s[inbox.Dead] != 0 || b.count(`SELECT max(attempts) FROM consumer_inbox WHERE state = 'PENDING'`) != 0 {
		t.Errorf("states %v, attempts were used", s)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, b.allProcessed(30))
	b.want("attempts", b.count(`SELECT max(attempts) FROM consumer_inbox`), 1)
}

// Every class of the database's own trouble gives the attempt back; what is the handler's own does not.
func TestWhoseFailureAnErrorIs(t *testing.T) {
	t.Parallel()
	for code, nobodys := range map[string]bool{
		"08006": true, "40001": true, "40P01": true, "53100": true, "53200": true, "57014": true, "57P01": true, "57P03": true,
		"58030": true, "55P03": true, "25006": true, "25P03": true,
		"23505": false, "22021": false, "25P02": false, "42P01": false, "42501": false, "P0001": false,
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.deliver(2)
			c := b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error {
				return fmt.Errorf("apply: %w", &pgconn.PgError{Code: code})
			})
			_, err := c.Once(t.Context())
			if (err != nil) != nobodys {
				t.Errorf("Once returned %v", err)
			}
			want := 1
			if nobodys {
				want = 0
			}
			b.want("attempts", b.count(`SELECT max(attempts) FROM consumer_inbox`), want)
			b.want("leases", b.count(`SELECT count(*) FROM consumer_inbox WHERE lease_token IS NOT NULL`), 0)
		})
	}
}

// A handler that exceeds its budget fails by itself, whatever shape the error has (57014 included).
func TestABudgetExceededIsTheHandlersOwnFailure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, _ []inbox.Event) error {
		if _, err := tx.Exec(ctx, `SELECT pg_sleep(30)`); err == nil {
			t.Error("the statement was not cancelled")
		}
		return &pgconn.PgError{Code: "57014"}
	}, func(o *inbox.ConsumerOptions) { o.Budget = 100 * time.Millisecond })
	b.want("processed", b.once(c), 0)
	b.want("failed by time", b.count(`SELECT count(*) FROM consumer_inbox WHERE last_error_code = $1 AND attempts = 1`, inbox.CodeHandlerTimeout), 1)
}

// A clean stop releases rows at once and gives their starts back.
func TestAStopGivesRowsAndStartsBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(10)
	for range 12 { // more deploys than attempts
		running := make(chan struct{})
		var once sync.Once
		stop := b.run(b.consumer(func(ctx context.Context, _ pgx.Tx, _ []inbox.Event) error {
			once.Do(func() { close(running) })
			<-ctx.Done()
			return ctx.Err()
		}, func(o *inbox.ConsumerOptions) { o.Budget, o.IdleTimeout, o.Lease = time.Hour, 2*time.Hour, 3*time.Hour }).Run)
		<-running
		start := time.Now()
		stop()
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("the stop took %v", took)
		}
		b.want("rows back", b.count(`SELECT count(*) FROM consumer_inbox WHERE state = 'PENDING' AND attempts = 0 AND next_retry_at <= clock_timestamp()`), 10)
	}
}

// A give-back that cannot be written is retried from memory until it lands (F6, BC-13).
func TestAGiveBackIsRetriedUntilItLands(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(5)
	var refuse atomic.Bool
	pool := b.smallPool(4, func(c *pgxpool.Config) {
		c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			if refuse.Load() {
				return false, &pgconn.ConnectError{}
			}
			return true, nil
		}
	})
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		if refuse.Load() {
			return record(ctx, tx, batch)
		}
		refuse.Store(true)
		return &pgconn.PgError{Code: "57P01"}
	}, func(o *inbox.ConsumerOptions) { o.DB, o.Lease, o.IdleTimeout = pool, time.Hour, 30*time.Minute })
	if _, err := c.Once(t.Context()); err == nil {
		t.Fatal("no trouble")
	}
	b.want("rows still leased", b.states()[inbox.Processing], 5)
	refuse.Store(false)
	_, _ = c.Once(t.Context()) // pays the debt first
	b.want("given back", int(c.Stats().GivenBack), 5)
}

// The read-only window of a failover costs nothing and heals by itself (BC-13).
func TestAReadOnlyWindowHealsByItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(10)
	readOnly := func(on string) {
		b.exec(`ALTER DATABASE "` + b.db.Name + `" SET default_transaction_read_only = ` + on)
		b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'admin_service' AND datname = $1`, b.db.Name)
	}
	readOnly("on")
	c := b.consumer(record)
	b.run(c.Run)
	eventually(t, 20*time.Second, func() error {
		if c.Stats().Troubles < 3 {
			return errors.New("no trouble yet")
		}
		return nil
	})
	if _, err := b.db.Owner.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	// The superuser's sessions are read-only by now too.
	tx, err := b.db.Super.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `ALTER DATABASE "`+b.db.Name+`" SET default_transaction_read_only = off`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.count(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'admin_service' AND datname = $1`, b.db.Name)
	eventually(t, 30*time.Second, b.allProcessed(10))
	b.want("attempts", b.count(`SELECT max(attempts) FROM consumer_inbox`), 1)
}

// Outside effects need an idempotency key function at start-up (U56, U87).
func TestOutsideEffectsNeedAKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	o := inbox.ConsumerOptions{DB: b.db.Service, Name: "mail", Handler: record, OutsideEffects: true}
	if _, err := inbox.NewConsumer(o); err == nil || !strings.Contains(err.Error(), "IdempotencyKey") {
		t.Errorf("NewConsumer = %v", err)
	}
	o.IdempotencyKey = func(e inbox.Event) string { return e.ID.String() }
	if _, err := inbox.NewConsumer(o); err != nil {
		t.Error(err)
	}
}

// The drill: the outside call is done, then the process dies before PROCESSED. With a key the other side
// counts one effect, without one it counts two (U56, U74).
func TestOutsideEffectsHappenTwiceUnlessTheOtherSideHasTheKey(t *testing.T) {
	t.Parallel()
	for withKey, want := range map[bool]int{true: 1, false: 2} {
		b := setup(t)
		b.deliver(1)
		seen := map[string]bool{}
		calls, effects := 0, 0
		c := b.consumer(func(_ context.Context, _ pgx.Tx, batch []inbox.Event) error {
			calls++
			key := fmt.Sprint(calls) // no key: each call is new to the other side
			if withKey {
				key = batch[0].IdempotencyKey
			}
			if !seen[key] {
				seen[key] = true
				effects++
			}
			if calls == 1 {
				return &pgconn.PgError{Code: "57P01"} // the connection dies before the mark
			}
			return nil
		}, func(o *inbox.ConsumerOptions) {
			o.OutsideEffects, o.IdempotencyKey = true, func(e inbox.Event) string { return "mail/" + e.ID.String() }
			o.PauseMin = time.Millisecond
		})
		b.run(c.Run)
		eventually(t, 10*time.Second, b.allProcessed(1))
		b.want("calls", calls, 2)
		b.want("effects", effects, want)
	}
}

// Each consumer has a state of its own (U37).
func TestOneConsumerDeadTheOtherDone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.add(1)[0]
	b.take(b.bridge("a"))
	b.once(b.consumer(record))
	b.once(b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { return inbox.Permanent("test.no", nil) },
		func(o *inbox.ConsumerOptions) { o.Name = "alerts" }))
	inboxtest.RequireState(t, b.db.Service, "log", id, inbox.Processed)
	inboxtest.RequireState(t, b.db.Service, "alerts", id, inbox.Dead)
}

// Batches are bounded by bytes, and the whole page still gets done (F18).
func TestBatchesAreBoundedByBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(20)
	b.exec(`UPDATE inbox_events SET payload = payload`) // rows keep their size: about 300 bytes each
	size := b.count(`SELECT max(octet_length(payload)) FROM inbox_events`)
	var batches []int
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		batches = append(batches, len(batch))
		return record(ctx, tx, batch)
	}, func(o *inbox.ConsumerOptions) { o.PageBytes = 3 * size })
	for b.once(c) > 0 {
	}
	for _, n := range batches {
		if n > 4 {
			t.Errorf("a batch of %d events of %d bytes", n, size)
		}
	}
	b.want("processed", b.states()[inbox.Processed], 20)
}

// What FLUSHALL of the broker loses is not in the inbox; what is there is applied (U61).
func TestTheInboxNeedsNoBroker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(10)
	b.take(b.bridge("a"))
	b.stream.Flush()
	b.want("processed", b.once(b.consumer(record)), 10)
}

// Without the unique key a duplicate makes two rows, with it one: the key is what protects (U60, U36).
func TestTheKeyIsWhatProtects(t *testing.T) {
	t.Parallel()
	for _, dropped := range []bool{true, false} {
		b := setup(t)
		id := b.deliver(1)[0]
		if dropped {
			b.exec(`ALTER TABLE consumer_inbox DROP CONSTRAINT consumer_inbox_pkey`)
		}
		b.exec(`INSERT INTO consumer_inbox (event_id, consumer) VALUES ($1, 'log') ON CONFLICT DO NOTHING`, id)
		want := map[bool]int{true: 2, false: 1}[dropped]
		b.want("rows", b.count(`SELECT count(*) FROM consumer_inbox`), want)
		if err := inbox.CheckSchema(t.Context(), b.db.Service); (err != nil) != dropped {
			t.Errorf("CheckSchema = %v", err)
		}
	}
}

// A lost connection while a row runs alone counts as its own failure only after several in a row: a handler
// that crashes Postgres dies, an unlucky one does not (F6).
func TestAHandlerThatAlwaysLosesItsConnectionDies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.deliver(2)
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		for _, e := range batch {
			if e.ID == ids[0] {
				var pid int
				if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
					return err
				}
				b.exec(`SELECT pg_terminate_backend($1)`, pid)
				_, err := tx.Exec(ctx, `SELECT 1`)
				return err
			}
		}
		return record(ctx, tx, batch)
	}, func(o *inbox.ConsumerOptions) {
		o.PauseMin, o.PauseMax, o.BackoffUnit, o.MaxAttempts = time.Millisecond, 2*time.Millisecond, time.Microsecond, 3
	})
	b.run(c.Run)
	eventually(t, 30*time.Second, func() error {
		if s := b.states(); s[inbox.Processed] != 1 || s[inbox.Dead] != 1 {
			return fmt.Errorf("states %v", s)
		}
		return nil
	})
	b.want("dead for its connections", b.count(`SELECT count(*) FROM consumer_inbox WHERE last_error_code = $1`, inbox.CodeConnectionCut), 1)
}

// A connection that is lost before the handler ran says nothing of the handler, however often it happens: it is closed
// between a claim and the transaction that follows on it.
func TestAConnectionLostBeforeTheHandlerCostsNoAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	var cutting atomic.Bool
	var begins atomic.Int64
	pool := b.smallPool(4, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return &cutAtBegin{Conn: conn, cutting: &cutting, begins: &begins}, err
		}
	})
	c := b.consumer(record, func(o *inbox.ConsumerOptions) {
		o.DB, o.PauseMin, o.PauseMax, o.BackoffUnit, o.MaxAttempts = pool, time.Millisecond, 2*time.Millisecond, time.Microsecond, 1
	})
	cutting.Store(true)
	b.run(c.Run)
	eventually(t, 20*time.Second, func() error {
		if n := begins.Load(); n < 16 {
			return fmt.Errorf("%d transactions began", n)
		}
		return nil
	})
	cutting.Store(false)
	eventually(t, 20*time.Second, b.allProcessed(1))
	b.want("failures", int(c.Stats().Failed), 0)
}

// cutAtBegin is a connection that is lost when a handler's transaction is to begin on it: that BEGIN is a message of its own.
// So is that of the give-back which follows, and which gets through.
type cutAtBegin struct {
	net.Conn
	cutting *atomic.Bool
	begins  *atomic.Int64
}

func (c *cutAtBegin) Write(p []byte) (int, error) {
	if c.cutting.Load() && bytes.HasPrefix(p, []byte("Q")) && bytes.Contains(p, []byte("begin isolation level")) &&
		bytes.Contains(p, []byte("idle_in_transaction_session_timeout")) && c.begins.Add(1)%2 == 1 {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// Lease and retry times come from the database: a process whose clock is an hour off changes nothing (T19).
func TestAProcessWithAWrongClockLeasesAsOthersDo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	var skew float64
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, _ []inbox.Event) error {
		return tx.QueryRow(ctx, `SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM consumer_inbox`).Scan(&skew)
	}, func(o *inbox.ConsumerOptions) {
		o.Now = func() time.Time { return time.Now().Add(-time.Hour) }
		o.Lease = 30 * time.Second
	})
	b.want("processed", b.once(c), 1)
	if skew < 20 || skew > 31 {
		t.Errorf("the lease lasts %v s, want 30", skew)
	}
}

// A busy worker looks above its low-water mark, and at everything now and then: a retry that becomes due
// below the mark is found.
func TestARetryBelowTheLowWaterMarkIsFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.deliver(1)[0]
	b.exec(`UPDATE consumer_inbox SET next_retry_at = clock_timestamp() + interval '1500 milliseconds'`)
	b.deliver(200)
	busy := func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.02)`); err != nil {
			return err
		}
		return record(ctx, tx, batch)
	}
	b.run(b.consumer(busy, func(o *inbox.ConsumerOptions) { o.PageRows = 1 }).Run)
	eventually(t, 20*time.Second, func() error {
		if b.count(`SELECT count(*) FROM effects WHERE event_id = $1`, first) == 0 {
			return errors.New("not found")
		}
		return nil
	})
	eventually(t, 20*time.Second, b.allProcessed(201))
}
