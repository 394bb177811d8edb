// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// pollPause is the pause between two looks.
const pollPause = 25 * time.Millisecond

// Poll looks until look finds nothing wrong. When ctx ends it returns what was wrong last.
func Poll(ctx context.Context, look func() error) error {
	tick := time.NewTicker(pollPause)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Eventually fails the test unless look finds nothing wrong before the deadline has passed.
func Eventually(t testing.TB, deadline time.Duration, look func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := Poll(ctx, look); err != nil {
		t.Fatalf("not within %v: %v", deadline, err)
	}
}

// New starts a system for a test and ends it with the test. If the test failed, the end of each service's log is shown.
// It skips the test with -short.
func New(t testing.TB, opts Options) *System {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Postgres and Redis")
	}
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, name := range Services() {
				for _, replica := range s.Replicas(name) {
					t.Logf("%s, the end of its log:\n%s", replica, replica.LogTail(30))
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("end the system: %v", err)
		}
	})
	return s
}

// Require fails the test if the oracle finds anything. The system must be quiet: nobody writes, everything has arrived.
func (s *System) Require(t testing.TB) Report {
	t.Helper()
	report, err := s.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, v := range report.Violations {
		if i == 20 {
			t.Errorf("… and %d more", len(report.Violations)-i)
			break
		}
		t.Errorf("%s", v)
	}
	return report
}

// WaitQuiet waits until every event of both owners is recorded, dead, parked or refused. It looks at cheap counts often and
// at each event only once those agree.
func (s *System) WaitQuiet(ctx context.Context) error {
	return Poll(ctx, func() error {
		if err := s.busy(ctx); err != nil {
			return err
		}
		report, err := s.Check(ctx)
		if err != nil {
			return err
		}
		if report.Open > 0 {
			return fmt.Errorf("%d of %d events are on their way", report.Open, report.Events)
		}
		return nil
	})
}

// busy tells what is still to be done, or nil.
func (s *System) busy(ctx context.Context) error {
	for _, owner := range []string{"auth", "app"} {
		var open, delivered, taken int
		err := s.pools[owner].QueryRow(ctx, `
			SELECT count(*) FILTER (WHERE ledger_seq IS NULL OR status IN ('PENDING', 'DEFERRED', 'RETRYABLE_FAILURE')),
			       count(*) FILTER (WHERE status = 'DELIVERED')
			FROM audit_outbox`).Scan(&open, &delivered)
		if err != nil {
			return fmt.Errorf("count outbox of %s: %w", owner, err)
		}
		err = s.pools["admin"].QueryRow(ctx, `
			SELECT (SELECT count(*) FROM ledger_entries WHERE owner = $1)
			     + (SELECT count(*) FROM inbox_poison WHERE owner = $1 AND kind = 'CONFLICT')`, owner).Scan(&taken)
		if err != nil {
			return fmt.Errorf("count what was taken over of %s: %w", owner, err)
		}
		if open > 0 || taken < delivered {
			return fmt.Errorf("%s: %d events to deliver, %d delivered, %d taken over", owner, open, delivered, taken)
		}
	}
	var open int
	err := s.pools["admin"].QueryRow(ctx, "SELECT count(*) FROM consumer_inbox WHERE finished_at IS NULL").Scan(&open)
	if err != nil {
		return fmt.Errorf("count inbox: %w", err)
	}
	if open > 0 {
		return fmt.Errorf("%d inbox rows to handle", open)
	}
	return nil
}

// quickBackoff tries a lost connection again within half a second.
func quickBackoff() grpc.ConnectParams {
	return grpc.ConnectParams{
		MinConnectTimeout: time.Second,
		Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
	}
}
