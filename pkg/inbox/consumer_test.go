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

	"github.com/counterfoil/counterfoil/pkg/inbox"
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
				b.exec(`UPDATE consumer_inbox SET state = $2::text, next_retry_at = clock_timestamp() `+due+` interval '1 hour',
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
