// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"sync"
	"time"

	"github.com/google/uuid"
)

// circuit remembers whether the broker is in trouble. Open, it lets one entry
// through at a time, after a pause that grows with every failure.
type circuit struct {
	least, most time.Duration
	rand        func() float64

	mu       sync.Mutex
	failures int // in a row; 0: closed
	until    time.Time
	probed   uuid.UUID // the entry that failed the last probe
}

// trip opens the circuit, or keeps it open, and returns the pause.
func (c *circuit) trip(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures++
	pause := jittered(c.least, c.most, c.failures, c.rand)
	c.until = now.Add(pause)
	return pause
}

// failedProbe notes which entry to leave out of the next probe.
func (c *circuit) failedProbe(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probed = id
}

// postpone puts off the next probe a little: there was nothing to probe with.
func (c *circuit) postpone(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = now.Add(c.least)
}

// close closes the circuit and reports whether it was open.
func (c *circuit) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.failures > 0
	c.failures, c.until, c.probed = 0, time.Time{}, uuid.Nil
	return was
}

func (c *circuit) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures > 0
}

// untilProbe returns how long until the next probe may go, and whether the circuit is open.
func (c *circuit) untilProbe(now time.Time) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until.Sub(now), c.failures > 0
}

func (c *circuit) lastProbe() uuid.UUID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.probed
}

func (c *circuit) failuresInRow() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures
}

// jittered is the nth pause: a random part ("full jitter") of least doubled n-1
// times, at most most. It is never under a quarter of least, so nothing spins.
func jittered(least, most time.Duration, n int, rand func() float64) time.Duration {
	top := doubled(least, most, n-1)
	return max(least/4, time.Duration(rand()*float64(top)))
}

// doubled returns unit doubled n times, at most most.
func doubled(unit, most time.Duration, n int) time.Duration {
	for ; n > 0 && unit < most; n-- {
		unit *= 2
	}
	return min(unit, most)
}
