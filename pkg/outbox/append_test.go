// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// U16, U21, A11: the row is the event, and the payload its bytes.
func TestAppendWritesTheEvent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	e := outboxtest.Event()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := outbox.ContextWithTrace(t.Context(), parent, "vendor=1")
	inTx(t, db.Service, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, e) })

	r, _, err := outbox.NewPostgres(db.Service, outbox.PostgresOptions{}).Get(t.Context(), uuid.MustParse(e.GetAuditId()))
	if err != nil {
		t.Fatal(err)
	}
	want := outbox.Record{
		EventID: uuid.MustParse(e.GetAuditId()), EventType: e.GetEventType(), SchemaVersion: 1, Operation: "CREATE", ResourceType: "user",
		ResourceID: e.GetResource().GetId(), ResourceVersion: 1, OccurTime: e.GetOccurTime().AsTime(), CreateTime: r.CreateTime,
		AppendNo: r.AppendNo, Status: outbox.StatusPending, MaxAttempts: 10, NextAttemptTime: r.NextAttemptTime,
		PayloadBytes: proto.Size(e), Traceparent: parent,
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	var payload []byte
	if err := db.Service.QueryRow(t.Context(), "SELECT payload FROM audit_outbox").Scan(&payload); err != nil {
		t.Fatal(err)
	}
	var got auditv1.AuditEvent
	if err := proto.Unmarshal(payload, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(e, &got, protocmp.Transform()); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
}

// A trace context that the table cannot hold is left out, and refuses no event.
func TestATraceRefusesNoEvent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct{ parent, state, want string }{
		{strings.Repeat("\x00", 55), "vendor=1", ""},
		{strings.Repeat("\xff", 55), "vendor=1", ""},
		{parent[1:], "vendor=1", ""},
		{parent, "vendor=\x00", parent},
		{parent, "vendor=\xff", parent},
		{parent, strings.Repeat("x", 513), parent},
	} {
		e := outboxtest.Event()
		ctx := outbox.ContextWithTrace(t.Context(), c.parent, c.state)
		inTx(t, db.Service, func(tx pgx.Tx) error { return outbox.Append(ctx, tx, e) })
		var parent, state string
		err := db.Service.QueryRow(t.Context(), "SELECT traceparent, tracestate FROM audit_outbox WHERE event_id = $1", e.GetAuditId()).Scan(&parent, &state)
		if err != nil || parent != c.want || state != "" {
			t.Errorf("%q, %q: stored %q, %q, %v", c.parent, c.state, parent, state, err)
		}
	}
}

// U18, U68: what the transaction does, the event does.
func TestAppendLivesAndDiesWithTheTransaction(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	business := errors.New("business error")
	for name, c := range map[string]struct {
		do   func(context.Context, pgx.Tx) error
		rows int
	}{
		"commit keeps the event": {func(ctx context.Context, tx pgx.Tx) error { return outbox.Append(ctx, tx, outboxtest.Event()) }, 1},
		"a business error after the append drops it": {func(ctx context.Context, tx pgx.Tx) error {
			if err := outbox.Append(ctx, tx, outboxtest.Event()); err != nil {
				return err
			}
			return business
		}, 0},
		"a refused event after a good one drops both": {func(ctx context.Context, tx pgx.Tx) error {
			bad := outboxtest.Event()
			bad.Owner = ""
			return outbox.Append(ctx, tx, outboxtest.Event(), bad)
		}, 0},
		"an event twice drops the transaction": {func(ctx context.Context, tx pgx.Tx) error {
			e := outboxtest.Event()
			return outbox.Append(ctx, tx, e, e)
		}, 0},
		"an event in two calls drops the transaction": {func(ctx context.Context, tx pgx.Tx) error {
			e := outboxtest.Event()
			return errors.Join(outbox.Append(ctx, tx, e), outbox.Append(ctx, tx, e))
		}, 0},
	} {
		before := rows(t, db.Service)
		err := tryTx(t.Context(), db.Service, func(tx pgx.Tx) error { return c.do(t.Context(), tx) })
		if (err == nil) != (c.rows == 1) {
			t.Errorf("%s: error %v", name, err)
		}
		if got := rows(t, db.Service) - before; got != c.rows {
			t.Errorf("%s: %d rows, want %d", name, got, c.rows)
		}
	}
}

func rows(t testing.TB, db *pgxpool.Pool) int {
	t.Helper()
	return one[int](t, db, "SELECT count(*) FROM audit_outbox")
}

