// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxtest

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// mixed adds twelve events, two of each status, of two types and different times.
func mixed(t *testing.T, h Harness) []*auditv1.AuditEvent {
	t.Helper()
	statuses := outbox.Statuses()
	events := Events(2 * len(statuses))
	for i, e := range events {
		e.OccurTime = timestamppb.New(e.GetOccurTime().AsTime().Add(-time.Duration(i) * time.Minute))
		if i%2 == 1 {
			e.Action, e.EventType, e.Resource.Type = "auth.login_policy.updated", "auth.login_policy.updated.v1", "login_policy"
		}
	}
	h.Add(t, events...)
	page := claim(t, h.Store, request(len(events)))
	var outcomes []outbox.Outcome
	for i, m := range page.Messages {
		if to := statuses[i/2]; to != outbox.StatusPending {
			outcomes = append(outcomes, outcome(m, to))
		}
	}
	settle(t, h.Store, page.Token, outcomes...)
	return events
}

func testList(t *testing.T, h Harness) {
	t.Helper()
	events := mixed(t, h)
	all, err := h.Store.List(t.Context(), outbox.Filter{})
	if err != nil || len(all) != len(events) {
		t.Fatalf("List: %d records, %v; want %d", len(all), err, len(events))
	}
	newestFirst := slices.IsSortedFunc(all, func(a, b outbox.Record) int { return slices.Compare(b.EventID[:], a.EventID[:]) })
	if !newestFirst {
		t.Error("records are not newest first")
	}
	middle := all[len(all)/2]
	for name, f := range map[string]outbox.Filter{
		"status":         {Statuses: []outbox.Status{outbox.StatusFailed}},
		"two statuses":   {Statuses: []outbox.Status{outbox.StatusFailed, outbox.StatusDeadLettered}},
		"type":           {EventType: "auth.login_policy.updated.v1"},
		"type prefix":    {EventType: "auth.login_*"},
		"no such type":   {EventType: "auth.login"},
		"percent":        {EventType: "%*"},
		"id":             {EventID: middle.EventID},
		"error code":     {ErrorCode: outbox.CodeTooLarge},
		"dead reason":    {ErrorCode: outbox.CodeAttemptsExhausted},
		"resource type":  {ResourceType: "login_policy"},
		"resource id":    {ResourceType: middle.ResourceType, ResourceID: middle.ResourceID},
		"from":           {OccurredFrom: middle.OccurTime},
		"before":         {OccurredBefore: middle.OccurTime},
		"after":          {After: middle.EventID},
		"type and state": {EventType: "auth.user.*", Statuses: []outbox.Status{outbox.StatusDelivered}},
	} {
		var want []uuid.UUID
		for _, r := range all {
			if f.Matches(r) {
				want = append(want, r.EventID)
			}
		}
		got, err := h.Store.List(t.Context(), f)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.EqualFunc(got, want, func(r outbox.Record, id uuid.UUID) bool { return r.EventID == id }) {
			t.Errorf("%s: %d records, want %d", name, len(got), len(want))
		}
		if len(want) == len(all) {
			t.Errorf("%s: the case filters nothing", name)
		}
	}
	pages(t, h, len(all))
}

func pages(t *testing.T, h Harness, want int) {
	t.Helper()
	var after uuid.UUID
	total := 0
	for {
		got, err := h.Store.List(t.Context(), outbox.Filter{Limit: 5, After: after})
		if err != nil {
			t.Fatal(err)
		}
		if total += len(got); len(got) < 5 {
			break
		}
		after = got[len(got)-1].EventID
	}
	if total != want {
		t.Errorf("pages of five gave %d records, want %d", total, want)
	}
	if _, err := h.Store.List(t.Context(), outbox.Filter{Limit: -1}); err == nil {
		t.Error("a negative limit was accepted")
	}
}

func testStatus(t *testing.T, h Harness) {
	t.Helper()
	mixed(t, h)
	s, err := h.Store.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range outbox.Statuses() {
		if s.Depth[status] != 2 {
			t.Errorf("%s: %d, want 2", status, s.Depth[status])
		}
	}
	if s.ClaimsHeld != 2 || s.Unsealed != 0 || s.Head != 12 || s.LedgerID == uuid.Nil {
		t.Errorf("%d claims held, %d unsealed, head %d of ledger %v; want 2, 0, 12", s.ClaimsHeld, s.Unsealed, s.Head, s.LedgerID)
	}
	if s.DeadByReason[outbox.CodeTooLarge] != 2 || s.DeadByReason[outbox.CodeAttemptsExhausted] != 2 {
		t.Errorf("dead by reason: %v", s.DeadByReason)
	}
	if s.OldestUndelivered <= 0 || s.OldestUndelivered > time.Minute || s.Time.IsZero() {
		t.Errorf("the oldest open entry is %v old at %v", s.OldestUndelivered, s.Time)
	}
}
