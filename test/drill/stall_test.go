// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/test/harness"
)

// stalled is the longest that a frozen worker may delay the events that it holds, at default settings: its lease, and the
// poll of the worker that goes on.
const stalled = 32 * time.Second

// (T11, T12) A worker is frozen right after its side effect, before it marks its events: they wait for its lease to end and no
// longer. When it wakes up it cannot finish what its successor has done. With DRILL_FULL=1 at default settings, otherwise
// four times as fast.
// It guards: the session's idle time-out is below the lease, and the mark matches the lease's token.
func TestFrozenWorkerDelaysItsEventsByOneLease(t *testing.T) {
	t.Parallel()
	opts := harness.Options{BuildTags: "failpoints", Replicas: map[string]int{"admin": 2}, TimeScale: 4}
	if os.Getenv("DRILL_FULL") == "1" {
		opts.TimeScale = 1
	}
	d := start(t, opts)
	project, err := d.createProject(d.ctx)
	if err != nil {
		t.Fatal(err)
	}
	d.quiet(t)

	// The first worker finds events that wait and stalls with its first batch; the other starts once that one is frozen.
	first, second := d.Service("admin", 0), d.Service("admin", 1)
	first.Kill()
	second.Kill()
	if err := d.importMembers(d.ctx, project, 50); err != nil {
		t.Fatal(err)
	}
	d.delivered(t, d.count(t).Events)
	first.Setenv(failpoint.Env, failpoint.InboxEffectApplied+"=stall:5s@1")
	if err := first.Launch(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, func() error {
		if !strings.Contains(first.LogTail(20), "stall at "+failpoint.InboxEffectApplied) {
			return errors.New("it has not come to the point")
		}
		return nil
	})
	if err := first.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := second.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	held, leased := d.heldBy(t, first.String())
	if len(held) == 0 {
		t.Fatal("the frozen worker holds nothing: the test does not test")
	}

	bound := d.scaled(stalled)
	harness.Eventually(t, patience, func() error {
		if n := get[int](t, d, "admin", "SELECT count(*) FROM audit_logs WHERE event_id = ANY ($1)", held); n < len(held) {
			return fmt.Errorf("%d of %d events are recorded", n, len(held))
		}
		return nil
	})
	recorded := get[time.Time](t, d, "admin", "SELECT max(record_time) FROM audit_logs WHERE event_id = ANY ($1)", held)
	delay := recorded.Sub(leased)
	t.Logf("%d events of a frozen worker were recorded %v after it took them, which is %v at default settings",
		len(held), delay.Round(time.Millisecond), time.Duration(float64(delay)*d.scale).Round(10*time.Millisecond))
	if delay > bound {
		t.Errorf("recorded after %v, want at most %v", delay, bound)
	}

	marks := get[string](t, d, "admin", markTimes, held)
	if err := first.Resume(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, func() error { // the zombie has come to its mark
		for _, line := range logLines(t, first) {
			if line.Time.After(recorded) && (line.Level == "WARN" || line.Level == "ERROR") {
				return nil
			}
		}
		return errors.New("the zombie has not noticed")
	})
	if again := get[string](t, d, "admin", markTimes, held); again != marks {
		t.Errorf("the zombie changed rows of its successor: %s, then %s", marks, again)
	}
	d.allRecorded(t)
}

const markTimes = "SELECT string_agg(state || finished_at, ' ' ORDER BY event_id) FROM consumer_inbox WHERE event_id = ANY ($1)"

// heldBy lists the events under a worker's leases, and when it took them.
func (d *drill) heldBy(t *testing.T, worker string) ([]uuid.UUID, time.Time) {
	t.Helper()
	var ids []uuid.UUID
	var since *time.Time // next_retry_at is when a lease began
	err := d.DB("admin").QueryRow(t.Context(), `
		SELECT coalesce(array_agg(event_id), '{}'), min(next_retry_at)
		FROM consumer_inbox WHERE lease_owner = $1 AND state = 'PROCESSING'`, worker).Scan(&ids, &since)
	if err != nil {
		t.Fatal(err)
	}
	if since == nil {
		return nil, time.Time{}
	}
	return ids, *since
}
