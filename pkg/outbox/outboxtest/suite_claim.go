// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxtest

import (
	"cmp"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/pkg/outbox"
)

func testClaimOrder(t *testing.T, h Harness) {
	t.Helper()
	events := Events(7)
	events[3], events[5] = events[5], events[3] // ids do not decide the order
	h.Add(t, events...)
	first, second := claim(t, h.Store, request(4)), claim(t, h.Store, request(4))
	if len(first.Messages) != 4 || len(second.Messages) != 3 {
		t.Fatalf("claimed %d and %d, want 4 and 3", len(first.Messages), len(second.Messages))
	}
	for i, m := range append(first.Messages, second.Messages...) {
		if m.EventID != idOf(events[i]) || m.LedgerSeq != int64(i)+1 {
			t.Errorf("place %d: event %v number %d, want %v", i, m.EventID, m.LedgerSeq, idOf(events[i]))
		}
		if m.LedgerID == uuid.Nil || len(m.Payload) == 0 || m.EventType != events[i].GetEventType() || m.MaxAttempts != 10 {
			t.Errorf("place %d: the message is not whole: %+v", i, m)
		}
	}
}

func testClaimKeepsStatus(t *testing.T, h Harness) {
	t.Helper()
	e := Event()
	h.Add(t, e)
	before, _ := get(t, h.Store, idOf(e))
	req := request(10)
	page := claim(t, h.Store, req)
	r, history := get(t, h.Store, idOf(e))
	if r.Status != outbox.StatusPending || r.ClaimOwner != "suite" || r.ClaimCount != 1 || len(history) != 0 {
		t.Errorf("claimed entry: %+v with %d transitions", r, len(history))
	}
	if left := r.ClaimExpiresAt.Sub(r.ClaimedAt); left < longLease-time.Second || left > longLease+time.Second {
		t.Errorf("the lease is %v, want %v", left, longLease)
	}
	if before.ClaimOwner != "" || page.Token != req.Token || page.Alone {
		t.Errorf("before: %+v; page: token %v alone %v", before, page.Token, page.Alone)
	}
}

func testClaimBytes(t *testing.T, h Harness) {
	t.Helper()
	events := Events(4)
	for _, e := range events {
		e.Metadata = map[string]string{"note": strings.Repeat("x", 500)}
	}
	h.Add(t, events...)
	r, _ := get(t, h.Store, idOf(events[0]))
	req := request(10)
	req.Bytes = int64(2*r.PayloadBytes + r.PayloadBytes/2)
	if got := len(claim(t, h.Store, req).Messages); got != 2 {
		t.Errorf("claimed %d entries of %d bytes within %d, want 2", got, r.PayloadBytes, req.Bytes)
	}
	req = request(10)
	req.Bytes = 1
	if got := len(claim(t, h.Store, req).Messages); got != 1 {
		t.Errorf("claimed %d entries, want the first over the limit alone", got)
	}
}

func testClaimAlone(t *testing.T, h Harness) {
	t.Helper()
	events := Events(3)
	h.Add(t, events[0])
	for range 3 { // three starts without an outcome
		req := request(1)
		req.Lease = time.Millisecond
		page := mustClaim(t, h.Store, req, 1)
		if page.Alone || page.Messages[0].EventID != idOf(events[0]) {
			t.Fatalf("claimed %v, alone %v; want the first entry in company", page.IDs(), page.Alone)
		}
	}
	h.Add(t, events[1:]...)
	var page outbox.Page
	eventually(t, 5*time.Second, func() error {
		page = claim(t, h.Store, request(10))
		if len(page.Messages) == 2 { // its last claim has not ended yet: give the neighbours back
			_, err := h.Store.Release(t.Context(), page.Token, page.IDs())
			return cmp.Or(err, errors.New("the repeat starter is still claimed"))
		}
		return nil
	})
	if len(page.Messages) != 1 || !page.Alone || page.Messages[0].EventID != idOf(events[0]) || page.Messages[0].ClaimCount != 4 {
		t.Fatalf("claimed %+v, alone %v; want the repeat starter alone", page.IDs(), page.Alone)
	}
	if rest := claim(t, h.Store, request(10)); len(rest.Messages) != 2 || rest.Alone {
		t.Errorf("its neighbours: %d entries, alone %v; want 2 together", len(rest.Messages), rest.Alone)
	}
}

