// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/memory"
	"github.com/counterfoil/counterfoil/pkg/outbox/noop"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// register is how an operation reads: what changes and what is recorded stand together, in one transaction.
func register(ctx context.Context, tx pgx.Tx, user uuid.UUID, actor string) error {
	batch := &pgx.Batch{}
	batch.Queue("INSERT INTO users (id, version) VALUES ($1, 1)", user)
	return outbox.AppendBatch(ctx, tx, batch, registered(user, actor, time.Now()))
}

// registered says what is recorded. A service keeps these in its events.go.
func registered(user uuid.UUID, actor string, now time.Time) *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId: uuid.Must(uuid.NewV7()).String(), EventType: "auth.user.registered.v1", SchemaVersion: 1,
		Owner: "auth", Action: "auth.user.registered", Operation: auditv1.Operation_OPERATION_CREATE,
		Actor:    &auditv1.Actor{Type: "user", Id: actor},
		Resource: &auditv1.Resource{Type: "user", Id: user.String(), Version: 1},
		Outcome:  auditv1.Outcome_OUTCOME_SUCCEEDED, OccurTime: timestamppb.New(now),
	}
}

// An operation changes a row and records it in one round trip.
func ExampleAppendBatch() {
	_ = register // called with an open transaction
	fmt.Println(registered(uuid.New(), "ada", time.Now()).GetEventType())
	// Output: auth.user.registered.v1
}

// A smoke run without database or broker: one event goes from PENDING to DELIVERED.
func ExampleDispatcher_Once() {
	ctx := context.Background()
	store := memory.New(memory.Options{Owner: "auth"})
	event := outboxtest.Event()
	if err := store.Add(event); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	d, err := outbox.NewDispatcher(outbox.DispatcherOptions{Store: store, Publisher: noop.Publisher{}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	show := func() {
		r, _, err := store.Get(ctx, uuid.MustParse(event.GetAuditId()))
		fmt.Println(r.Status, err)
	}
	show()
	n, err := d.Once(ctx)
	fmt.Println(n, err)
	show()
	// Output:
	// PENDING <nil>
	// 1 <nil>
	// DELIVERED <nil>
}

// A poller outside the package can list what is stuck.
func ExampleFilter() {
	stuck := outbox.Filter{
		Statuses:  []outbox.Status{outbox.StatusFailed, outbox.StatusDeadLettered},
		EventType: "auth.user.*", Limit: 100,
	}
	fmt.Println(stuck.Matches(outbox.Record{Status: outbox.StatusFailed, EventType: "auth.user.registered.v1"}))
	// Output: true
}
