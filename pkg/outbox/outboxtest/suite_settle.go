// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxtest

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/outbox"
)

func testSettle(t *testing.T, h Harness) {
	t.Helper()
	for _, to := range outbox.Statuses() {
		if to == outbox.StatusPending {
			continue
		}
		e := Event()
		h.Add(t, e)
		page := mustClaim(t, h.Store, request(1), 1)
		o := outcome(page.Messages[0], to)
		s := settle(t, h.Store, page.Token, o)
		if s.Count != 1 || s.Kept != nil || s.Time.IsZero() {
			t.Errorf("%s: settled %+v, want 1", to, s)
		}
		r, history := get(t, h.Store, idOf(e))
		if r.Status != to || r.ClaimOwner != "" || !r.ClaimExpiresAt.IsZero() || r.ClaimCount != 0 {
			t.Errorf("%s: entry is %+v", to, r)
		}
		if want := map[bool]int{true: 1}[o.UsesAttempt]; r.Attempts != want {
			t.Errorf("%s: %d attempts, want %d", to, r.Attempts, want)
		}
		if r.LastErrorCode != o.Code || r.DeadReason != o.Reason || r.LastErrorAt.IsZero() != (o.Code == "") {
			t.Errorf("%s: error %q at %v, reason %q", to, r.LastErrorCode, r.LastErrorAt, r.DeadReason)
		}
		if r.Provider != o.Provider || r.RecordID != o.RecordID || r.DeliveredAt.IsZero() != (to != outbox.StatusDelivered) {
			t.Errorf("%s: provider %q, record %q, delivered %v", to, r.Provider, r.RecordID, r.DeliveredAt)
		}
		if to.Open() && r.NextAttemptTime.Sub(s.Time) < o.Delay-time.Second {
			t.Errorf("%s: due in %v, want %v", to, r.NextAttemptTime.Sub(s.Time), o.Delay)
		}
		if to == outbox.StatusDelivered {
			if len(history) != 0 {
				t.Errorf("plain delivery left %d transitions, want none", len(history))
			}
			continue
		}
		if len(history) != 1 || history[0].From != outbox.StatusPending || history[0].To != to || history[0].Code != o.Code {
			t.Errorf("%s: history %+v", to, history)
		}
	}
}

// testIllegal tries every pair of statuses (U67).
func testIllegal(t *testing.T, h Harness) {
	t.Helper()
	e := Event()
	h.Add(t, e)
	page := claim(t, h.Store, request(1))
	for _, from := range append(outbox.Statuses(), "CLAIMED", "") {
		for _, to := range append(outbox.Statuses(), "CLAIMED", "") {
			legal := from.Open() && to.Valid() && to != outbox.StatusPending
			_, err := h.Store.Settle(t.Context(), uuid.New(), []outbox.Outcome{{EventID: page.Messages[0].EventID, From: from, To: to}})
			if (err == nil) != legal {
				t.Errorf("%s to %s: error %v, legal %v", from, to, err, legal)
			}
		}
	}
	if r, _ := get(t, h.Store, idOf(e)); r.Status != outbox.StatusPending || r.ClaimOwner == "" {
		t.Errorf("the entry moved: %+v", r)
	}
}

func testLostToken(t *testing.T, h Harness) {
	t.Helper()
	e := Event()
	h.Add(t, e)
	req := request(1)
	req.Lease = time.Millisecond
	old := claim(t, h.Store, req)
	heir := mustClaim(t, h.Store, request(1), 1)
	// A page that was accepted whole may have a statement of its own.
	for _, to := range []outbox.Status{outbox.StatusDelivered, outbox.StatusFailed} {
		if s := settle(t, h.Store, old.Token, outcome(old.Messages[0], to)); s.Count != 0 || len(s.Kept) != 0 {
			t.Errorf("a lost token settled %+v as %s", s, to)
		}
	}
	if n, err := h.Store.Release(t.Context(), old.Token, old.IDs()); err != nil || n != 0 {
		t.Errorf("a lost token released %d, %v", n, err)
	}
	if r, _ := get(t, h.Store, idOf(e)); r.Status != outbox.StatusPending || r.ClaimCount != 2 {
		t.Errorf("the heir's entry is %+v", r)
	}
	if s := settle(t, h.Store, heir.Token, outcome(heir.Messages[0], outbox.StatusDelivered)); s.Count != 1 {
		t.Errorf("the heir settled %+v, want 1", s)
	}
	if s := settle(t, h.Store, heir.Token, outcome(heir.Messages[0], outbox.StatusDelivered)); s.Count != 0 {
		t.Errorf("a repeated settle wrote %+v, want nothing", s)
	}
}