func testClaimExcept(t *testing.T, h Harness) {
	t.Helper()
	events := Events(2)
	h.Add(t, events...)
	req := request(1)
	req.Except = idOf(events[0])
	if page := claim(t, h.Store, req); len(page.Messages) != 1 || page.Messages[0].EventID != idOf(events[1]) {
		t.Errorf("claimed %v, want the second entry", page.IDs())
	}
	if page := claim(t, h.Store, req); len(page.Messages) != 0 {
		t.Errorf("claimed %v, want nothing", page.IDs())
	}
}

func testHeld(t *testing.T, h Harness) {
	t.Helper()
	h.Add(t, Events(5)...)
	if got := len(claim(t, h.Store, request(10)).Messages); got != 5 {
		t.Fatalf("claimed %d, want 5", got)
	}
	if got := len(claim(t, h.Store, request(10)).Messages); got != 0 {
		t.Errorf("claimed %d entries that another holds", got)
	}
}

func testExpiry(t *testing.T, h Harness) {
	t.Helper()
	h.Add(t, Events(5)...)
	req := request(10)
	req.Lease = shortLease
	old := claim(t, h.Store, req)
	taken := mustClaim(t, h.Store, request(10), 5)
	if taken.Messages[0].ClaimCount != 2 {
		t.Errorf("claim count %d, want 2: the first claim had no outcome", taken.Messages[0].ClaimCount)
	}
	if n, err := h.Store.Renew(t.Context(), old.Token, old.IDs(), longLease); err != nil || n != 0 {
		t.Errorf("renewal of a lost claim: %d, %v; want 0", n, err)
	}
}

func testRenew(t *testing.T, h Harness) {
	t.Helper()
	e := Event()
	h.Add(t, e)
	req := request(1)
	req.Lease = 10 * time.Second
	page := claim(t, h.Store, req)
	before, _ := get(t, h.Store, idOf(e))
	if n, err := h.Store.Renew(t.Context(), page.Token, page.IDs(), longLease); err != nil || n != 1 {
		t.Fatalf("Renew: %d, %v; want 1", n, err)
	}
	after, _ := get(t, h.Store, idOf(e))
	if after.ClaimExpiresAt.Sub(before.ClaimExpiresAt) < 40*time.Second {
		t.Errorf("the claim ends at %v, was %v", after.ClaimExpiresAt, before.ClaimExpiresAt)
	}
}

func testRelease(t *testing.T, h Harness) {
	t.Helper()
	h.Add(t, Events(3)...)
	page := claim(t, h.Store, request(10))
	if n, err := h.Store.Release(t.Context(), page.Token, page.IDs()); err != nil || n != 3 {
		t.Fatalf("Release: %d, %v; want 3", n, err)
	}
	if n, err := h.Store.Release(t.Context(), page.Token, page.IDs()); err != nil || n != 0 {
		t.Errorf("second Release: %d, %v; want 0", n, err)
	}
	again := claim(t, h.Store, request(10))
	if len(again.Messages) != 3 || again.Messages[0].ClaimCount != 1 {
		t.Errorf("claimed %d with count %d; want 3 at once, and the count given back", len(again.Messages), again.Messages[0].ClaimCount)
	}
}

func testTwoClaimants(t *testing.T, h Harness) {
	t.Helper()
	if h.OneProcess != "" {
		t.Logf("not shown: %s", h.OneProcess)
		return
	}
	const total = 2000
	h.Add(t, Events(total)...)
	var mu sync.Mutex
	seen := make(map[uuid.UUID]int, total)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				page, err := h.Store.Claim(t.Context(), request(50))
				if err != nil {
					t.Errorf("Claim: %v", err)
					return
				}
				mu.Lock()
				for _, id := range page.IDs() {
					seen[id]++
				}
				done := len(seen) == total
				mu.Unlock()
				if done || len(page.Messages) == 0 {
					return
				}
			}
		})
	}
	wg.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%v was claimed %d times while its claim lived", id, n)
		}
	}
	if len(seen) != total {
		t.Errorf("claimed %d of %d", len(seen), total)
	}
}
