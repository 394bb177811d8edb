// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"testing"
	"time"

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
