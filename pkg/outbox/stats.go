// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"sync/atomic"
	"time"
)

// Stats is what a Dispatcher did since it was made. Counters only grow.
type Stats struct {
	// Claimed, Released and Sealed count entries.
	Claimed, Released, Sealed int64
	// Delivered, Deferred, Retried, Failed and DeadLettered count settled outcomes.
	Delivered, Deferred, Retried, Failed, DeadLettered int64
	// Lost counts entries whose claim was gone, or may be, when they were to be settled.
	Lost int64
	// StoreErrors counts failed statements.
	StoreErrors int64
	// Publishes counts calls of the publisher, and PublishTime is how long they took together.
	Publishes   int64
	PublishTime time.Duration
	// ConsecutiveFailures counts pages with broker trouble since the last success.
	ConsecutiveFailures int
	// CircuitOpen is true while the broker is in trouble.
	CircuitOpen bool
	// LastSuccess is when the broker last accepted an entry, by this process's clock; zero if never.
	LastSuccess time.Time
}

type stats struct {
	claimed, released, sealed, lost, storeErrors       atomic.Int64
	delivered, deferred, retried, failed, deadLettered atomic.Int64
	publishes, publishNanos, lastSuccess               atomic.Int64
}

func (s *stats) published(d time.Duration) {
	s.publishes.Add(1)
	s.publishNanos.Add(int64(d))
}

func (s *stats) succeeded(now time.Time) { s.lastSuccess.Store(now.UnixNano()) }

func (s *stats) settled(to Status) {
	switch to {
	case StatusDelivered:
		s.delivered.Add(1)
	case StatusDeferred:
		s.deferred.Add(1)
	case StatusRetryableFailure:
		s.retried.Add(1)
	case StatusFailed:
		s.failed.Add(1)
	case StatusDeadLettered:
		s.deadLettered.Add(1)
	}
}

// Stats returns what the Dispatcher did so far. It may be called at any time.
func (d *Dispatcher) Stats() Stats {
	s := &d.stats
	out := Stats{
		Claimed: s.claimed.Load(), Released: s.released.Load(), Sealed: s.sealed.Load(), Lost: s.lost.Load(),
		StoreErrors: s.storeErrors.Load(), Delivered: s.delivered.Load(), Deferred: s.deferred.Load(), Retried: s.retried.Load(),
		Failed: s.failed.Load(), DeadLettered: s.deadLettered.Load(), Publishes: s.publishes.Load(),
		PublishTime: time.Duration(s.publishNanos.Load()), ConsecutiveFailures: d.circuit.failuresInRow(),
	}
	out.CircuitOpen = out.ConsecutiveFailures > 0
	if at := s.lastSuccess.Load(); at != 0 {
		out.LastSuccess = time.Unix(0, at).UTC()
	}
	return out
}