func one[T any](t testing.TB, db *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestAppendRefusesBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	huge := outboxtest.Event()
	huge.Changes = make([]*auditv1.Change, 64)
	for i := range huge.GetChanges() {
		huge.Changes[i] = &auditv1.Change{Field: "f", OldValue: sealed(8192), NewValue: sealed(8192)}
	}
	huge.RelatedResources = nil
	for name, c := range map[string]struct {
		event *auditv1.AuditEvent
		field string
	}{
		"nil":           {nil, "nil"},
		"no type":       {with(func(e *auditv1.AuditEvent) { e.EventType = "" }), "event_type"},
		"NUL":           {with(func(e *auditv1.AuditEvent) { e.Actor.DisplayName = audit.Plain("a\x00b") }), "actor.display_name"},
		"invalid UTF-8": {with(func(e *auditv1.AuditEvent) { e.Actor.Id = "a\xc5z" }), "actor.id"},
		"old id":        {with(func(e *auditv1.AuditEvent) { e.AuditId = "018bcfe5-687b-7fff-bfff-ffffffffffff" }), "audit_id"},
		"secret":        {with(func(e *auditv1.AuditEvent) { e.Metadata = map[string]string{"api_key": "x"} }), "metadata"},
	} {
		inTx(t, db.Service, func(tx pgx.Tx) error {
			err := outbox.Append(t.Context(), tx, outboxtest.Event(), c.event)
			var invalid *outbox.InvalidEventError
			if !errors.As(err, &invalid) || invalid.Index != 1 || !strings.Contains(err.Error(), c.field) {
				t.Errorf("%s: %v; want event 1 refused for %s", name, err, c.field)
			}
			outboxtest.RequireAppended(t, tx)
			batch := &pgx.Batch{}
			batch.Queue("SELECT 1 / 0") // would fail if it were sent
			if err := outbox.AppendBatch(t.Context(), tx, batch, c.event); !errors.As(err, &invalid) {
				t.Errorf("%s: AppendBatch: %v", name, err)
			}
			return outbox.Append(t.Context(), tx, outboxtest.Event()) // the transaction is still good
		})
	}
	inTx(t, db.Service, func(tx pgx.Tx) error {
		if err := outbox.Append(t.Context(), tx, huge); err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("an event of %d bytes: %v", proto.Size(huge), err)
		}
		return nil
	})
}

func with(change func(*auditv1.AuditEvent)) *auditv1.AuditEvent {
	e := outboxtest.Event()
	change(e)
	return e
}

func sealed(n int) *auditv1.Personal {
	return &auditv1.Personal{Value: &auditv1.Personal_Sealed_{Sealed: &auditv1.Personal_Sealed{KeyId: "k", Ciphertext: make([]byte, n)}}}
}

// BC-20: the statement does not grow with the number of events.
func TestAppendTakesTwentyThousandEvents(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	events := outboxtest.Events(20_000)
	inTx(t, db.Service, func(tx pgx.Tx) error {
		// The race detector makes the check of so many events outlast the role's 20 s.
		if _, err := tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
			return err
		}
		return outbox.Append(t.Context(), tx, events...)
	})
	if got := rows(t, db.Service); got != len(events) {
		t.Fatalf("%d rows, want %d", got, len(events))
	}
	inOrder := one[bool](t, db.Service, "SELECT bool_and(event_id = id) FROM (SELECT event_id, row_number() OVER (ORDER BY append_no) n FROM audit_outbox) o JOIN unnest($1::uuid[]) WITH ORDINALITY u (id, n) USING (n)", ids(events))
	if !inOrder {
		t.Error("append_no does not follow the order of the arguments")
	}
}

func ids(events []*auditv1.AuditEvent) [][16]byte {
	out := make([][16]byte, len(events))
	for i, e := range events {
		out[i] = uuid.MustParse(e.GetAuditId())
	}
	return out
}

// batches counts the round trips of batches.
type batches struct{ n atomic.Int64 }

func (b *batches) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	b.n.Add(1)
	return ctx
}
func (*batches) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (*batches) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (b *batches) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	b.n.Add(1)
	return ctx
}
func (*batches) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAppendBatchIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	cfg, err := pgx.ParseConfig(db.URL("auth_service"))
	if err != nil {
		t.Fatal(err)
	}
	trips := &batches{}
	cfg.Tracer = trips
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := trips.n.Load()
	var got int
	batch := &pgx.Batch{}
	batch.Queue("SELECT 41 + 1").QueryRow(func(row pgx.Row) error { return row.Scan(&got) })
	if err := outbox.AppendBatch(t.Context(), tx, batch, outboxtest.Events(3)...); err != nil {
		t.Fatal(err)
	}
	if n := trips.n.Load() - before; n != 1 || got != 42 {
		t.Errorf("%d round trips, callback saw %d; want 1 and 42", n, got)
	}
	outboxtest.RequireAppended(t, tx, "auth.user.registered.v1", "auth.user.registered.v1", "auth.user.registered.v1")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAppendBatchReturnsTheCallersError(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	refused := errors.New("etag")
	err := tryTx(t.Context(), db.Service, func(tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue("SELECT 1").Exec(func(pgconn.CommandTag) error { return refused })
		return outbox.AppendBatch(t.Context(), tx, batch, outboxtest.Event())
	})
	if !errors.Is(err, refused) || rows(t, db.Service) != 0 {
		t.Errorf("AppendBatch = %v with %d rows; want the callback's, and none", err, rows(t, db.Service))
	}
}

// BC-11: whatever a deadline does to the call, business row and event stay together.
func TestAppendUnderShortDeadlines(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	if _, err := db.Super.Exec(t.Context(), "CREATE TABLE widgets (id uuid PRIMARY KEY); GRANT ALL ON widgets TO auth_service"); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%40)*100*time.Microsecond)
		e := outboxtest.Event()
		_ = tryTx(ctx, db.Service, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO widgets VALUES ($1)", e.GetResource().GetId()); err != nil {
				return err
			}
			return outbox.Append(ctx, tx, e)
		})
		cancel()
	}
	if n := one[int](t, db.Super, "SELECT count(*) FROM widgets w FULL JOIN audit_outbox o ON w.id::text = o.resource_id WHERE w.id IS NULL OR o.event_id IS NULL"); n != 0 {
		t.Errorf("%d rows without their partner", n)
	}
	eventually(t, 2*time.Second, func() error {
		if n := one[int](t, db.Super, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '1 second'"); n != 0 {
			return errNotYet
		}
		return nil
	})
}
