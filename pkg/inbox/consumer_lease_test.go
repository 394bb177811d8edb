// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

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
