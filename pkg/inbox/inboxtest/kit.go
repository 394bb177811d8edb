// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inboxtest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// NewEvent returns an event of owner that audit.Check accepts, with a fresh id; action has no owner
// prefix ("user.registered").
func NewEvent(t testing.TB, owner, action string) *auditv1.AuditEvent {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return &auditv1.AuditEvent{
		AuditId: id.String(), EventType: owner + "." + action + ".v1", SchemaVersion: 1, Owner: owner, Action: owner + "." + action,
		Operation: auditv1.Operation_OPERATION_UPDATE, Outcome: auditv1.Outcome_OUTCOME_SUCCEEDED,
		Actor:     &auditv1.Actor{Type: "user", Id: "0190b3c4-0000-7000-8000-000000000001", DisplayName: audit.Plain("Ada")},
		Resource:  &auditv1.Resource{Type: "user", Id: uuid.NewString(), Version: 1, DisplayName: audit.Plain("ada@example.org")},
		OccurTime: timestamppb.Now(),
		Changes:   []*auditv1.Change{{Field: "email", OldValue: audit.Plain("a@example.org"), NewValue: audit.Plain("b@example.org")}},
		Context:   &auditv1.RequestContext{CorrelationId: uuid.NewString(), UserAgent: "inboxtest"},
	}
}

// NewKeys returns a keyring with one key, made from id.
func NewKeys(t testing.TB, id string) *envelope.Keyring {
	t.Helper()
	secret := make([]byte, 32)
	copy(secret, id)
	keys, err := envelope.NewKeyring(envelope.Key{ID: id, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// Sealed returns e's stream entry under a number of a ledger, signed.
func Sealed(t testing.TB, keys *envelope.Keyring, e *auditv1.AuditEvent, ledger uuid.UUID, seq int64) envelope.Entry {
	t.Helper()
	payload, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	out := envelope.Entry{
		EventID: uuid.MustParse(e.GetAuditId()), EventType: e.GetEventType(), Owner: e.GetOwner(), SchemaVersion: e.GetSchemaVersion(),
		LedgerID: ledger, LedgerSeq: seq, Payload: payload,
	}
	keys.Sign(&out, envelope.ToAdmin)
	return out
}

// Values returns an entry's fields as a stream reader gets them.
func Values(e envelope.Entry) map[string]any {
	fields := e.Fields()
	out := make(map[string]any, len(fields)/2)
	for i := 0; i < len(fields); i += 2 {
		name, _ := fields[i].(string)
		switch v := fields[i+1].(type) {
		case []byte:
			out[name] = string(v)
		default:
			out[name] = v
		}
	}
	return out
}

// Deliver puts events into consumer's inbox as a takeover would, PENDING. db needs the rights of the
// service that runs bridges. It returns their ids.
func Deliver(t testing.TB, db *pgxpool.Pool, consumer string, events ...*auditv1.AuditEvent) []uuid.UUID {
	t.Helper()
	byOwner := map[string][]*auditv1.AuditEvent{}
	ids := make([]uuid.UUID, len(events))
	for i, e := range events {
		ids[i] = uuid.MustParse(e.GetAuditId())
		byOwner[e.GetOwner()] = append(byOwner[e.GetOwner()], e)
	}
	keys, ledger := NewKeys(t, "inboxtest"), uuid.New()
	seq := int64(0)
	for owner, of := range byOwner {
		stream := NewStream(nil)
		for _, e := range of {
			seq++
			stream.Add(Values(Sealed(t, keys, e, ledger, seq)))
		}
		if len(byOwner) > 1 {
			ledger = uuid.New()
		}
		b, err := inbox.NewBridge(inbox.BridgeOptions{
			DB: db, Source: stream.Source("inboxtest", time.Minute), Owner: owner, Keys: keys, PageRows: 10000,
			Catalog: inbox.Catalog{Subscriptions: []inbox.Subscription{{Consumer: consumer}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for taken := 0; taken < len(of); {
			n, err := b.Once(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			taken += n
		}
		if s := b.Stats(); s.Received != int64(len(of)) {
			t.Fatalf("delivered %d of %d events: %v", s.Received, len(of), s.PoisonReasons)
		}
	}
	return ids
}

// ApplyTwice runs handler on the events in a committed transaction and then again in another, as a
// redelivery would. Compare what is in the database afterwards with what one run leaves.
func ApplyTwice(t testing.TB, db *pgxpool.Pool, handler inbox.Handler, events ...*auditv1.AuditEvent) {
	t.Helper()
	for attempt := 1; attempt <= 2; attempt++ {
		batch := make([]inbox.Event, len(events))
		for i, e := range events {
			payload, err := proto.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			batch[i] = inbox.Event{
				ID: uuid.MustParse(e.GetAuditId()), Owner: e.GetOwner(), Type: e.GetEventType(), SchemaVersion: e.GetSchemaVersion(),
				LedgerID: uuid.Nil, LedgerSeq: int64(i + 1), Payload: payload, Audit: e, Attempt: attempt,
			}
		}
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			return handler(ctx, tx, batch)
		})
		if err != nil {
			t.Fatalf("run %d of the handler: %v", attempt, err)
		}
	}
}

// RequireState fails the test unless the consumer's row of the event is in the state.
func RequireState(t testing.TB, db *pgxpool.Pool, consumer string, event uuid.UUID, want inbox.State) {
	t.Helper()
	var got inbox.State
	err := db.QueryRow(t.Context(), `SELECT state FROM consumer_inbox WHERE consumer = $1 AND event_id = $2`, consumer, event).Scan(&got)
	if err != nil {
		t.Fatalf("state of %s for %s: %v", event, consumer, err)
	}
	if got != want {
		t.Fatalf("%s is %s for %s, want %s", event, got, consumer, want)
	}
}
