// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
)

// The mark moves past a place only when nobody can still commit below it.
func TestSealMark(t *testing.T) {
	t.Parallel()
	var m sealMark
	m.pass(0, 100, 90, 50, true) // 90 is still running: it may have drawn any number below 50
	m.pass(50, 101, 90, 60, true)
	m.pass(50, 102, 90, 0, true)
	if m.safe != 0 {
		t.Errorf("the mark is %d while an older transaction runs", m.safe)
	}
	m.pass(50, 103, 101, 20, false) // it ended, and left more than a page below 50
	if m.safe != 0 {
		t.Errorf("the mark is %d with events left below it", m.safe)
	}
	m.pass(50, 104, 104, 70, true) // everything older than the pass after the candidate has ended
	if m.safe != 50 || m.candidate != 70 {
		t.Errorf("mark %d, candidate %d; want 50 and 70", m.safe, m.candidate)
	}
	m.pass(70, 105, 104, 0, true)
	if m.safe != 50 {
		t.Errorf("the mark is %d, want 50: a transaction with a later id may have drawn before", m.safe)
	}
	m.pass(70, 106, 105, 0, true)
	if m.safe != 70 {
		t.Errorf("the mark is %d, want 70", m.safe)
	}
	m.pass(0, 110, 110, 80, true)
	m.pass(70, 109, 109, 0, true) // noted late: it cannot be what the pass after 80 is measured by
	m.pass(70, 109, 109, 0, true)
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
	l.saw(0, 40, 45, now, 0)
	if got := l.start(now.Add(time.Second), 5*time.Second); got != 39 {
		t.Errorf("starts at %d, want just below the lowest open place", got)
	}
	l.saw(39, 0, 90, now, 0)
	if got := l.start(now.Add(2*time.Second), 5*time.Second); got != 90 {
		t.Errorf("starts at %d, want what was claimed last: nothing below is open", got)
	}
	if got := l.start(now.Add(6*time.Second), 5*time.Second); got != 0 {
		t.Errorf("starts at %d, want the full scan", got)
	}
	l.saw(0, 40, 95, now, 0)
	if got := l.start(now.Add(7*time.Second), 5*time.Second); got != 39 {
		t.Errorf("starts at %d, want just below what the full scan found open again", got)
	}
}

// Where a slow transaction may commit below, the mark trails; with the defaults too it moves, whatever full scans there are.
func TestLowWaterTrails(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	o := NewPostgres(nil, PostgresOptions{Unnumbered: true}).o
	var l lowWater
	for second := range int64(60) {
		now := begin.Add(time.Duration(second) * time.Second)
		from := l.start(now, o.FullScan)
		if full := second%5 == 0; full != (from == 0) && second > 10 {
			t.Errorf("after %d s a claim starts at %d", second, from)
		}
		if before := max(second-10, 0) * 100; from > before {
			t.Errorf("after %d s a claim starts at %d: what was claimed %v ago is at most %d", second, from, o.Trail, before)
		}
		l.saw(from, 0, (second+1)*100, now, o.Trail)
	}
	if l.mark == 0 {
		t.Error("the mark never moved")
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

// Of two callers of one sealer, one waits for the ledger while the other numbers. The id that the waiting pass drew before
// says nothing of who can still commit below what the other numbered meanwhile: a writer that is younger than the one and
// drew its place before the other is found by the mark all the same.
func TestMarkIsNotMeasuredByAPassThatWaited(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	s, err := NewSealer(db.Service, SealerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const insert = `
		INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id, payload)
		VALUES (gen_random_uuid(), now(), 1, 'auth.login.failed.v1', 'LOGIN', 'user', '', '')`
	begin := func() pgx.Tx {
		tx, err := db.Service.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		return tx
	}
	exec := func(tx pgx.Tx, sql string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	first := begin()
	exec(first, insert)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	// One pass waits for the ledger with its id drawn; then come the slow writer and one that is faster.
	holder := begin()
	exec(holder, "SELECT FROM audit_ledger FOR UPDATE")
	waited := make(chan error, 1)
	go func() { _, _, _, err := s.Seal(t.Context(), nil); waited <- err }()
	for waiting := false; !waiting; {
		const sql = `SELECT EXISTS (SELECT FROM pg_locks AS l JOIN pg_locks AS x USING (virtualtransaction)
			WHERE NOT l.granted AND x.locktype = 'transactionid' AND x.granted AND l.pid IN (
				SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND usename = 'auth_service'))`
		if err := db.Super.QueryRow(t.Context(), sql).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-waited:
			t.Fatalf("the pass did not wait: %v", err)
		default:
		}
	}
	slow := begin()
	exec(slow, insert)
	fast := begin()
	exec(fast, insert)
	if err := fast.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	// What another pass did meanwhile is noted, as by a second caller who had the lock first.
	var last int64
	if err := db.Super.QueryRow(t.Context(), "SELECT max(append_no) FROM audit_outbox").Scan(&last); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.mark.candidate = last
	s.mu.Unlock()
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if err := slow.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, n, _, err := s.Seal(t.Context(), nil); n != 1 || err != nil {
		t.Fatalf("%d sealed, %v; want the slow writer's event", n, err)
	}
}

// A transaction elsewhere on the server holds back what a snapshot knows, and not the mark: it writes to no outbox.
func TestSealMarkPassesStrangers(t *testing.T) {
	t.Parallel()
	db, other := testdb.New(t, testdb.Auth).WithoutGuard(t), testdb.New(t, testdb.App).WithoutGuard(t)
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
	if s.markNow().safe == 0 {
		t.Error("the mark waits for a transaction of another database")
	}
}
