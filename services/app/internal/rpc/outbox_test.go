// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

// failedEvent returns the name of an event that the broker would not take.
func (b *bundle) failedEvent() string {
	b.t.Helper()
	var id uuid.UUID
	b.must(b.db.Super.QueryRow(b.t.Context(), `
		UPDATE audit_outbox SET status = 'DEAD_LETTERED', attempts = 10, last_error_code = 'broker.refused',
		       last_error_at = clock_timestamp(), dead_letter_reason = 'outbox.attempts_exhausted'
		WHERE event_id = (SELECT event_id FROM audit_outbox WHERE status = 'PENDING' ORDER BY append_no LIMIT 1)
		RETURNING event_id`).Scan(&id))
	return "outboxEvents/" + id.String()
}

func (b *bundle) requeue(ctx context.Context, names ...string) error {
	_, err := b.outbox.RequeueOutboxEvents(ctx, &outboxv1.RequeueOutboxEventsRequest{Names: names, Reason: "broker was full"})
	return err
}

// TestRequeue starts from a dead letter and ends with an event that waits again, its history, and the operator's own
// record of it (U14, U77, T8).
func TestRequeue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, _ := b.as("Ada")
	b.project(ada)
	name := b.failedEvent()
	operator, operatorID := b.as("Olga", "operator")

	dead, err := b.outbox.ListOutboxEvents(operator, &outboxv1.ListOutboxEventsRequest{
		Statuses: []outboxv1.OutboxEventStatus{outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED}, ErrorCode: "broker.refused",
	})
	b.must(err)
	if list := dead.GetOutboxEvents(); len(list) != 1 || list[0].GetName() != name || list[0].GetDeadLetterReason() != "outbox.attempts_exhausted" {
		t.Fatalf("dead letters are %v", list)
	}

	request := &outboxv1.RequeueOutboxEventsRequest{Names: []string{name}, Reason: "broker was full", RequestId: uuid.NewString()}
	for range 2 { // the second is a repeat
		r, err := b.outbox.RequeueOutboxEvents(operator, request)
		b.must(err)
		if r.GetRequeuedCount() != 1 {
			t.Errorf("requeued %d", r.GetRequeuedCount())
		}
	}
	types, events := b.news()
	if types != "app.outbox.requeued" {
		t.Fatalf("recorded %q", types)
	}
	if e := events[0]; e.GetResource().GetType() != "outbox_event" || "outboxEvents/"+e.GetResource().GetId() != name ||
		e.GetMetadata()["reason"] != "broker was full" || e.GetActor().GetId() != operatorID || e.GetOperation() != auditv1.Operation_OPERATION_OPERATE {
		t.Errorf("event is %v", e)
	}

	got, err := b.outbox.GetOutboxEvent(operator, &outboxv1.GetOutboxEventRequest{Name: name})
	b.must(err)
	if e := got.GetOutboxEvent(); e.GetStatus() != outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING || e.GetAttempts() != 0 {
		t.Errorf("requeued event is %v", e)
	}
	if got.GetAuditEvent().GetAuditId() != got.GetOutboxEvent().GetEventId() || got.GetPayloadSize() == 0 || len(got.GetPayloadSha256()) != 64 {
		t.Errorf("event is %v", got)
	}
	if len(got.GetTransitions()) != 1 {
		t.Fatalf("transitions are %v", got.GetTransitions())
	}
	if tr := got.GetTransitions()[0]; tr.GetActor() != operatorID || tr.GetReason() != "broker was full" ||
		tr.GetFromStatus() != outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED || tr.GetToStatus() != outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING {
		t.Errorf("transition is %v", tr)
	}
}

// TestRequeueIsAllOrNothing: one event that cannot be requeued keeps all from it; that is recorded, and nothing else.
func TestRequeueIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, _ := b.as("Ada")
	operator, _ := b.as("Olga", "operator")
	b.project(ada)
	b.project(ada)
	dead := b.failedEvent()
	var pending uuid.UUID
	b.must(b.db.Super.QueryRow(t.Context(), `SELECT event_id FROM audit_outbox WHERE status = 'PENDING' LIMIT 1`).Scan(&pending))
	unknown := uuid.Must(uuid.NewV7())

	b.wantError(b.requeue(operator, dead, "outboxEvents/"+pending.String()), codes.FailedPrecondition, "OUTBOX_EVENT_NOT_FAILED")
	b.wantError(b.requeue(operator, dead, "outboxEvents/"+unknown.String()), codes.NotFound, "OUTBOX_EVENT_NOT_FOUND")
	if types, _ := b.news(); types != "app.outbox.refused app.outbox.refused" {
		t.Errorf("recorded %q", types)
	}
	got, err := b.outbox.GetOutboxEvent(operator, &outboxv1.GetOutboxEventRequest{Name: dead})
	b.must(err)
	if s := got.GetOutboxEvent().GetStatus(); s != outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED {
		t.Errorf("the dead letter is %v", s)
	}
	_, err = b.outbox.GetOutboxEvent(operator, &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/" + unknown.String()})
	b.wantError(err, codes.NotFound, "OUTBOX_EVENT_NOT_FOUND")
}

// TestOutboxRoles: operators, auditors and admins read, operators requeue, and nobody else does either.
func TestOutboxRoles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, _ := b.as("Ada")
	b.project(ada)
	name := b.failedEvent()
	for role, may := range map[string]struct{ read, requeue bool }{
		"": {}, "auditor": {read: true}, "admin": {read: true}, "operator": {read: true, requeue: true},
	} {
		ctx, _ := b.as("X"+role, role)
		b.news()
		status, err := b.outbox.GetOutboxStatus(ctx, &outboxv1.GetOutboxStatusRequest{})
		if may.read {
			b.must(err)
			if status.GetOwner() != "app" || status.GetUnsealedCount() == 0 || status.GetReadTime() == nil || len(status.GetCounts()) == 0 {
				t.Errorf("status for %q is %v", role, status)
			}
		} else {
			b.wantError(err, codes.PermissionDenied, "ROLE_REQUIRED")
			if types, _ := b.news(); types != "app.call.refused" {
				t.Errorf("recorded %q", types)
			}
		}
		if err := b.requeue(ctx, name); may.requeue {
			b.must(err)
		} else {
			b.wantError(err, codes.PermissionDenied, "ROLE_REQUIRED")
		}
	}
}

// TestOutboxPages walks the outbox by its tokens: newest first, each event once.
func TestOutboxPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, _ := b.as("Ada", "auditor")
	for range 3 {
		b.project(ada)
	}
	seen := map[string]bool{}
	request := &outboxv1.ListOutboxEventsRequest{PageSize: 2, EventType: "app.*"}
	last := "~"
	for {
		r, err := b.outbox.ListOutboxEvents(ada, request)
		b.must(err)
		for _, e := range r.GetOutboxEvents() {
			if seen[e.GetName()] || e.GetName() > last {
				t.Errorf("%s is out of place", e.GetName())
			}
			seen[e.GetName()], last = true, e.GetName()
		}
		if request.PageToken = r.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
		_, err = b.outbox.ListOutboxEvents(ada, &outboxv1.ListOutboxEventsRequest{PageToken: request.GetPageToken(), EventType: "app.project.*"})
		b.wantError(err, codes.InvalidArgument, "PAGE_TOKEN_INVALID")
	}
	if len(seen) != 6 {
		t.Errorf("listed %d events, want 6", len(seen))
	}
}
