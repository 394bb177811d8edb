// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// A24: how many dispatchers run, and whether any does, is the host's choice while it runs. Off, business goes on and its events
// wait, unclaimed; on again, the same Dispatcher carries them, each once.
func TestDispatchersAreSwitchedOffAndOn(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	first, second := p.dispatcher(nil), p.dispatcher(nil)
	offFirst, offSecond := p.run(first), p.run(second)
	appendAll(t, p.db.Service, outboxtest.Events(50)...)
	p.untilDelivered(50, 10*time.Second)

	offFirst()
	offSecond()
	appendAll(t, p.db.Service, outboxtest.Events(50)...)
	first.Wake() // is for one that runs
	pause(300 * time.Millisecond)
	if depth := p.depth(); depth[outbox.StatusDelivered] != 50 || depth[outbox.StatusPending] != 50 {
		t.Errorf("switched off: %v, want 50 delivered before and 50 pending", depth)
	}
	if n := one[int](t, p.db.Super, "SELECT count(*) FROM audit_outbox WHERE claim_token IS NOT NULL"); n != 0 {
		t.Errorf("%d entries are claimed by nobody who runs", n)
	}

	p.run(first)
	p.untilDelivered(100, 10*time.Second)
	p.run(second)
	appendAll(t, p.db.Service, outboxtest.Events(50)...)
	p.untilDelivered(150, 10*time.Second)
	for id, n := range p.broker.Published() {
		if n != 1 {
			t.Errorf("%v went out %d times", id, n)
		}
	}
}
