// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Harness is one fresh store for the suite.
type Harness struct {
	// Store is empty.
	Store outbox.Store
	// Add puts committed, numbered events in, in order: Append is no part of a Store.
	Add func(t testing.TB, events ...*auditv1.AuditEvent)
	// InTx runs f in a transaction and commits it; nil for a store without transactions.
	InTx func(t testing.TB, f func(tx pgx.Tx))
	// OneProcess says why what several workers may rely on is not shown for this store; empty shows it.
	OneProcess string
}

// RunStoreSuite runs the conformance suite. open is called once for each subtest.
func RunStoreSuite(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"claims in number order and to the limit":    testClaimOrder,
		"a claim changes no status":                  testClaimKeepsStatus,
		"a page is bounded in bytes":                 testClaimBytes,
		"repeat starters are claimed alone":          testClaimAlone,
		"an exception is left out":                   testClaimExcept,
		"a held entry is not claimed twice":          testHeld,
		"an expired claim is taken over":             testExpiry,
		"renewal extends a claim":                    testRenew,
		"release gives the claim count back":         testRelease,
		"every legal outcome is written":             testSettle,
		"every illegal move is refused":              testIllegal,
		"a lost token settles nothing":               testLostToken,
		"part of a page is lost":                     testPartlyLost,
		"deferred entries become due":                testMakeDeferredDue,
		"requeue resets and keeps the old error":     testRequeue,
		"requeue refuses and skips":                  testRequeueRefusals,
		"list filters and pages":                     testList,
		"get says what is not there":                 testGetNotFound,
		"status counts":                              testStatus,
		"two claimants share a queue without a copy": testTwoClaimants,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// Long and short leases: a long one never ends within a test.
const (
	longLease  = time.Minute
	shortLease = 50 * time.Millisecond
)

func request(rows int) outbox.ClaimRequest {
	return outbox.ClaimRequest{
		Owner: "suite", Token: uuid.New(), Rows: rows, Bytes: 8 << 20, Lease: longLease, AloneAfter: 3,
	}
}

func claim(t testing.TB, s outbox.Store, req outbox.ClaimRequest) outbox.Page {
	t.Helper()
	page, err := s.Claim(t.Context(), req)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return page
}

// mustClaim claims until n entries are under the request's token: what was deferred or expired gets due at its own time, each
// entry at its own.
func mustClaim(t testing.TB, s outbox.Store, req outbox.ClaimRequest, n int) outbox.Page {
	t.Helper()
	var all outbox.Page
	eventually(t, 5*time.Second, func() error {
		page := claim(t, s, req)
		page.Messages = append(all.Messages, page.Messages...)
		if all = page; len(all.Messages) != n {
			return fmt.Errorf("claimed %d entries, want %d", len(all.Messages), n)
		}
		return nil
	})
	return all
}

func settle(t testing.TB, s outbox.Store, token uuid.UUID, outcomes ...outbox.Outcome) outbox.Settled {
	t.Helper()
	settled, err := s.Settle(t.Context(), token, outcomes)
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	return settled
}

func get(t testing.TB, s outbox.Store, id uuid.UUID) (outbox.Record, []outbox.Transition) {
	t.Helper()
	r, history, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return r, history
}

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

func idOf(e *auditv1.AuditEvent) uuid.UUID { return uuid.MustParse(e.GetAuditId()) }

func outcome(m outbox.Message, to outbox.Status) outbox.Outcome {
	o := outbox.Outcome{EventID: m.EventID, From: m.Status, To: to}
	switch to {
	case outbox.StatusDelivered:
		o.Provider, o.RecordID = "suite", "1-1"
	case outbox.StatusDeferred:
		o.Code, o.Delay = "broker.unavailable", time.Hour
	case outbox.StatusRetryableFailure:
		o.Code, o.Delay, o.UsesAttempt = "broker.refused", time.Hour, true
	case outbox.StatusFailed:
		o.Code, o.UsesAttempt = outbox.CodeTooLarge, true
	case outbox.StatusDeadLettered:
		o.Code, o.Reason, o.UsesAttempt = "broker.refused", outbox.CodeAttemptsExhausted, true
	}
	return o
}

func testGetNotFound(t *testing.T, h Harness) {
	t.Helper()
	if _, _, err := h.Store.Get(t.Context(), uuid.Must(uuid.NewV7())); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("Get of an unknown id: %v, want ErrNotFound", err)
	}
}
