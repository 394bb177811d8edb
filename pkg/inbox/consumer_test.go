// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"errors"
	"fmt"
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

// Effect and mark are one transaction (U45, U50, BC-60).
func TestEffectAndMarkAreOneTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(7)
	c := b.consumer(record)
	b.want("processed", b.once(c), 7)
	b.want("claimed again", b.once(c), 0)
	b.want("finished rows without lease or error", b.count(`SELECT count(*) FROM consumer_inbox WHERE state = 'PROCESSED'
		AND finished_at IS NOT NULL AND lease_token IS NULL AND last_error_code IS NULL AND attempts = 1`), 7)
	b.want("effects of the mark's own transaction", b.count(`SELECT count(*) FROM effects e JOIN consumer_inbox c USING (event_id)
		WHERE c.xmin::text = (e.xact::text::bigint & 4294967295)::text`), 7)
}

// The claim predicate over state × due × lease: exactly two combinations are claimed (U48, U49).
func TestOnlyDuePendingAndExpiredProcessingRowsAreClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	claimed := map[string]bool{}
	for _, state := range []string{"PENDING", "PROCESSING", "PROCESSED", "DEAD"} {
		for _, due := range []string{"-", "+"} {
			for _, lease := range []string{"-", "+"} {
				id := b.deliver(1)[0]
				b.exec(`UPDATE consumer_inbox SET state = $2, next_retry_at = clock_timestamp() `+due+` interval '1 hour',
					lease_owner = CASE WHEN $2 = 'PROCESSING' THEN 'x' END, lease_token = CASE WHEN $2 = 'PROCESSING' THEN gen_random_uuid() END,
					lease_expires_at = CASE WHEN $2 = 'PROCESSING' THEN clock_timestamp() `+lease+` interval '1 hour' END,
					finished_at = CASE WHEN $2 IN ('PROCESSED', 'DEAD') THEN now() END, dead_at = CASE WHEN $2 = 'DEAD' THEN now() END
					WHERE event_id = $1`, id, state)
				var leased bool
				c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
					// Both columns come from the database's clock and the claim.
					return tx.QueryRow(ctx, `SELECT lease_owner = 'me' AND lease_expires_at > clock_timestamp() FROM consumer_inbox WHERE event_id = $1`,
						batch[0].ID).Scan(&leased)
				}, func(o *inbox.ConsumerOptions) { o.LeaseOwner = "me" })
				if n := b.once(c); n > 0 {
					claimed[fmt.Sprintf("%s due %s lease %s", state, due, lease)] = leased
				}
				b.exec(`DELETE FROM consumer_inbox`)
			}
		}
	}
	want := []string{
		"PENDING due - lease -", "PENDING due - lease +", // due; a PENDING row has no lease
		"PROCESSING due - lease -", "PROCESSING due + lease -", // expired; next_retry_at plays no part
	}
	if len(claimed) != len(want) {
		t.Errorf("claimed %v", claimed)
	}
	for _, w := range want {
		if !claimed[w] {
			t.Errorf("not claimed, or not leased: %s", w)
		}
	}
}

// Two consumers, one row: one gets it (U43).
func TestOneRowGoesToOneOfManyWorkers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(60)
	var runs atomic.Int64
	var wg sync.WaitGroup
	for range 6 {
		c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
			runs.Add(int64(len(batch)))
			return record(ctx, tx, batch)
		}, func(o *inbox.ConsumerOptions) { o.PageRows = 7 })
		wg.Go(func() {
			for b.states()[inbox.Processed] < 60 {
				if _, err := c.Once(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.want("runs", int(runs.Load()), 60)
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 60)
}

// A failure is recorded after the rollback, with a code and a due time, and tried again then (U46, U52, U71).
func TestAFailureIsRecordedAndTriedAgainAfterItsBackoff(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.deliver(1)[0]
	fail := true
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		if err := record(ctx, tx, batch); err != nil {
			return err
		}
		if fail {
			return inbox.Coded("test.refused", errors.New("user ada@example.org is unknown"))
		}
		return nil
	}, func(o *inbox.ConsumerOptions) { o.BackoffUnit, o.BackoffMax = time.Minute, time.Hour })
	b.want("processed", b.once(c), 0)
	row, err := b.operations("log").Get(t.Context(), "log", id)
	if err != nil {
		t.Fatal(err)
	}
	if row.State != inbox.Pending || row.Attempts != 1 || row.LastErrorCode != "test.refused" || row.LastErrorAt.IsZero() ||
		time.Until(row.NextRetryAt) < time.Minute {
		t.Fatalf("row = %+v", row)
	}
	b.want("effects of the failed run", b.count(`SELECT count(*) FROM effects`), 0)
	b.want("claimed before it is due", int(c.Stats().Claimed), 1)
	b.once(c)
	b.want("claimed before it is due", int(c.Stats().Claimed), 1)
	fail = false
	b.exec(`UPDATE consumer_inbox SET next_retry_at = now()`)
	b.want("processed when due", b.once(c), 1)
}

