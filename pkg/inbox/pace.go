// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// pause is a backoff that doubles with full jitter (the wait is anywhere between zero and the
// current limit, but never under a tenth of it).
type pause struct {
	least, most time.Duration
	jitter      func() float64
	limit       time.Duration
}

// next returns the next wait.
func (p *pause) next() time.Duration {
	p.limit = min(max(p.limit*2, p.least), p.most)
	return max(time.Duration(p.jitter()*float64(p.limit)), p.limit/10)
}

// reset makes the next wait a short one again.
func (p *pause) reset() { p.limit = 0 }

// sleep waits for d, for a wake-up if wake is not nil, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-wake:
	}
}

// throttle lets one line of a kind through in each interval and counts the others.
type throttle struct {
	log   *slog.Logger
	every time.Duration
	now   func() time.Time

	mu   sync.Mutex
	last map[string]time.Time
	held map[string]int
}

func newThrottle(log *slog.Logger, every time.Duration, now func() time.Time) *throttle {
	return &throttle{log: log, every: every, now: now, last: map[string]time.Time{}, held: map[string]int{}}
}

// say logs message, which is its own kind, unless it was logged a moment ago. Kinds are few: message is a constant.
func (t *throttle) say(ctx context.Context, level slog.Level, message string, attrs ...slog.Attr) {
	t.mu.Lock()
	now := t.now()
	if last, ok := t.last[message]; ok && now.Sub(last) < t.every {
		t.held[message]++
		t.mu.Unlock()
		return
	}
	held := t.held[message]
	t.last[message], t.held[message] = now, 0
	t.mu.Unlock()
	if held > 0 {
		attrs = append(attrs, slog.Int("not_logged", held))
	}
	t.log.LogAttrs(ctx, level, message, attrs...) //nolint:sloglint // a constant at each caller
}
