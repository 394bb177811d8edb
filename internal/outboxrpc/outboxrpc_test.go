// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxrpc_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

// bundle is one test's server over Auth's schema, whose journal the test controls.
type bundle struct {
	*outboxrpc.Server
	t       *testing.T
	db      *testdb.DB
	journal journal
	woken   int
}

// journal keeps what it is told; fail makes it refuse.
type journal struct {
	fail     error
	requeued []uuid.UUID
	refused  error
}

func (j *journal) Requeued(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, reason string) error {
	if j.fail != nil {
		return j.fail
	}
	j.requeued = ids
	return outbox.Append(ctx, tx, event("auth.outbox.requeued", reason))
}

func (j *journal) RequeueRefused(_ context.Context, _ []uuid.UUID, err error) { j.refused = err }

func event(action, reason string) *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId: uuid.Must(uuid.NewV7()).String(), EventType: action + ".v1", SchemaVersion: 1, Owner: "auth", Action: action,
		Operation: auditv1.Operation_OPERATION_OPERATE, Outcome: auditv1.Outcome_OUTCOME_SUCCEEDED, OccurTime: timestamppb.Now(),
		Actor: &auditv1.Actor{Type: "system", Id: "test"}, Resource: &auditv1.Resource{Type: "thing", Id: "t"},
		Metadata: map[string]string{"reason": reason},
	}
}

func setup(t *testing.T) *bundle {
	t.Helper()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	return setupOn(t, db, db.Service)
}

func setupOn(t *testing.T, db *testdb.DB, pool *pgxpool.Pool) *bundle {
	t.Helper()
	b := &bundle{t: t, db: db}
	const secret = config.Secret("a secret of sixteen bytes or more")
	tokens, err := pagetoken.New(secret)
	b.must(err)
	requests, err := idempotency.NewHasher(secret)
	b.must(err)
	b.Server, err = outboxrpc.New(outboxrpc.Config{
		Owner: "auth", DB: pool, Outbox: outbox.NewPostgres(pool, outbox.PostgresOptions{}), Journal: &b.journal,
		Tokens: tokens, Requests: requests, Wake: func() { b.woken++ },
	})
	b.must(err)
	return b
}

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// add appends n events and returns their ids.
func (b *bundle) add(n int) []uuid.UUID {
	b.t.Helper()
	ids := make([]uuid.UUID, n)
	tx, err := b.db.Service.Begin(b.t.Context())
	b.must(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(b.t.Context())) }() // of no effect after the commit
	for i := range ids {
		e := event("auth.thing.done", "")
		ids[i] = uuid.MustParse(e.GetAuditId())
		b.must(outbox.Append(b.t.Context(), tx, e))
	}
	b.must(tx.Commit(b.t.Context()))
	return ids
}

func (b *bundle) set(id uuid.UUID, columns string) {
	b.t.Helper()
	_, err := b.db.Super.Exec(b.t.Context(), "UPDATE audit_outbox SET "+columns+" WHERE event_id = $1", id)
	b.must(err)
}

func (b *bundle) status(id uuid.UUID) (s string) {
	b.t.Helper()
	b.must(b.db.Super.QueryRow(b.t.Context(), "SELECT status FROM audit_outbox WHERE event_id = $1", id).Scan(&s))
	return s
}

func (b *bundle) requeue(requestID string, ids ...uuid.UUID) (*outboxv1.RequeueOutboxEventsResponse, error) {
	ctx := authn.WithPrincipal(b.t.Context(), authn.Principal{UserID: "olga"})
	ctx = grpcserver.WithInfo(ctx, grpcserver.Info{Method: outboxv1.OutboxService_RequeueOutboxEvents_FullMethodName})
	request := &outboxv1.RequeueOutboxEventsRequest{Reason: "because", RequestId: requestID}
	for _, id := range ids {
		request.Names = append(request.Names, "outboxEvents/"+id.String())
	}
	return b.RequeueOutboxEvents(ctx, request)
}