// Backoff doubles and is capped (U71); after the limit the row is DEAD, after exactly n runs (U47, U53).
func TestAnAlwaysFailingHandlerRunsExactlyNTimes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	runs := 0
	var waits []time.Duration
	c := b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { runs++; return errBoom }, func(o *inbox.ConsumerOptions) {
		o.MaxAttempts, o.BackoffUnit, o.BackoffMax, o.ScanEvery = 6, time.Hour, 10*time.Hour, time.Nanosecond
	})
	for range 10 {
		b.once(c)
		var wait time.Duration
		if err := b.db.Super.QueryRow(t.Context(), `SELECT next_retry_at - clock_timestamp() FROM consumer_inbox`).Scan(&wait); err != nil {
			t.Fatal(err)
		}
		waits = append(waits, wait.Round(time.Hour))
		b.exec(`UPDATE consumer_inbox SET next_retry_at = now()`)
	}
	b.want("runs", runs, 6)
	for i, want := range []time.Duration{2 * time.Hour, 4 * time.Hour, 8 * time.Hour, 10 * time.Hour, 10 * time.Hour} {
		if waits[i] != want {
			t.Errorf("wait %d is %v, want %v", i+1, waits[i], want)
		}
	}
	if s := b.states(); s[inbox.Dead] != 1 {
		t.Errorf("states %v", s)
	}
	b.want("died", int(c.Stats().Died), 1)
}

// A permanent error is DEAD at once (T20).
func TestAPermanentErrorIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.deliver(3)
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		for _, e := range batch {
			if e.ID == ids[1] {
				return fmt.Errorf("apply: %w", inbox.Permanent("audit.id_mismatch", errBoom))
			}
		}
		return record(ctx, tx, batch)
	})
	b.want("processed", b.once(c), 2)
	row, err := b.operations("log").Get(t.Context(), "log", ids[1])
	if err != nil {
		t.Fatal(err)
	}
	if row.State != inbox.Dead || row.Attempts != 1 || row.LastErrorCode != "audit.id_mismatch" || row.FinishedAt.IsZero() {
		t.Errorf("row = %+v", row)
	}
}

// What a failing batch mate had nothing to do with is done in the same pass and keeps one attempt.
func TestAFailingEventDoesNotCostItsBatchAnything(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.deliver(20)
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		for _, e := range batch {
			if e.ID == ids[7] {
				panic("the handler's own")
			}
		}
		return record(ctx, tx, batch)
	})
	b.want("processed", b.once(c), 19)
	b.want("rows with one attempt", b.count(`SELECT count(*) FROM consumer_inbox WHERE attempts = 1`), 20)
	b.want("panics recorded", b.count(`SELECT count(*) FROM consumer_inbox WHERE last_error_code = $1`, inbox.CodeHandlerPanic), 1)
}

// Codes are bounded; text never reaches the database (U52, A67).
func TestStoredErrorsAreBoundedCodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"plain":              {errors.New("password=hunter2"), inbox.CodeHandlerError},
		"a code with spaces": {inbox.Coded("user ada failed", errBoom), inbox.CodeHandlerError},
		"a code too long":    {inbox.Coded(strings.Repeat("a", 65), errBoom), inbox.CodeHandlerError},
		"a server's":         {&pgconn.PgError{Code: "22P02", Message: "invalid input: ada@example.org"}, "postgres.22p02"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.deliver(1)
			b.once(b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { return c.err }))
			var got string
			if err := b.db.Super.QueryRow(t.Context(), `SELECT last_error_code FROM consumer_inbox`).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("code %q, want %q", got, c.want)
			}
		})
	}
}

// A handler's statement that fails must not be swallowed: the row is not PROCESSED (BC-58).
func TestASwallowedStatementErrorIsAFailure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, _ []inbox.Event) error {
		_, _ = tx.Exec(ctx, `SELECT 1/0`)
		return nil
	})
	b.want("processed", b.once(c), 0)
	b.want("failed", b.count(`SELECT count(*) FROM consumer_inbox WHERE last_error_code = 'postgres.25p02' AND attempts = 1`), 1)
}

