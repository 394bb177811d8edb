// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// bundle is one test's database and the service on it, as the role that the service uses.
type bundle struct {
	*testdb.DB
	service *Service
	caller  Caller
}

func setup(t *testing.T) bundle {
	t.Helper()
	db := testdb.New(t, testdb.Admin)
	subscriptions := []inbox.Subscription{
		{Consumer: AuditLogConsumer}, {Consumer: SecurityConsumer, Wants: WatchesSecurity},
	}
	box, err := inbox.NewPostgres(db.Service, Catalog(subscriptions...))
	if err != nil {
		t.Fatal(err)
	}
	service, err := New(Options{
		DB: db.Service, Inbox: box, Log: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("test"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return bundle{DB: db, service: service, caller: Caller{
		UserID: uuid.NewString(), SessionID: uuid.NewString(), DisplayName: "Ola Operator", CorrelationID: "c-1",
		ClientAddress: "192.0.2.7", UserAgent: "test/1",
	}}
}

// tx runs fn in a transaction of the service's role.
func (b bundle) tx(t *testing.T, fn func(tx pgx.Tx) error) {
	t.Helper()
	if err := pgdb.InTx(t.Context(), b.Service, fn); err != nil {
		t.Fatal(err)
	}
}

// count returns the single number that a query gives.
func (b bundle) count(t *testing.T, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := b.Super.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// project applies a batch as the audit-log consumer does.
func (b bundle) project(t *testing.T, batch ...inbox.Event) {
	t.Helper()
	b.tx(t, func(tx pgx.Tx) error { return Project(t.Context(), tx, batch) })
}

// watch applies a batch as the security-alerts consumer does.
func (b bundle) watch(t *testing.T, batch ...inbox.Event) {
	t.Helper()
	b.tx(t, func(tx pgx.Tx) error { return Watch(uuid.NewV7)(t.Context(), tx, batch) })
}

// newEvent is a valid event of Auth's; changes are applied before it is marshalled.
func newEvent(t testing.TB, changes ...func(*auditv1.AuditEvent)) inbox.Event {
	t.Helper()
	e := &auditv1.AuditEvent{
		AuditId:       uuid.Must(uuid.NewV7()).String(),
		EventType:     "auth.user.created.v1",
		SchemaVersion: 1,
		Owner:         "auth",
		Action:        "auth.user.created",
		Operation:     auditv1.Operation_OPERATION_CREATE,
		Actor:         &auditv1.Actor{Type: "user", Id: "u-1", DisplayName: audit.Plain("Ada")},
		Resource:      &auditv1.Resource{Type: "user", Id: uuid.NewString(), Version: 1},
		Outcome:       auditv1.Outcome_OUTCOME_SUCCEEDED,
		OccurTime:     timestamppb.New(time.Now().UTC().Truncate(time.Microsecond)),
		Context:       &auditv1.RequestContext{CorrelationId: "c-0"},
	}
	for _, change := range changes {
		change(e)
	}
	if err := audit.Check(e); err != nil {
		t.Fatal(err)
	}
	return asReceived(t, e)
}

// asReceived is the event as a handler gets it.
func asReceived(t testing.TB, e *auditv1.AuditEvent) inbox.Event {
	t.Helper()
	payload, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return inbox.Event{
		ID: uuid.MustParse(e.GetAuditId()), Owner: e.GetOwner(), Type: e.GetEventType(), SchemaVersion: e.GetSchemaVersion(),
		LedgerID: uuid.MustParse("0198c0de-0000-7000-8000-000000000001"), LedgerSeq: 1, Payload: payload, Audit: e, Attempt: 1,
	}
}

// named sets type and action.
func named(action string, op auditv1.Operation) func(*auditv1.AuditEvent) {
	return func(e *auditv1.AuditEvent) { e.Action, e.EventType, e.Operation = action, action+".v1", op }
}

// granted makes it an event that both consumers get.
func granted(e *auditv1.AuditEvent) {
	named("auth.role.granted", auditv1.Operation_OPERATION_CREATE)(e)
	e.Resource.Type = "role_grant"
}

// at sets the time of the event and gives it an id of that time.
func at(moment time.Time) func(*auditv1.AuditEvent) {
	return func(e *auditv1.AuditEvent) {
		id := uuid.Must(uuid.NewV7())
		first := firstID(moment)
		copy(id[:6], first[:6])
		e.AuditId, e.OccurTime = id.String(), timestamppb.New(moment)
	}
}

// inTx is for goroutines, which must not end the test.
func (b bundle) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgdb.InTx(ctx, b.Service, fn)
}

// waitForLocks returns when n sessions of the test's database wait for a lock of the kind.
func (b bundle) waitForLocks(t *testing.T, kind string, n int64) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for b.count(t, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = $1 AND NOT granted AND datname = current_database()`, kind) < n {
		if time.Now().After(deadline) {
			t.Fatalf("nobody waits for a lock: want %d of kind %s", n, kind)
		}
	}
}