// TestEveryColumnIsShown: each field of a row arrives under its own name (A11).
func TestEveryColumnIsShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.add(1)[0]
	ledger, at := uuid.New(), time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	b.set(id, fmt.Sprintf(`ledger_id = '%s', ledger_seq = 41, status = 'RETRYABLE_FAILURE', attempts = 2, max_attempts = 9, claim_count = 3,
		redelivery_count = 4, next_attempt_at = '%[2]s', claim_owner = 'here:1', claim_token = gen_random_uuid(), claim_expires_at = '%[2]s',
		delivered_at = '%[2]s', provider_name = 'redis-streams', provider_record_id = '1-2', last_error_code = 'broker.oom',
		last_error_at = '%[2]s', dead_letter_reason = 'why'`, ledger, at.Format(time.RFC3339Nano)))
	r, err := b.GetOutboxEvent(t.Context(), &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/" + id.String()})
	b.must(err)
	e := r.GetOutboxEvent()
	for name, ok := range map[string]bool{
		"name": e.GetName() == "outboxEvents/"+id.String(), "event_id": e.GetEventId() == id.String(), "event_type": e.GetEventType() == "auth.thing.done.v1",
		"operation": e.GetOperation() == "OPERATE", "resource": e.GetResourceType() == "thing" && e.GetResourceId() == "t" && e.GetResourceVersion() == 0,
		"occur_time": time.Since(e.GetOccurTime().AsTime()) < time.Minute, "create_time": time.Since(e.GetCreateTime().AsTime()) < time.Minute,
		"ledger": e.GetLedgerId() == ledger.String() && e.GetLedgerSeq() == 41, "status": e.GetStatus() == outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_RETRYABLE_FAILURE,
		"attempts": e.GetAttempts() == 2, "max_attempts": e.GetMaxAttempts() == 9, "claim_count": e.GetClaimCount() == 3, "redelivery_count": e.GetRedeliveryCount() == 4,
		"next_attempt_time": e.GetNextAttemptTime().AsTime().Equal(at), "claim": e.GetClaimOwner() == "here:1" && e.GetClaimExpireTime().AsTime().Equal(at),
		"deliver_time": e.GetDeliverTime().AsTime().Equal(at), "provider": e.GetProviderName() == "redis-streams" && e.GetProviderRecordId() == "1-2",
		"last_error": e.GetLastErrorCode() == "broker.oom" && e.GetLastErrorTime().AsTime().Equal(at), "dead_letter_reason": e.GetDeadLetterReason() == "why",
		"payload": r.GetAuditEvent().GetAuditId() == id.String(),
	} {
		if !ok {
			t.Errorf("%s is wrong in %v", name, e)
		}
	}
}

// TestBrokenPayloadIsStillShown: bytes that do not decode are no reason to hide the row that needs a look.
func TestBrokenPayloadIsStillShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.add(1)[0]
	b.set(id, `payload = '\xff'`)
	r, err := b.GetOutboxEvent(t.Context(), &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/" + id.String()})
	b.must(err)
	if r.GetAuditEvent() != nil || r.GetPayloadSize() != 1 || r.GetPayloadSha256() != "a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89" {
		t.Errorf("event is %v", r)
	}
}

// TestRequeueIsRecordedOrUndone: if the owner's own event cannot be written, nothing is requeued; then all is, once, and
// the dispatcher is told.
func TestRequeueIsRecordedOrUndone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.add(2)
	b.set(ids[0], `status = 'FAILED'`)
	b.set(ids[1], `status = 'DEAD_LETTERED'`)
	b.journal.fail = errors.New("disk full")
	request := uuid.NewString()
	if _, err := b.requeue(request, ids...); !errors.Is(err, b.journal.fail) || !errors.Is(b.journal.refused, err) {
		t.Errorf("got %v, journal was told %v", err, b.journal.refused)
	}
	if b.status(ids[0]) != "FAILED" || b.status(ids[1]) != "DEAD_LETTERED" || b.woken != 0 {
		t.Error("events were requeued without a record of it")
	}

	b.journal = journal{}
	for range 2 { // the second is a repeat
		r, err := b.requeue(request, ids...)
		b.must(err)
		if r.GetRequeuedCount() != 2 || b.status(ids[0]) != "PENDING" || b.status(ids[1]) != "PENDING" || len(b.journal.requeued) != 2 || b.woken != 1 {
			t.Errorf("requeued %v, woken %d times", r, b.woken)
		}
	}
	if _, err := b.requeue(request, ids[0]); apperr.ReasonOf(err) != "REQUEST_ID_REUSED" || apperr.ReasonOf(b.journal.refused) != "REQUEST_ID_REUSED" {
		t.Errorf("the request id with other events: %v", err)
	}
}

// afterRollback is a tracer that does something once a transaction was rolled back.
type afterRollback func()

func (afterRollback) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (do afterRollback) TraceQueryEnd(_ context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if q.CommandTag.String() == "ROLLBACK" {
		do()
	}
}