// A handler can neither commit nor roll back the transaction that its mark belongs to (U50).
func TestAHandlerCannotEndItsTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		if err := record(ctx, tx, batch); err != nil {
			return err
		}
		if tx.Rollback(ctx) == nil {
			t.Error("a rollback is allowed")
		}
		return tx.Commit(ctx)
	})
	b.want("processed", b.once(c), 0)
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 0)
}

// The zombie: A stalls past its lease, B reclaims and finishes, A resumes: its mark hits nothing and its
// effect is rolled back (U55, U76, T11). Its transaction holds no lock meanwhile that B needs.
func TestAZombieCannotFinishItsSuccessorsWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	reached, resume := make(chan struct{}), make(chan struct{})
	a := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		close(reached)
		<-resume
		_, err := tx.Exec(ctx, `INSERT INTO runs VALUES ($1)`, batch[0].ID)
		return err
	}, func(o *inbox.ConsumerOptions) {
		o.Budget, o.IdleTimeout, o.Lease, o.Renew = time.Hour, 2*time.Hour, 3*time.Hour, time.Hour
	})
	var wg sync.WaitGroup
	wg.Go(func() { b.want("processed by the zombie", b.once(a), 0) })
	<-reached
	b.exec(`UPDATE consumer_inbox SET lease_expires_at = clock_timestamp() - interval '1 second'`)
	b.want("processed by its successor", b.once(b.consumer(record)), 1)
	close(resume)
	wg.Wait()
	b.want("effects of the zombie", b.count(`SELECT count(*) FROM runs`), 0)
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 1)
	b.want("lost fences", int(a.Stats().LostFences), 1)
	b.want("attempts", b.count(`SELECT attempts FROM consumer_inbox`), 2)
}

// F5: a process that stops right after its side effect holds the effect's key, and its successor waits for
// that transaction, not for the lease. The idle time-out frees it: the event is done soon after the lease.
func TestAStoppedWorkerDelaysItsEventsByItsLeaseAndNoMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(1)
	reached, never := make(chan struct{}), make(chan struct{})
	stopped := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		if err := record(ctx, tx, batch); err != nil {
			return err
		}
		close(reached)
		<-never // as SIGSTOP would: no renewal either, see Renew
		return ctx.Err()
	}, func(o *inbox.ConsumerOptions) { o.Renew, o.Budget = o.Lease/2, o.IdleTimeout-time.Millisecond })
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = stopped.Once(context.WithoutCancel(t.Context())) })
	resume := sync.OnceFunc(func() { close(never); wg.Wait() })
	t.Cleanup(resume)
	<-reached
	// A stopped process renews nothing.
	b.exec(`CREATE FUNCTION no_renewal() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN
		IF NEW.lease_token = OLD.lease_token AND NEW.lease_expires_at > OLD.lease_expires_at THEN RETURN NULL; END IF; RETURN NEW; END'`)
	b.exec(`CREATE TRIGGER no_renewal BEFORE UPDATE ON consumer_inbox FOR EACH ROW EXECUTE FUNCTION no_renewal()`)
	start := time.Now()
	b.run(b.consumer(record).Run)
	eventually(t, 20*time.Second, b.allProcessed(1))
	// Lease 30 s, one look a second: 32 s, scaled; the rest is this machine's.
	if took, most := time.Since(start), 32*time.Second/scale+2*time.Second; took > most {
		t.Errorf("took %v, want at most %v", took, most)
	}
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 1)
	resume()
	b.want("effects after the stopped one went on", b.count(`SELECT count(*) FROM effects`), 1)
}

