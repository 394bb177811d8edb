// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// samplePause is the pause between two looks.
const samplePause = 250 * time.Millisecond

// Sample is where all events of both owners are at one moment, and who answers.
type Sample struct {
	At time.Time
	// Appended counts the events in both outboxes, Waiting those that the broker has not accepted, Flying those that it
	// has and Admin has not taken over, Staged those that Admin holds and has not recorded, Recorded those in audit_logs.
	Appended, Waiting, Flying, Staged, Recorded int
	// Handling counts the work of all of Admin's consumers that is not done.
	Handling int
	// Admin and Redis answer.
	Admin, Redis bool
}

// Quiet tells whether nothing is on its way. What is dead or parked is not.
func (s Sample) Quiet() bool { return s.Waiting == 0 && s.Flying == 0 && s.Handling == 0 }

// Look counts in all three databases, in the order in which events travel back: what is counted as recorded was appended
// before.
func (s System) Look(ctx context.Context) (Sample, error) {
	var at Sample
	var taken, delivered int
	err := s.Databases[Admin].QueryRow(ctx, `
		SELECT (SELECT count(*) FROM audit_logs WHERE owner <> 'admin'),
		       (SELECT count(*) FROM consumer_inbox WHERE consumer = 'audit-log' AND finished_at IS NULL),
		       (SELECT count(*) FROM consumer_inbox WHERE finished_at IS NULL),
		       (SELECT count(*) FROM ledger_entries WHERE owner <> 'admin')`).Scan(&at.Recorded, &at.Staged, &at.Handling, &taken)
	if err != nil {
		return at, fmt.Errorf("count at admin: %w", err)
	}
	for _, owner := range []string{"auth", "app"} {
		var appended, waiting int
		err := s.Databases[owner].QueryRow(ctx, `
			SELECT count(*), count(*) FILTER (WHERE status IN ('PENDING', 'DEFERRED', 'RETRYABLE_FAILURE')) FROM audit_outbox`,
		).Scan(&appended, &waiting)
		if err != nil {
			return at, fmt.Errorf("count outbox of %s: %w", owner, err)
		}
		at.Appended, at.Waiting, delivered = at.Appended+appended, at.Waiting+waiting, delivered+appended-waiting
	}
	at.Flying = max(0, delivered-taken)
	at.At, at.Admin, at.Redis = time.Now(), s.adminAnswers(ctx), RedisAnswers(ctx, s.RedisAddr)
	return at, nil
}

// watch looks until it is told to stop.
type watch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	samples []Sample // read after stop
	err     error
}

func (s System) startWatch(ctx context.Context) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{cancel: cancel}
	w.done.Go(func() {
		tick := time.NewTicker(samplePause)
		defer tick.Stop()
		for {
			sample, err := s.Look(ctx)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				w.err = err
				return
			}
			w.samples = append(w.samples, sample)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return w
}

func (w *watch) stop() ([]Sample, error) {
	w.cancel()
	w.done.Wait()
	return w.samples, w.err
}
