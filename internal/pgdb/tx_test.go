// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package pgdb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestInTxCommitsOrRollsBack(t *testing.T) {
	t.Parallel()
	db := open(t)
	exec(t, db, "CREATE TABLE t (n int)")
	insert := func(n int, err error) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES ($1)", n); err != nil {
				return fmt.Errorf("insert: %w", err)
			}
			return err
		}
	}
	if err := InTx(t.Context(), db, insert(1, nil)); err != nil {
		t.Fatal(err)
	}
	own := errors.New("refused")
	if err := InTx(t.Context(), db, insert(2, own)); !errors.Is(err, own) {
		t.Errorf("got %v, want the function's own error", err)
	}
	func() {
		defer func() {
			if recover() != "boom" {
				t.Error("the panic did not go on")
			}
		}()
		_ = InTx(t.Context(), db, func(tx pgx.Tx) error { _ = insert(3, nil)(tx); panic("boom") })
	}()
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = InTx(t.Context(), db, func(tx pgx.Tx) error { _ = insert(4, nil)(tx); runtime.Goexit(); return nil })
	})
	wg.Wait()
	if got := one[[]int32](t, db, "SELECT array_agg(n) FROM t"); len(got) != 1 || got[0] != 1 {
		t.Errorf("rows %v, want only the first", got)
	}
	if n := db.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

// A swallowed error leaves an aborted transaction, which Postgres answers to COMMIT with a rollback.
func TestInTxReportsACommitThatRolledBack(t *testing.T) {
	t.Parallel()
	db := open(t)
	err := InTx(t.Context(), db, func(tx pgx.Tx) error {
		_, _ = tx.Exec(t.Context(), "SELECT 1/0")
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) || CommitUnknown(err) {
		t.Errorf("got %v", err)
	}
}

func TestInTxReportsADeferredConstraintByName(t *testing.T) {
	t.Parallel()
	db := open(t)
	exec(t, db, "CREATE TABLE t (n int CONSTRAINT t_n_key UNIQUE DEFERRABLE INITIALLY DEFERRED)")
	err := InTx(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (1), (1)")
		return err
	})
	if !IsUnique(err, "t_n_key") || IsUnique(err, "other") || !IsUnique(err, "") || CommitUnknown(err) || Trouble(err) {
		t.Errorf("got %v", err)
	}
}

// BC-10: the role's default isolation must not decide how transactions run.
func TestInTxIsReadCommittedWhateverTheDefault(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	cfg.RuntimeParams = map[string]string{"default_transaction_isolation": "serializable"}
	db := pool(t, cfg)
	if got := one[string](t, db, "SHOW transaction_isolation"); got != "serializable" {
		t.Fatalf("the default is %s: the test shows nothing", got)
	}
	var got string
	err := InTx(t.Context(), db, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&got)
	})
	if err != nil || got != "read committed" {
		t.Errorf("isolation %q, %v", got, err)
	}
}

func TestInTxRunsAgainAfterADeadlock(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	cfg.RuntimeParams = map[string]string{"deadlock_timeout": "50ms"}
	db := pool(t, cfg)
	exec(t, db, "CREATE TABLE t (id int PRIMARY KEY, n int)")
	exec(t, db, "INSERT INTO t VALUES (1, 0), (2, 0)")
	var met sync.WaitGroup // both hold their first row before either asks for its second
	met.Add(2)
	var runs atomic.Int32
	cross := func(first, second int) error {
		held := false
		return InTx(t.Context(), db, func(tx pgx.Tx) error {
			runs.Add(1)
			for _, id := range []int{first, second} {
				if _, err := tx.Exec(t.Context(), "UPDATE t SET n = n + 1 WHERE id = $1", id); err != nil {
					return fmt.Errorf("update: %w", err)
				}
				if !held {
					held = true
					met.Done()
					met.Wait()
				}
			}
			return nil
		})
	}
	errs := make(chan error, 2)
	go func() { errs <- cross(1, 2) }()
	go func() { errs <- cross(2, 1) }()
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := one[int](t, db, "SELECT sum(n) FROM t"); n != 4 || runs.Load() != 3 {
		t.Errorf("sum %d after %d runs, want 4 after 3", n, runs.Load())
	}
}

func TestInTxGivesUpAfterABound(t *testing.T) {
	t.Parallel()
	db := open(t)
	for _, code := range []string{serializationFailure, deadlockDetected, uniqueViolation} {
		runs := 0
		err := InTx(t.Context(), db, func(tx pgx.Tx) error {
			runs++
			_, err := tx.Exec(t.Context(), fmt.Sprintf("DO $$ BEGIN RAISE EXCEPTION SQLSTATE '%s'; END $$", code))
			return err
		})
		want := attempts
		if code == uniqueViolation {
			want = 1
		}
		if Code(err) != code || runs != want {
			t.Errorf("%s: %d runs, want %d; %v", code, runs, want, err)
		}
	}
}

func TestInTxStopsRunningAgainWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	db := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	err := InTx(ctx, db, func(tx pgx.Tx) error {
		runs++
		_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '40001'; END $$")
		cancel()
		return err
	})
	if runs != 1 || Code(err) != serializationFailure {
		t.Errorf("%d runs, %v", runs, err)
	}
}

// BC-11: whatever moment a deadline hits, nothing stays open on the server and what InTx says is true.
func TestInTxUnderTinyDeadlines(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	cfg.MaxConns = 8
	db := pool(t, cfg)
	exec(t, db, "CREATE TABLE a (id int PRIMARY KEY)")
	exec(t, db, "CREATE TABLE b (id int PRIMARY KEY)")
	const calls = 400
	results := make([]error, calls)
	var wg sync.WaitGroup
	work := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range work {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
				results[i] = InTx(ctx, db, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, "INSERT INTO a VALUES ($1)", i); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "INSERT INTO b VALUES ($1)", i)
					return err
				})
				cancel()
			}
		})
	}
	for i := range calls {
		work <- i
	}
	close(work)
	wg.Wait()
	eventually(t, 5*time.Second, func() error {
		if n := one[int](t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"); n > 0 {
			return fmt.Errorf("%d sessions are idle in transaction", n)
		}
		return nil
	})
	if n := one[int](t, db, "SELECT count(*) FROM a FULL JOIN b USING (id) WHERE a.id IS NULL OR b.id IS NULL"); n != 0 {
		t.Errorf("%d halves were committed", n)
	}
	for i, err := range results {
		there := one[bool](t, db, "SELECT EXISTS (SELECT FROM a WHERE id = $1)", i)
		if !CommitUnknown(err) && there != (err == nil) {
			t.Errorf("call %d: in the table %t, InTx said %v", i, there, err)
		}
	}
}

func TestInTxCancelledBeforeCommitRollsBack(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	cfg.MaxConns = 1
	db := pool(t, cfg)
	exec(t, db, "CREATE TABLE t (n int)")
	pid := one[int32](t, db, "SELECT pg_backend_pid()")
	ctx, cancel := context.WithCancel(t.Context())
	err := InTx(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
		cancel()
		return err
	})
	if !errors.Is(err, context.Canceled) || one[int](t, db, "SELECT count(*) FROM t") != 0 {
		t.Errorf("got %v", err)
	}
	if again := one[int32](t, db, "SELECT pg_backend_pid()"); again != pid {
		t.Error("the connection was thrown away: the rollback ran under the context that had ended")
	}
}

// A COMMIT that was sent is awaited, so that the caller learns its outcome.
func TestInTxWaitsForACommitThatWasSent(t *testing.T) {
	t.Parallel()
	db := open(t)
	exec(t, db, "CREATE TABLE t (n int)")
	exec(t, db, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END'`)
	exec(t, db, "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := InTx(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
		return err
	})
	if err != nil || ctx.Err() == nil || one[int](t, db, "SELECT count(*) FROM t") != 1 {
		t.Errorf("got %v, context %v", err, ctx.Err())
	}
}

func TestInTxSaysWhenTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	db := open(t)
	exec(t, db, "CREATE TABLE t (n int)")
	exec(t, db, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'`)
	exec(t, db, "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()")
	runs := 0
	err := InTx(t.Context(), db, func(tx pgx.Tx) error {
		runs++
		_, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (1)")
		return err
	})
	if !CommitUnknown(err) || !Trouble(err) || runs != 1 {
		t.Errorf("%d runs, %v", runs, err)
	}
}

// A connection that died while idle is no reason to fail: nothing was sent on it.
func TestInTxSurvivesConnectionsThatDiedIdle(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	db, other := pool(t, cfg), pool(t, cfg)
	one[int](t, db, "SELECT 1")
	pid := one[int32](t, db, "SELECT pg_backend_pid()")
	exec(t, other, "SELECT pg_terminate_backend($1, 5000)", pid)
	if err := InTx(t.Context(), db, func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), "SELECT 1"); return err }); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestRetryPassesOtherErrorsOn(t *testing.T) {
	t.Parallel()
	runs := 0
	own := &pgconn.PgError{Code: uniqueViolation}
	if err := Retry(t.Context(), func() error { runs++; return own }); !errors.Is(err, own) || runs != 1 {
		t.Errorf("%d runs, %v", runs, err)
	}
}
