// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package outboxtest is the test kit of package outbox: what a service uses to
// show that its operations record what they should, a publisher that obeys the
// test, and the conformance suite that every outbox.Store passes.
//
// It is for tests alone and promises nothing about speed.
package outboxtest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Appended returns the types of the events that tx has appended so far, in order.
func Appended(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, "SELECT event_type FROM audit_outbox WHERE tx = pg_current_xact_id_if_assigned() ORDER BY append_no")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// RequireAppended fails the test unless tx has appended events of exactly these
// types, in this order. No types means that it must have appended nothing.
func RequireAppended(t testing.TB, tx pgx.Tx, types ...string) {
	t.Helper()
	got, err := Appended(t.Context(), tx)
	if err != nil {
		t.Fatalf("read what the transaction appended: %v", err)
	}
	if !slices.Equal(got, types) {
		t.Fatalf("the transaction appended %q, want %q", got, types)
	}
}

// Event returns a valid event with a fresh id, of the type auth.user.registered.v1,
// about a resource of its own at version 1. Tests change what they care about.
func Event() *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId:       uuid.Must(uuid.NewV7()).String(),
		EventType:     "auth.user.registered.v1",
		SchemaVersion: 1,
		Owner:         "auth",
		Action:        "auth.user.registered",
		Operation:     auditv1.Operation_OPERATION_CREATE,
		Actor:         &auditv1.Actor{Type: "user", Id: uuid.NewString(), DisplayName: audit.Plain("Ada")},
		Resource:      &auditv1.Resource{Type: "user", Id: uuid.Must(uuid.NewV7()).String(), Version: 1},
		Outcome:       auditv1.Outcome_OUTCOME_SUCCEEDED,
		OccurTime:     timestamppb.New(time.Now().UTC().Truncate(time.Microsecond)),
	}
}

// Events returns n different events.
func Events(n int) []*auditv1.AuditEvent {
	out := make([]*auditv1.AuditEvent, n)
	for i := range out {
		out[i] = Event()
	}
	return out
}

// Publisher is a fake broker. Its zero value accepts everything. It is safe for concurrent use.
type Publisher struct {
	mu    sync.Mutex
	reply func(context.Context, []outbox.Message) []outbox.Result
	calls [][]outbox.Message
	count map[uuid.UUID]int
}

var _ outbox.Publisher = (*Publisher)(nil)

// Name implements outbox.Publisher.
func (p *Publisher) Name() string { return "fake" }

// Publish implements outbox.Publisher: it notes the call and gives the reply that was set.
func (p *Publisher) Publish(ctx context.Context, msgs []outbox.Message) []outbox.Result {
	p.mu.Lock()
	p.calls = append(p.calls, msgs)
	if p.count == nil {
		p.count = make(map[uuid.UUID]int)
	}
	for i := range msgs {
		p.count[msgs[i].EventID]++
	}
	reply := p.reply
	p.mu.Unlock()
	if reply == nil {
		reply = Accept
	}
	return reply(ctx, msgs)
}

// Reply sets what later calls answer; nil accepts everything. The function runs without a lock and may block or panic.
func (p *Publisher) Reply(reply func(context.Context, []outbox.Message) []outbox.Result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reply = reply
}

// Accept accepts every message.
func Accept(_ context.Context, msgs []outbox.Message) []outbox.Result {
	out := make([]outbox.Result, len(msgs))
	for i := range msgs {
		out[i].RecordID = "fake-" + msgs[i].EventID.String()
	}
	return out
}

// Refuse returns a reply that gives every message the same fault.
func Refuse(kind outbox.FaultKind, code string) func(context.Context, []outbox.Message) []outbox.Result {
	return func(_ context.Context, msgs []outbox.Message) []outbox.Result {
		out := make([]outbox.Result, len(msgs))
		for i := range out {
			out[i].Fault = outbox.Fault{Kind: kind, Code: code}
		}
		return out
	}
}

// RefuseOnly returns a reply that refuses the given events and accepts the rest.
func RefuseOnly(kind outbox.FaultKind, code string, ids ...uuid.UUID) func(context.Context, []outbox.Message) []outbox.Result {
	return func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		out := Accept(ctx, msgs)
		for i := range msgs {
			if slices.Contains(ids, msgs[i].EventID) {
				out[i] = outbox.Result{Fault: outbox.Fault{Kind: kind, Code: code}}
			}
		}
		return out
	}
}

// Calls returns the pages published so far, in order.
func (p *Publisher) Calls() [][]outbox.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls)
}

// Published returns how often each event was handed over.
func (p *Publisher) Published() map[uuid.UUID]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.count)
}