// A batch whose handlers together outlast four leases is handled once: the lease is renewed while
// the handler's transaction is open, and nobody waits for anybody (U44, T12, T13, F17).
func TestABatchThatOutlastsFourLeasesIsHandledOnce(t *testing.T) {
	t.Parallel()
	for name, isolation := range map[string]string{"as the server has it": "read committed", "under a serializable default": "serializable"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.exec(`ALTER ROLE admin_service IN DATABASE "` + b.db.Name + `" SET default_transaction_isolation = '` + isolation + `'`)
			pool := b.smallPool(8)
			ids := b.deliver(8)
			var runs sync.Map
			slow := func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
				if len(batch) > 1 {
					return errBoom // straight to one by one: 8 × 0.7 s against a lease of 1.2 s
				}
				runs.Store(batch[0].ID, true)
				if _, err := tx.Exec(ctx, `INSERT INTO runs VALUES ($1)`, batch[0].ID); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.7)`); err != nil {
					return err
				}
				return record(ctx, tx, batch)
			}
			options := func(o *inbox.ConsumerOptions) {
				o.DB = pool
				o.Lease, o.Renew, o.IdleTimeout, o.Budget = 1200*time.Millisecond, 200*time.Millisecond, 1100*time.Millisecond, time.Second
			}
			first, second := b.consumer(slow, options), b.consumer(slow, options)
			var wg sync.WaitGroup
			wg.Go(func() { b.want("processed", b.once(first), 8) })
			eventually(t, 10*time.Second, func() error {
				if n := b.states()[inbox.Processing] + b.states()[inbox.Processed]; n != len(ids) {
					return errors.New("not claimed")
				}
				return nil
			})
			b.run(second.Run)
			wg.Wait()
			b.want("claimed by the second", int(second.Stats().Claimed), 0)
			b.want("committed runs", b.count(`SELECT count(*) FROM runs`), 8)
			b.want("attempts", b.count(`SELECT max(attempts) FROM consumer_inbox`), 1)
		})
	}
}

// Without renewals a second consumer takes over what the first holds too long (U44, U46).
func TestAnExpiredLeaseIsTakenOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.deliver(3)
	// A crash: claimed, then nothing.
	b.exec(`UPDATE consumer_inbox SET state = 'PROCESSING', attempts = 1, lease_owner = 'dead', lease_token = gen_random_uuid(),
		lease_expires_at = clock_timestamp() + interval '300 milliseconds'`)
	c := b.consumer(record)
	b.want("processed before expiry", b.once(c), 0)
	b.run(c.Run)
	eventually(t, 10*time.Second, b.allProcessed(3))
	b.want("rows with two attempts", b.count(`SELECT count(*) FROM consumer_inbox WHERE attempts = 2`), 3)
}

// F6, T10: a handler call that ends the process, in a batch of 100. Each restart is a claim that nobody
// settles. After the restarts 99 are done and one is DEAD.
func TestTheOneThatKillsItsProcessDiesAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.deliver(100)
	killer := ids[42]
	starts := 0
	for restart := 0; b.states()[inbox.Dead]+b.states()[inbox.Processed] < 100; restart++ {
		if restart > 40 {
			t.Fatalf("still not done: %v", b.states())
		}
		// The process dies within the call: nothing after it runs, and the transaction is gone.
		died := make(chan struct{})
		c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
			for _, e := range batch {
				if e.ID == killer {
					starts++
					close(died)
					<-ctx.Done() // never settled below
					return ctx.Err()
				}
			}
			return record(ctx, tx, batch)
		}, func(o *inbox.ConsumerOptions) {
			o.Budget, o.IdleTimeout, o.Lease, o.Renew = time.Hour, 2*time.Hour, 3*time.Hour, time.Hour
			o.DB = b.smallPool(4)
		})
		ctx, kill := context.WithCancel(t.Context())
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			for ctx.Err() == nil {
				if n, err := c.Once(ctx); err != nil || n == 0 {
					return
				}
			}
		}()
		select {
		case <-died:
			// Keep what a death leaves: put the claim's state back after the worker has unwound.
			b.exec(`CREATE TABLE at_death AS SELECT * FROM consumer_inbox`)
			kill()
			<-finished
			b.exec(`UPDATE consumer_inbox c SET state = d.state, attempts = d.attempts, lease_owner = d.lease_owner, lease_token = d.lease_token,
				lease_expires_at = CASE WHEN d.lease_token IS NOT NULL THEN now() - interval '1 s' END, finished_at = d.finished_at, dead_at = d.dead_at,
				next_retry_at = now() - interval '1 s', last_error_code = d.last_error_code, last_error_at = d.last_error_at
				FROM at_death d WHERE d.event_id = c.event_id`)
			b.exec(`DROP TABLE at_death`)
		case <-finished:
			kill()
		}
	}
	if s := b.states(); s[inbox.Processed] != 99 || s[inbox.Dead] != 1 {
		t.Fatalf("states %v, want 99 PROCESSED and 1 DEAD", s)
	}
	b.want("starts of the killer", starts, 10)
	b.want("dead for its starts", b.count(`SELECT count(*) FROM consumer_inbox WHERE event_id = $1 AND last_error_code = $2`, killer, inbox.CodeMaxStarts), 1)
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 99)
}

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