// TestRequeueThatMayBeARepeatIsNoRefusal: where the database cannot say whether the call was made before, nothing is
// recorded of it.
func TestRequeueThatMayBeARepeatIsNoRefusal(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	config := db.Service.Config()
	config.ConnConfig.Tracer = afterRollback(func() {
		if _, err := db.Owner.Exec(t.Context(), `ALTER TABLE requests RENAME TO away`); err != nil {
			t.Error(err)
		}
	})
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := setupOn(t, db, pool)
	if _, err := b.requeue(uuid.NewString(), b.add(1)...); err == nil || b.journal.refused != nil {
		t.Errorf("got %v, journal was told %v", err, b.journal.refused)
	}
}

// TestFilters: each filter selects, and together they narrow.
func TestFilters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.add(3)
	b.set(ids[0], `status = 'DEAD_LETTERED', dead_letter_reason = 'outbox.max_claims_exceeded'`)
	b.set(ids[1], `status = 'FAILED', last_error_code = 'outbox.too_large', occur_time = occur_time - interval '1 hour'`)
	dead, failed := outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED, outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_FAILED
	recent := timestamppb.New(time.Now().Add(-30 * time.Minute))
	for name, c := range map[string]struct {
		request *outboxv1.ListOutboxEventsRequest
		want    []uuid.UUID
	}{
		"all":       {&outboxv1.ListOutboxEventsRequest{}, []uuid.UUID{ids[2], ids[1], ids[0]}},
		"statuses":  {&outboxv1.ListOutboxEventsRequest{Statuses: []outboxv1.OutboxEventStatus{dead, failed}}, []uuid.UUID{ids[1], ids[0]}},
		"code":      {&outboxv1.ListOutboxEventsRequest{ErrorCode: "outbox.too_large"}, []uuid.UUID{ids[1]}},
		"reason":    {&outboxv1.ListOutboxEventsRequest{ErrorCode: "outbox.max_claims_exceeded"}, []uuid.UUID{ids[0]}},
		"since":     {&outboxv1.ListOutboxEventsRequest{StartTime: recent}, []uuid.UUID{ids[2], ids[0]}},
		"until":     {&outboxv1.ListOutboxEventsRequest{EndTime: recent}, []uuid.UUID{ids[1]}},
		"type":      {&outboxv1.ListOutboxEventsRequest{EventType: "auth.thing.*", PageSize: 1}, []uuid.UUID{ids[2]}},
		"no type":   {&outboxv1.ListOutboxEventsRequest{EventType: "auth.thing"}, nil},
		"narrowing": {&outboxv1.ListOutboxEventsRequest{Statuses: []outboxv1.OutboxEventStatus{dead}, EndTime: recent}, nil},
	} {
		r, err := b.ListOutboxEvents(t.Context(), c.request)
		b.must(err)
		var got []uuid.UUID
		for _, e := range r.GetOutboxEvents() {
			got = append(got, uuid.MustParse(e.GetEventId()))
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestStatus counts what is where, and says what the broken ones broke on.
func TestStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.add(4)
	b.set(ids[0], `status = 'FAILED', last_error_code = 'outbox.too_large'`)
	r, err := b.GetOutboxStatus(t.Context(), &outboxv1.GetOutboxStatusRequest{})
	b.must(err)
	counts := map[outboxv1.OutboxEventStatus]int64{}
	for _, c := range r.GetCounts() {
		counts[c.GetStatus()] = c.GetCount()
	}
	if len(counts) != 2 || counts[outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING] != 3 || counts[outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_FAILED] != 1 ||
		r.GetOwner() != "auth" || r.GetUnsealedCount() != 4 || r.GetLedgerId() == "" || r.GetOldestOpenAge() == nil || r.GetFailureCounts()["outbox.too_large"] != 1 {
		t.Errorf("status is %v", r)
	}
}

// TestStatusesAreTheSame: every status of package outbox has a value in the contract.
func TestStatusesAreTheSame(t *testing.T) {
	t.Parallel()
	for _, s := range outbox.Statuses() {
		if outboxv1.OutboxEventStatus_value["OUTBOX_EVENT_STATUS_"+string(s)] == 0 {
			t.Errorf("the contract does not know %s", s)
		}
	}
	if got, want := len(outboxv1.OutboxEventStatus_name), len(outbox.Statuses())+1; got != want {
		t.Errorf("the contract has %d values, want %d", got, want)
	}
}

// TestNewRefusesGaps: a server that could not record is not made.
func TestNewRefusesGaps(t *testing.T) {
	t.Parallel()
	if _, err := outboxrpc.New(outboxrpc.Config{Owner: "auth"}); err == nil {
		t.Error("a config without a journal was accepted")
	}
}