func testPartlyLost(t *testing.T, h Harness) {
	t.Helper()
	for _, to := range []outbox.Status{outbox.StatusDelivered, outbox.StatusFailed} {
		h.Add(t, Events(3)...)
		page := claim(t, h.Store, request(3))
		settle(t, h.Store, page.Token, outcome(page.Messages[1], outbox.StatusDelivered))
		var all []outbox.Outcome
		for _, m := range page.Messages {
			all = append(all, outcome(m, to))
		}
		s := settle(t, h.Store, page.Token, all...)
		if s.Count != 2 || len(s.Kept) != 2 {
			t.Errorf("settled %+v as %s, want the two that were still held, by name", s, to)
		}
	}
}

func testMakeDeferredDue(t *testing.T, h Harness) {
	t.Helper()
	h.Add(t, Events(4)...)
	page := claim(t, h.Store, request(3))
	settle(t, h.Store, page.Token, outcome(page.Messages[0], outbox.StatusDeferred), outcome(page.Messages[1], outbox.StatusDeferred),
		outcome(page.Messages[2], outbox.StatusRetryableFailure))
	rest := claim(t, h.Store, request(10))
	if len(rest.Messages) != 1 {
		t.Fatalf("claimed %d entries, want only the one that is due", len(rest.Messages))
	}
	if n, err := h.Store.MakeDeferredDue(t.Context()); err != nil || n != 2 {
		t.Fatalf("MakeDeferredDue: %d, %v; want 2", n, err)
	}
	due := claim(t, h.Store, request(10))
	if len(due.Messages) != 2 || due.Messages[0].Status != outbox.StatusDeferred || due.Messages[0].Attempts != 0 ||
		due.Messages[0].ClaimCount != 1 || due.Messages[0].LastErrorAt.IsZero() {
		t.Errorf("claimed %+v, want both deferred entries, without an attempt or a claim used", due.Messages)
	}
}

// inTx runs f with a transaction, or with nil for a store that has none.
func inTx(t testing.TB, h Harness, f func(tx pgx.Tx)) {
	t.Helper()
	if h.InTx == nil {
		f(nil)
		return
	}
	h.InTx(t, f)
}

func testRequeue(t *testing.T, h Harness) {
	t.Helper()
	for _, to := range []outbox.Status{outbox.StatusFailed, outbox.StatusDeadLettered} {
		e := Event()
		h.Add(t, e)
		page := mustClaim(t, h.Store, request(1), 1)
		o := outcome(page.Messages[0], to)
		settle(t, h.Store, page.Token, o)
		for i, want := range []int{1, 0} { // the second finds nothing to do
			inTx(t, h, func(tx pgx.Tx) {
				n, err := h.Store.Requeue(t.Context(), tx, []uuid.UUID{idOf(e)}, "operator-1", "broker limit raised")
				if err != nil || n != want {
					t.Errorf("%s: requeue %d moved %d, %v; want %d", to, i+1, n, err, want)
				}
			})
		}
		r, history := get(t, h.Store, idOf(e))
		if r.Status != outbox.StatusPending || r.Attempts != 0 || r.ClaimCount != 0 || r.RedeliveryCount != 0 || r.LastErrorCode != "" || r.DeadReason != "" {
			t.Errorf("%s: requeued entry is %+v", to, r)
		}
		last := history[len(history)-1]
		if len(history) != 2 || last.Name != "requeued" || last.From != to || last.To != outbox.StatusPending || last.Actor != "operator-1" ||
			last.Reason != "broker limit raised" || last.Code == "" {
			t.Errorf("%s: history %+v", to, history)
		}
		settle(t, h.Store, mustClaim(t, h.Store, request(1), 1).Token) // leaves it claimed, out of the next round's way
	}
}

func testRequeueRefusals(t *testing.T, h Harness) {
	t.Helper()
	events := Events(2)
	h.Add(t, events...)
	id := []uuid.UUID{idOf(events[0])}
	inTx(t, h, func(tx pgx.Tx) {
		for name, call := range map[string]func() (int, error){
			"no actor":  func() (int, error) { return h.Store.Requeue(t.Context(), tx, id, "", "why") },
			"no reason": func() (int, error) { return h.Store.Requeue(t.Context(), tx, id, "who", "") },
			"no entry":  func() (int, error) { return h.Store.Requeue(t.Context(), tx, nil, "who", "why") },
			"too many": func() (int, error) {
				return h.Store.Requeue(t.Context(), tx, make([]uuid.UUID, outbox.MaxRequeue+1), "who", "why")
			},
		} {
			if _, err := call(); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
		if n, err := h.Store.Requeue(t.Context(), tx, []uuid.UUID{idOf(events[0]), uuid.New()}, "who", "why"); n != 0 || err != nil {
			t.Errorf("requeue of an open and an unknown entry: %d, %v; want 0", n, err)
		}
	})
}
