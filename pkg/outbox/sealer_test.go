// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// A page that its bytes cut short is never taken for all there was, however small the budget:
// else the next pass waits for a poll, and the mark moves past what the page left.
func TestPageCutByBytesIsNotTheLast(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	const budget = 1024
	s, err := outbox.NewSealer(p.db.Service, outbox.SealerOptions{Bytes: budget})
	if err != nil {
		t.Fatal(err)
	}
	large := outboxtest.Event()
	half := strings.Repeat("x", budget/2)
	large.Metadata = map[string]string{"first": half, "second": half}
	appendAll(t, p.db.Service, outboxtest.Event(), large)
	for i, want := range []struct {
		sealed int
		more   bool
	}{{1, true}, {1, true}, {0, false}} {
		if _, n, more, err := s.Seal(t.Context(), nil); n != want.sealed || more != want.more || err != nil {
			t.Errorf("pass %d: %d sealed, more %v, %v; want %+v", i, n, more, err, want)
		}
	}
}

// A standby that is promoted without the newest events draws their numbers again, below the mark of a
// sealer that outlived the change.
func TestNumbersDrawnAgainAreSealed(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	now := time.Now()
	s, err := outbox.NewSealer(p.db.Service, outbox.SealerOptions{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	seal := func() int {
		_, n, _, err := s.Seal(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 10 { // enough for the mark to follow
		appendAll(t, p.db.Service, outboxtest.Event())
		seal()
	}
	if _, err := p.db.Super.Exec(t.Context(), "ALTER TABLE audit_outbox ALTER append_no RESTART WITH 1"); err != nil {
		t.Fatal(err)
	}
	appendAll(t, p.db.Service, outboxtest.Event())
	if seal() != 0 {
		t.Fatal("the mark did not follow: this test tells nothing")
	}
	now = now.Add(time.Minute)
	if n := seal(); n != 1 {
		t.Errorf("%d events sealed by the pass from the start, want 1", n)
	}
}

// Numbers and head move exactly as read, or not at all.
func TestSealingRefusesWhatItDidNotRead(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	s, err := outbox.NewSealer(p.db.Service, outbox.SealerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, p.db.Service, outboxtest.Event(), outboxtest.Event(), outboxtest.Event())
	exec := func(sql string) {
		if _, err := p.db.Super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	// Somebody's trigger keeps one of the events from its number.
	exec(`CREATE FUNCTION skip_one() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN CASE WHEN NEW.ledger_seq <> 2 THEN NEW END; END';
		CREATE TRIGGER skip_one BEFORE UPDATE ON audit_outbox FOR EACH ROW EXECUTE FUNCTION skip_one()`)
	if _, n, _, err := s.Seal(t.Context(), nil); n != 0 || err == nil || !strings.Contains(err.Error(), "someone changes the outbox under the lock") {
		t.Errorf("%d sealed, %v", n, err)
	}
	var numbered, head int
	err = p.db.Super.QueryRow(t.Context(), "SELECT count(ledger_seq), (SELECT head FROM audit_ledger) FROM audit_outbox").Scan(&numbered, &head)
	if numbered != 0 || head != 0 || err != nil {
		t.Errorf("after a refused pass %d events are numbered and the head is %d, %v", numbered, head, err)
	}
	exec("DROP TRIGGER skip_one ON audit_outbox")
	if _, n, _, err := s.Seal(t.Context(), nil); n != 3 || err != nil {
		t.Errorf("the next pass: %d sealed, %v", n, err)
	}
}

// A database that the migrations did not finish says so, and nothing spins.
func TestSealingNeedsItsLedger(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	s, err := outbox.NewSealer(p.db.Service, outbox.SealerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, p.db.Service, outboxtest.Event())
	if _, err := p.db.Super.Exec(t.Context(), "DELETE FROM audit_ledger"); err != nil {
		t.Fatal(err)
	}
	if _, n, more, err := s.Seal(t.Context(), nil); n != 0 || more || err == nil || !strings.Contains(err.Error(), "audit_ledger has no row") {
		t.Errorf("%d sealed, more %v, %v", n, more, err)
	}
}

// A database that numbered events before it had a tree gets the whole tree first, in pages, and numbers again after it.
func TestNumbersWithoutATreeAreFoldedIn(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	s, err := outbox.NewSealer(p.db.Service, outbox.SealerOptions{Rows: 100, Bytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	seal := func() (sealed int) {
		for more := true; more; {
			var n int
			if _, n, more, err = s.Seal(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			sealed += n
		}
		return sealed
	}
	for range 50 {
		appendAll(t, p.db.Service, outboxtest.Event())
	}
	if n := seal(); n != 50 {
		t.Fatalf("%d sealed", n)
	}
	exec := func(sql string) {
		if _, err := p.db.Super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("UPDATE audit_ledger SET tree_size = 0, compact_range = '{}'")
	appendAll(t, p.db.Service, outboxtest.Event())
	if _, n, more, err := s.Seal(t.Context(), nil); n != 0 || !more || err != nil {
		t.Fatalf("%d sealed, more %v, %v; want the first page of the tree", n, more, err)
	}
	if size := one[int](t, p.db.Super, "SELECT tree_size FROM audit_ledger"); size == 0 || size >= 50 {
		t.Errorf("a tree of %d leaves after one page", size)
	}
	if n := seal(); n != 1 {
		t.Errorf("%d sealed, want the event that waited", n)
	}
	if err := faultsOfTree(t, p.db.Super); err != nil {
		t.Error(err)
	}

	// What the tree needs and is gone stops numbering with a word, and no business call.
	exec("UPDATE audit_ledger SET tree_size = 0, compact_range = '{}'; DELETE FROM audit_outbox WHERE ledger_seq = 1")
	appendAll(t, p.db.Service, outboxtest.Event())
	if _, n, _, err := s.Seal(t.Context(), nil); n != 0 || err == nil || !strings.Contains(err.Error(), "number 1 of ledger") {
		t.Errorf("%d sealed, %v", n, err)
	}
	exec(`ALTER TABLE audit_ledger DROP CONSTRAINT audit_ledger_tree_check; UPDATE audit_ledger SET tree_size = 3, compact_range = '{"\\x00"}'`)
	if _, n, _, err := s.Seal(t.Context(), nil); n != 0 || err == nil || !strings.Contains(err.Error(), "compact_range[1] has 1 bytes") {
		t.Errorf("%d sealed, %v", n, err)
	}
}

// What has a number goes out, whatever keeps the Sealer from giving more: here a ledger whose tree misses a row.
func TestSealingThatFailsHoldsUpNoNumberedEntry(t *testing.T) {
	t.Parallel()
	for name, trip := range map[string]bool{"circuit closed": false, "circuit open": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPath(t)
			if trip {
				p.broker.Reply(outboxtest.Refuse(outbox.FaultBroker, "broker.oom"))
			}
			d := p.dispatcher(func(o *outbox.DispatcherOptions) { *o = o.Scaled(10) })
			events := outboxtest.Events(3)
			appendAll(t, p.db.Service, events...)
			sealer, err := outbox.NewSealer(p.db.Service, outbox.SealerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, n, _, err := sealer.Seal(t.Context(), nil); n != 3 || err != nil {
				t.Fatalf("%d sealed, %v", n, err)
			}
			if trip {
				if _, err := d.Once(t.Context()); err != nil || !d.Stats().CircuitOpen {
					t.Fatalf("the circuit is not open, %v", err)
				}
				p.broker.Reply(nil)
			}
			_, err = p.db.Super.Exec(t.Context(), `UPDATE audit_ledger SET tree_size = 0, compact_range = '{}'; DELETE FROM audit_outbox WHERE ledger_seq = 1`)
			if err != nil {
				t.Fatal(err)
			}
			appendAll(t, p.db.Service, outboxtest.Event())
			p.run(d)
			p.untilDelivered(2, 10*time.Second)
			if n := p.depth()[outbox.StatusPending]; n != 1 {
				t.Errorf("%d are pending, want the one without a number", n)
			}
		})
	}
}
