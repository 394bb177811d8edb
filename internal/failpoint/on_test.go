// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"slices"
	"testing"
	"time"
)

func TestHookRunsOnTheNthHitAlone(t *testing.T) {
	var got []string
	SetHook(func(name string) { got = append(got, name) })
	if err := Arm("outbox.claimed=hook@2,outbox.settled=hook"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		Hit(OutboxClaimed)
	}
	Hit(OutboxSettled)
	Hit(OutboxSealed)
	if want := []string{OutboxClaimed, OutboxSettled}; !slices.Equal(got, want) {
		t.Errorf("hook ran for %v, want %v", got, want)
	}
}

func TestStallWaits(t *testing.T) {
	if err := Arm("outbox.sealed=stall:30ms@1"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	Hit(OutboxSealed)
	if d := time.Since(start); d < 30*time.Millisecond {
		t.Errorf("stalled %v, want 30ms", d)
	}
}

func TestBadSpecsAreRefused(t *testing.T) {
	for _, spec := range []string{"nope=exit", "outbox.sealed", "outbox.sealed=boom", "outbox.sealed=exit@0", "outbox.sealed=stall:x"} {
		if err := Arm(spec); err == nil {
			t.Errorf("Arm(%q) accepted it", spec)
		}
	}
}
