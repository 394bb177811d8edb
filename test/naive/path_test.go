// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package naive

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// path is the whole way from a world's business database to its audit database, on a stream in memory.
type path struct {
	*world
	keys       *envelope.Keyring
	stream     *inboxtest.Stream
	fault      fault
	dispatcher *outbox.Dispatcher
	bridge     *inbox.Bridge
	consumer   *inbox.Consumer

	applied int
	seen    map[uuid.UUID]bool
}

func newPath(t *testing.T, w *world) *path {
	t.Helper()
	p := &path{world: w, keys: inboxtest.NewKeys(t, "auth-1"), stream: inboxtest.NewStream(nil), seen: map[uuid.UUID]bool{}}
	sealer, err := outbox.NewSealer(w.business, outbox.SealerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.dispatcher, err = outbox.NewDispatcher(outbox.DispatcherOptions{
		Store: outbox.NewPostgres(w.business, outbox.PostgresOptions{}), Publisher: p, Sealer: sealer,
		CircuitMin: time.Millisecond, CircuitMax: 2 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.consumer, err = inbox.NewConsumer(inbox.ConsumerOptions{DB: w.audit, Name: "log", Handler: p.record})
	if err != nil {
		t.Fatal(err)
	}
	p.bridge, err = inbox.NewBridge(inbox.BridgeOptions{
		DB: w.audit, Source: p.stream.Source("naive", time.Minute), Owner: "auth", Keys: p.keys,
		Catalog: inbox.Catalog{Subscriptions: []inbox.Subscription{p.consumer.Subscription()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// write changes the row and appends its event in one transaction.
func (p *path) write(f fault, e *auditv1.AuditEvent) {
	p.t.Helper()
	p.fault = f
	ctx := p.t.Context()
	err := pgx.BeginFunc(ctx, p.business, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insert, e.GetResource().GetId()); err != nil {
			return err
		}
		if err := outbox.Append(ctx, tx, e); err != nil {
			return err
		}
		if f == commitFails {
			return errFault
		}
		return nil
	})
	if (err != nil) != (f == commitFails) {
		p.t.Errorf("fault %d: the business call ends with %v", f, err)
	}
}

// settle lets everything run until nothing is left to do. The fault strikes the first attempt to send.
func (p *path) settle() {
	p.t.Helper()
	for range 500 {
		if _, err := p.dispatcher.Once(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
		taken, err := p.bridge.Once(p.t.Context())
		if err != nil {
			p.t.Fatal(err)
		}
		if _, err := p.consumer.Once(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
		var open int
		if err := p.business.QueryRow(p.t.Context(), "SELECT count(*) FROM audit_outbox WHERE status <> 'DELIVERED'").Scan(&open); err != nil {
			p.t.Fatal(err)
		}
		if open == 0 && taken == 0 {
			return
		}
	}
	p.t.Fatal("it does not come to rest")
}

// Name implements outbox.Publisher.
func (p *path) Name() string { return "memory" }

// Publish implements outbox.Publisher.
func (p *path) Publish(_ context.Context, msgs []outbox.Message) []outbox.Result {
	f := p.fault
	p.fault = nothing
	out := make([]outbox.Result, len(msgs))
	for i, m := range msgs {
		if f != callFails {
			e := envelope.Entry{
				EventID: m.EventID, EventType: m.EventType, Owner: "auth", SchemaVersion: m.SchemaVersion,
				LedgerID: m.LedgerID, LedgerSeq: m.LedgerSeq, Payload: m.Payload,
			}
			p.keys.Sign(&e, envelope.ToAdmin)
			out[i].RecordID = p.stream.Add(inboxtest.Values(e))[0]
		}
		if f != nothing {
			out[i] = outbox.Result{Fault: outbox.Fault{Kind: outbox.FaultBroker, Code: "broker.timeout"}}
		}
	}
	return out
}

// record is the handler: the effect that must happen once.
func (p *path) record(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
	for _, e := range batch {
		if _, err := tx.Exec(ctx, "INSERT INTO actions VALUES ($1)", e.Audit.GetResource().GetId()); err != nil {
			return err
		}
		p.seen[e.ID] = true
		p.applied++
	}
	return nil
}
