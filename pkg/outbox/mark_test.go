// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/testdb"
)

// The mark moves past a place only when nobody can still commit below it.
func TestSealMark(t *testing.T) {
	t.Parallel()
	var m sealMark
	m.pass(100, 90, 50, true) // 90 is still running: it may have drawn any number below 50
	m.pass(101, 90, 60, true)
	m.pass(102, 90, 0, true)
	if m.safe != 0 {
		t.Errorf("the mark is %d while an older transaction runs", m.safe)
	}
	m.pass(103, 101, 20, false) // it ended, and left more than a page below 50
	if m.safe != 0 {
		t.Errorf("the mark is %d with events left below it", m.safe)
	}
	m.pass(104, 104, 70, true) // everything older than the pass after the candidate has ended
	if m.safe != 50 || m.candidate != 70 {
		t.Errorf("mark %d, candidate %d; want 50 and 70", m.safe, m.candidate)
	}
	m.pass(105, 104, 0, true)
	if m.safe != 50 {
		t.Errorf("the mark is %d, want 50: a transaction with a later id may have drawn before", m.safe)
	}
	m.pass(106, 105, 0, true)
	if m.safe != 70 {
		t.Errorf("the mark is %d, want 70", m.safe)
	}
	m.pass(110, 110, 80, true)
	m.pass(109, 109, 0, true) // noted late: it cannot be what the pass after 80 is measured by
	m.pass(109, 109, 0, true)
	if m.safe != 70 {
		t.Errorf("the mark is %d, want 70: a pass noted late moved it", m.safe)
	}
}

func TestLowWater(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var l lowWater
	if got := l.start(now, 5*time.Second); got != 0 {
		t.Errorf("the first claim starts at %d", got)
	}
	l.saw(40, 45, now, 0)
	if got := l.start(now.Add(time.Second), 5*time.Second); got != 39 {
		t.Errorf("starts at %d, want just below the lowest open place", got)
	}
	l.saw(0, 90, now, 0)
	if got := l.start(now.Add(2*time.Second), 5*time.Second); got != 90 {
		t.Errorf("starts at %d, want what was claimed last: nothing below is open", got)
	}
	if got := l.start(now.Add(6*time.Second), 5*time.Second); got != 0 {
		t.Errorf("starts at %d, want the full scan", got)
	}
	l.saw(40, 45, now, 10*time.Second) // where a slow transaction may commit below, the mark trails
	l.saw(50, 55, now.Add(9*time.Second), 10*time.Second)
	if l.mark != 0 {
		t.Errorf("the mark is %d within its trail", l.mark)
	}
	l.saw(60, 65, now.Add(11*time.Second), 10*time.Second)
	if l.mark != 39 {
		t.Errorf("the mark is %d, want what was low a trail ago", l.mark)
	}
}

func TestPauses(t *testing.T) {
	t.Parallel()
	full, none := func() float64 { return 0.999999 }, func() float64 { return 0 }
	for n, want := range []int64{200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000} {
		got := jittered(200*time.Millisecond, 30*time.Second, n+1, full)
		if got.Round(time.Millisecond).Milliseconds() != want {
			t.Errorf("pause %d is at most %v, want %d ms", n+1, got, want)
		}
	}
	if got := jittered(200*time.Millisecond, 30*time.Second, 5, none); got != 50*time.Millisecond {
		t.Errorf("the least pause is %v", got)
	}
	if got := doubled(time.Second, 5*time.Minute, 1000); got != 5*time.Minute {
		t.Errorf("doubled without end: %v", got)
	}
}

// A transaction elsewhere on the server holds back what a snapshot knows, and not the mark: it writes to no outbox.
func TestSealMarkPassesStrangers(t *testing.T) {
	t.Parallel()
	db, other := testdb.New(t, testdb.Auth), testdb.New(t, testdb.App)
	stranger, err := other.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := stranger.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	s, err := NewSealer(db.Service, SealerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		_, err := db.Service.Exec(t.Context(), `
			INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id, payload)
			VALUES (gen_random_uuid(), now(), 1, 'auth.login.failed.v1', 'LOGIN', 'user', '', '')`)
		if err != nil {
			t.Fatal(err)
		}
		if _, n, _, err := s.Seal(t.Context(), nil); n != 1 || err != nil {
			t.Fatalf("%d sealed, %v", n, err)
		}
	}
	if s.markNow() == 0 {
		t.Error("the mark waits for a transaction of another database")
	}
}
