// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"
)

// eventually tries f until it returns nil, and fails the test with its last error after limit.
func eventually(t testing.TB, limit time.Duration, f func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("after %v: %v", limit, err)
		case <-tick.C:
		}
	}
}

// ctxUntil returns a context that ends once done is true.
func ctxUntil(t testing.TB, done func() bool) (context.Context, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if done() {
					cancel()
					return
				}
			}
		}
	}()
	return ctx, cancel
}

var errNotYet = errors.New("not yet")
