// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// The first success after an outage makes everything due, also what another dispatcher put off for longer: its own pause has
// grown to half a minute, and its entries must not wait that out while new ones pass.
func TestTheFirstSuccessMakesAllDeferredDue(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	other, err := outbox.NewDispatcher(outbox.DispatcherOptions{
		Store: b.store, Publisher: b.broker, Now: b.clock.Now, Rand: func() float64 { return 0.999 },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.broker.Reply(outboxtest.Refuse(outbox.FaultBroker, "broker.unavailable"))
	waiting := b.add(1)[0]
	b.once(1)
	for range 10 { // its pause grows to the longest
		b.clock.advance(time.Minute)
		b.once(1)
	}
	if left := b.record(waiting).NextAttemptTime.Sub(b.clock.now); left < 25*time.Second {
		t.Fatalf("the entry is due in %v, want half a minute", left)
	}

	b.add(1)
	if n, err := other.Once(t.Context()); n != 1 || err != nil { // the other one meets the outage, too: a short pause
		t.Fatalf("the other dispatcher: %d, %v", n, err)
	}
	b.broker.Reply(nil)
	b.clock.advance(time.Second)
	if n, err := other.Once(t.Context()); n != 1 || err != nil || other.Stats().CircuitOpen {
		t.Fatalf("its probe: %d, %v, open=%v", n, err, other.Stats().CircuitOpen)
	}
	if left := b.record(waiting).NextAttemptTime.Sub(b.clock.now); left > 0 {
		t.Errorf("the broker is back, and the entry is due in %v", left)
	}
	if n, err := other.Once(t.Context()); n != 1 || err != nil {
		t.Errorf("the next page: %d, %v; want the entry that waited", n, err)
	}
	if r := b.record(waiting); r.Status != outbox.StatusDelivered {
		t.Errorf("the entry that waited is %s", r.Status)
	}
}

// BC-26: twelve dispatchers use up the attempts of an entry that always fails as slowly as one does: its due time stands in
// its row. (A refusal that a dispatcher cannot tell from the broker's own trouble uses none, and is tried again sooner.)
func TestTwelveDispatchersRetryLikeOne(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	const interval, enough = 250 * time.Millisecond, 10
	bad := outboxtest.Event()
	p.broker.Reply(outboxtest.RefuseOnly(outbox.FaultRefused, "broker.refused", idOf(bad)))
	appendAll(t, p.db.Service, bad)
	if _, err := p.db.Super.Exec(t.Context(), "UPDATE audit_outbox SET max_attempts = 1000"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 12 {
		p.run(p.dispatcher(func(o *outbox.DispatcherOptions) {
			o.Poll, o.RetryUnit, o.RetryMax, o.CircuitMin = 20*time.Millisecond, interval, interval, 10*time.Millisecond
		}))
	}
	var attempts int
	eventually(t, time.Minute, func() error {
		appendAll(t, p.db.Service, outboxtest.Events(12)...) // others are accepted, so that its failures are its own
		if attempts = p.record(bad).Attempts; attempts < enough {
			return fmt.Errorf("%d attempts: %w", attempts, errNotYet)
		}
		return nil
	})
	if most := int(time.Since(start)/interval) + 1; attempts > most {
		t.Errorf("%d attempts in %v by twelve dispatchers, want at most %d, one in %v", attempts, time.Since(start), most, interval)
	}
}

// BC-26: an outage and a backlog, and the broker gets no flood when it is back: while it is away it sees probes of one entry,
// and afterwards each dispatcher has one page with it at a time, and nothing goes out twice.
func TestARecoveryIsPacedByTheBroker(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	const dispatchers, pageRows, total = 12, 100, 10_000
	inTx(t, p.db.Service, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, outboxtest.Events(total)...) })
	var broker busyBroker
	broker.down.Store(true)
	for range dispatchers {
		p.run(p.dispatcher(func(o *outbox.DispatcherOptions) {
			o.Publisher, o.PageRows, o.Poll = &broker, pageRows, 50*time.Millisecond
			o.CircuitMin, o.CircuitMax = 50*time.Millisecond, 400*time.Millisecond
		}))
	}
	eventually(t, 20*time.Second, func() error {
		if refused := broker.probes.Load(); refused < 60 {
			return fmt.Errorf("%d probes: %w", refused, errNotYet)
		}
		return nil
	})
	if pages := broker.pages.Load(); pages > 2*dispatchers { // one in flight and one claimed before the circuit opened
		t.Errorf("%d whole pages went to a broker that is away, want at most two for each dispatcher", pages)
	}
	broker.down.Store(false)
	p.untilDelivered(total, 30*time.Second)
	broker.mu.Lock()
	defer broker.mu.Unlock()
	if broker.most > dispatchers*pageRows {
		t.Errorf("%d entries were with the broker at once, want at most a page of %d for each dispatcher", broker.most, pageRows)
	}
	for id, n := range broker.accepted {
		if n != 1 {
			t.Errorf("%v was accepted %d times", id, n)
		}
	}
}

// busyBroker takes its time and counts what is with it at once.
type busyBroker struct {
	down          atomic.Bool
	probes, pages atomic.Int64 // that it refused

	mu        sync.Mutex
	now, most int
	accepted  map[uuid.UUID]int
}

func (b *busyBroker) Name() string { return "busy" }

func (b *busyBroker) Publish(ctx context.Context, msgs []outbox.Message) []outbox.Result {
	if b.down.Load() {
		if len(msgs) == 1 {
			b.probes.Add(1)
		} else {
			b.pages.Add(1)
		}
		return outboxtest.Refuse(outbox.FaultBroker, "broker.unavailable")(ctx, msgs)
	}
	b.mu.Lock()
	b.now += len(msgs)
	b.most = max(b.most, b.now)
	if b.accepted == nil {
		b.accepted = map[uuid.UUID]int{}
	}
	for i := range msgs {
		b.accepted[msgs[i].EventID]++
	}
	b.mu.Unlock()
	pause(20 * time.Millisecond)
	b.mu.Lock()
	b.now -= len(msgs)
	b.mu.Unlock()
	return outboxtest.Accept(ctx, msgs)
}
