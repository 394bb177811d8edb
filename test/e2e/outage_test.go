// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// (U57, U80) Redis and Admin are away: business goes on as before, and everything is recorded once they are back. Not
// parallel: it compares times. Three rounds and their medians, since a busy machine can spoil one.
func TestBusinessGoesOnWithoutRedisAndAdmin(t *testing.T) {
	o := newOperator(t, harness.Options{})
	const calls, workers, pace, rounds = 400, 4, 20 * time.Millisecond, 3
	o.load(calls/2, workers, pace) // connections, plans and caches
	var healthy, alone []time.Duration
	for range rounds {
		out := o.load(calls, workers, pace)
		healthy = append(healthy, out.p99)
		for _, err := range out.failed {
			t.Errorf("a call failed with everything there: %v", err)
		}

		o.system.Redis.Kill()
		o.system.Service("admin", 0).Kill()
		out = o.load(calls, workers, pace)
		alone = append(alone, out.p99)
		for _, err := range out.failed {
			t.Errorf("a call failed without Redis and Admin: %v", err)
		}
		var waiting int
		if err := o.system.DB("app").QueryRow(t.Context(), "SELECT count(*) FROM audit_outbox WHERE status <> 'DELIVERED'").Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		if waiting < calls {
			t.Errorf("%d events wait in the outbox, want the %d of the outage: the test does not test", waiting, calls)
		}
		for _, name := range []string{"auth", "app"} {
			if err := o.system.Service(name, 0).WaitReady(t.Context()); err != nil {
				t.Errorf("not ready without Redis: %v", err)
			}
		}

		if err := o.system.Redis.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := o.system.Service("admin", 0).Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		report := o.quiet(t, 90*time.Second)
		if report.Recorded != report.Events {
			t.Errorf("%+v", report)
		}
	}
	slices.Sort(healthy)
	slices.Sort(alone)
	t.Logf("p99 with everything there %v, without Redis and Admin %v", healthy, alone)
	// Ten milliseconds are what other work on the machine may add to either; the rest is the promise.
	if limit := healthy[rounds/2]*3/2 + 10*time.Millisecond; alone[rounds/2] > limit {
		t.Errorf("p99 %v, want at most %v", alone[rounds/2], limit)
	}
}

// (U61) Redis loses everything while Admin holds rows that it took over and has not handled: none of them needs Redis
// any more, and events that come later find their way, too.
func TestWipedRedisDoesNotTouchStagedRows(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{})
	// Nobody can write the log while this transaction is open: takeover goes on, handling does not.
	lock, err := o.system.DB("admin").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "LOCK TABLE audit_logs IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	const events = 200
	if out := o.load(events, 4, time.Millisecond); len(out.failed) > 0 {
		t.Fatal(out.failed[0])
	}
	count := func(owner, sql string) (n int) {
		t.Helper()
		if err := o.system.DB(owner).QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	harness.Eventually(t, 30*time.Second, func() error {
		appended := count("app", "SELECT count(*) FROM audit_outbox") + count("auth", "SELECT count(*) FROM audit_outbox")
		if taken := count("admin", "SELECT count(*) FROM ledger_entries WHERE owner <> 'admin'"); taken < appended {
			return fmt.Errorf("%d of %d taken over", taken, appended)
		}
		return nil
	})
	staged := count("admin", "SELECT count(*) FROM consumer_inbox WHERE consumer = 'audit-log' AND finished_at IS NULL")
	if staged < events {
		t.Fatalf("%d rows are staged, want %d: the test does not test", staged, events)
	}
	harness.Eventually(t, 30*time.Second, func() error { // settled: an entry sent again would hide what is tested
		if n := count("app", "SELECT count(*) FROM audit_outbox WHERE status <> 'DELIVERED'"); n > 0 {
			return errors.New("not all delivered")
		}
		return nil
	})
	if err := o.system.WipeRedis(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := o.load(40, 4, time.Millisecond); len(out.failed) > 0 {
		t.Fatal(out.failed[0])
	}
	report := o.quiet(t, 90*time.Second)
	if report.Recorded != report.Events {
		t.Errorf("%+v", report)
	}
}
