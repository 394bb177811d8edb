// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// take runs a bridge of Auth's over the entries, as if they had come in the stream, with the given catalog.
func (b bundle) take(t *testing.T, catalog inbox.Catalog, entries ...map[string]any) *inboxtest.Source {
	t.Helper()
	stream := inboxtest.NewStream(time.Now)
	stream.Add(entries...)
	source := stream.Source("test", time.Minute)
	bridge, err := inbox.NewBridge(inbox.BridgeOptions{
		DB: b.Service, Source: source, Owner: "auth", Keys: inboxtest.NewKeys(t, "auth-1"), Catalog: catalog,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bridge.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	return source
}

// sealed are the entries of events under the next numbers of one ledger.
func sealed(t *testing.T, events ...*auditv1.AuditEvent) []map[string]any {
	t.Helper()
	ledger := uuid.New()
	entries := make([]map[string]any, len(events))
	for i, e := range events {
		entries[i] = inboxtest.Values(inboxtest.Sealed(t, inboxtest.NewKeys(t, "auth-1"), e, ledger, int64(i+1)))
	}
	return entries
}

func ourCatalog() inbox.Catalog {
	return Catalog(inbox.Subscription{Consumer: AuditLogConsumer}, inbox.Subscription{Consumer: SecurityConsumer, Wants: WatchesSecurity})
}

// consume runs a consumer of Admin's until it has nothing left to do.
func (b bundle) consume(t *testing.T, name string, handler inbox.Handler, maxAttempts int) {
	t.Helper()
	consumer, err := inbox.NewConsumer(inbox.ConsumerOptions{
		DB: b.Service, Name: name, Handler: handler, MaxAttempts: maxAttempts, BackoffUnit: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		n, err := consumer.Once(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
}

// ownEvents returns Admin's own records of an action, newest first.
func (b bundle) ownEvents(t *testing.T, eventType string) []Record {
	t.Helper()
	records, _, err := b.service.List(t.Context(), b.caller, Query{
		Filter: fmt.Sprintf("owner = admin AND action = %q", eventType[:len(eventType)-len(".v1")]), Before: uuid.Max, Limit: MaxPageSize,
	})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// requireOwn demands exactly one own record for each id, with the operator, the reason, the number and the leaf.
func (b bundle) requireOwn(t *testing.T, eventType string, ids []uuid.UUID, reason string) {
	t.Helper()
	records := b.ownEvents(t, eventType)
	if len(records) != len(ids) {
		t.Fatalf("%d records of %s, want %d", len(records), eventType, len(ids))
	}
	for _, r := range records {
		e := r.Event
		id := uuid.MustParse(e.GetResource().GetId())
		if !slices.Contains(ids, id) || e.GetMetadata()["reason"] != reason || e.GetActor().GetId() != b.caller.UserID ||
			e.GetContext().GetCorrelationId() != b.caller.CorrelationID || e.GetOperation() != auditv1.Operation_OPERATION_OPERATE {
			t.Errorf("%s is recorded as %v", eventType, e)
		}
		var leaf []byte
		err := b.Super.QueryRow(t.Context(), "SELECT leaf_hash FROM ledger_entries WHERE ledger_id = $1 AND ledger_seq = $2 AND event_id = $3",
			r.LedgerID, r.LedgerSeq, r.EventID).Scan(&leaf)
		if want := envelope.LeafHash(r.EventID, r.Payload); err != nil || !bytes.Equal(leaf, want[:]) {
			t.Errorf("the leaf of %s is missing or not that of its bytes: %v", r.EventID, err)
		}
	}
}

// A dead entry that an operator requeues is handled and recorded once, and so is the requeue, with its reason. Asking
// again changes and records nothing.
func TestRequeueOfDeadEntries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := newEvent(t), newEvent(t)
	b.take(t, ourCatalog(), sealed(t, first.Audit, second.Audit)...)
	b.consume(t, AuditLogConsumer, func(context.Context, pgx.Tx, []inbox.Event) error {
		return inbox.Permanent("test.refused", errors.New("no"))
	}, 1)
	inboxtest.RequireState(t, b.Service, AuditLogConsumer, first.ID, inbox.Dead)

	ids := []uuid.UUID{first.ID, second.ID}
	unknown := uuid.New()
	done, err := b.service.Requeue(t.Context(), b.caller, AuditLogConsumer, append(slices.Clone(ids), unknown), "cause fixed")
	if err != nil {
		t.Fatal(err)
	}
	if len(done.Changed) != 2 || len(done.Refused) != 1 || done.Refused[0].ID != unknown {
		t.Errorf("changed %v, refused %v", done.Changed, done.Refused)
	}
	again, err := b.service.Requeue(t.Context(), b.caller, AuditLogConsumer, ids, "cause fixed")
	if err != nil || len(again.Changed) != 0 {
		t.Errorf("the second call changed %v, %v", again.Changed, err)
	}
	b.requireOwn(t, EventInboxEntryRequeued, ids, "cause fixed")

	b.consume(t, AuditLogConsumer, Project, 10)
	for _, id := range ids {
		inboxtest.RequireState(t, b.Service, AuditLogConsumer, id, inbox.Processed)
		if n := b.count(t, "SELECT count(*) FROM audit_logs WHERE event_id = $1", id); n != 1 {
			t.Errorf("%s is recorded %d times", id, n)
		}
	}
}

// A replay drives an event through its consumer again, and the audit log does not change (U14).
func TestReplayChangesNothingInTheLog(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t, granted)
	b.take(t, ourCatalog(), sealed(t, e.Audit)...)
	b.consume(t, AuditLogConsumer, Project, 10)
	before, err := b.service.Get(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	done, err := b.service.Replay(t.Context(), b.caller, AuditLogConsumer, []uuid.UUID{e.ID}, "drill")
	if err != nil || len(done.Changed) != 1 {
		t.Fatalf("changed %v, %v", done.Changed, err)
	}
	runs := 0
	b.consume(t, AuditLogConsumer, func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		runs += len(batch)
		return Project(ctx, tx, batch)
	}, 10)
	if runs != 1 {
		t.Errorf("the handler ran for %d events, want 1", runs)
	}
	after, err := b.service.Get(t.Context(), e.ID)
	if err != nil || !bytes.Equal(before.Payload, after.Payload) || !before.RecordTime.Equal(after.RecordTime) {
		t.Errorf("the record changed, or %v", err)
	}
	b.requireOwn(t, EventInboxEntryReplayed, []uuid.UUID{e.ID}, "drill")
	// The other consumer's entry is none of this replay's business.
	inboxtest.RequireState(t, b.Service, SecurityConsumer, e.ID, inbox.Pending)
}

// What cannot be recorded is not done, either.
func TestOperationsAreUndoneWithTheirRecord(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t)
	b.take(t, ourCatalog(), sealed(t, e.Audit)...)
	b.consume(t, AuditLogConsumer, Project, 10)
	b.breakLedger(t)
	if _, err := b.service.Replay(t.Context(), b.caller, AuditLogConsumer, []uuid.UUID{e.ID}, "drill"); err == nil {
		t.Error("a replay that cannot be recorded succeeded")
	}
	inboxtest.RequireState(t, b.Service, AuditLogConsumer, e.ID, inbox.Processed)
}

// An event of a later version is parked, and taken over by a replay after the upgrade (T17), which is recorded.
func TestReplayOfParkedPoisonAfterAnUpgrade(t *testing.T) {
	t.Parallel()
	b := setup(t)
	later := newEvent(t, func(e *auditv1.AuditEvent) {
		e.Action, e.EventType = "auth.user.teleported", "auth.user.teleported.v1"
	})
	b.take(t, ourCatalog(), sealed(t, later.Audit)...)
	found, err := b.service.ListPoison(t.Context(), inbox.PoisonFilter{Kind: inbox.Parked, State: inbox.PoisonOpen}, inbox.PoisonCursor{}, 10)
	if err != nil || len(found) != 1 {
		t.Fatalf("parked: %v, %v", found, err)
	}
	ids := []uuid.UUID{found[0].ID}
	done, err := b.service.ReplayPoison(t.Context(), b.caller, ids, "too early")
	if err != nil || len(done.Changed) != 0 || len(done.Refused) != 1 {
		t.Fatalf("before the upgrade: %+v, %v", done, err)
	}

	upgraded := ourCatalog()
	upgraded.Known = nil
	if b.service.inbox, err = inbox.NewPostgres(b.Service, upgraded); err != nil {
		t.Fatal(err)
	}
	if done, err = b.service.ReplayPoison(t.Context(), b.caller, ids, "upgraded"); err != nil || !slices.Equal(done.Changed, ids) {
		t.Fatalf("after the upgrade: %+v, %v", done, err)
	}
	b.requireOwn(t, EventPoisonReplayed, ids, "upgraded")
	b.consume(t, AuditLogConsumer, Project, 10)
	if _, err := b.service.Get(t.Context(), later.ID); err != nil {
		t.Errorf("the event is not recorded: %v", err)
	}
}

// Forged entries change nothing, can only be discarded, and stay as evidence. The true event takes its place (T9).
func TestDiscardOfForgedPoison(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t)
	forged := inboxtest.Values(inboxtest.Sealed(t, inboxtest.NewKeys(t, "somebody"), e.Audit, uuid.New(), 1))
	b.take(t, ourCatalog(), forged)
	found, err := b.service.ListPoison(t.Context(), inbox.PoisonFilter{}, inbox.PoisonCursor{}, 10)
	if err != nil || len(found) != 1 || found[0].Kind != inbox.Forged {
		t.Fatalf("poison: %+v, %v", found, err)
	}
	ids := []uuid.UUID{found[0].ID}
	if done, err := b.service.ReplayPoison(t.Context(), b.caller, ids, "try"); err != nil || len(done.Changed) != 0 {
		t.Errorf("a forged entry was replayed: %+v, %v", done, err)
	}
	if done, err := b.service.DiscardPoison(t.Context(), b.caller, ids, "forged"); err != nil || !slices.Equal(done.Changed, ids) {
		t.Fatalf("discard: %+v, %v", done, err)
	}
	b.requireOwn(t, EventPoisonDiscarded, ids, "forged")
	kept, err := b.service.Poison(t.Context(), ids[0])
	if err != nil || kept.State != inbox.PoisonDiscarded || kept.DecidedBy != b.caller.UserID || kept.Decision != "forged" || len(kept.RawFields) == 0 {
		t.Errorf("kept: %+v, %v", kept, err)
	}
	if _, err := b.service.Poison(t.Context(), uuid.New()); apperr.KindOf(err) != apperr.KindNotFound {
		t.Errorf("unknown poison: %v", err)
	}

	b.take(t, ourCatalog(), sealed(t, e.Audit)...)
	b.consume(t, AuditLogConsumer, Project, 10)
	trace, err := b.service.TraceEvent(t.Context(), e.ID)
	if err != nil || trace.Record == nil {
		t.Errorf("the true event is not recorded: %+v, %v", trace, err)
	}
}

// A trace shows each station of an event's way: number, entry, work of each consumer, record (U14).
func TestTrace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t, granted)
	if trace, err := b.service.TraceEvent(t.Context(), e.ID); err != nil || len(trace.Positions)+len(trace.Entries)+len(trace.Poison) != 0 || trace.Record != nil {
		t.Errorf("an event that has not arrived: %+v, %v", trace, err)
	}
	b.take(t, ourCatalog(), sealed(t, e.Audit)...)
	b.consume(t, AuditLogConsumer, Project, 10)
	trace, err := b.service.TraceEvent(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Positions) != 1 || trace.Positions[0].Owner != "auth" || trace.Positions[0].LedgerSeq != 1 {
		t.Errorf("positions: %+v", trace.Positions)
	}
	states := map[string]inbox.State{}
	for _, row := range trace.Entries {
		states[row.Consumer] = row.State
		if row.EntryID == "" {
			t.Error("the stream entry is not named")
		}
	}
	if states[AuditLogConsumer] != inbox.Processed || states[SecurityConsumer] != inbox.Pending || len(states) != 2 {
		t.Errorf("entries: %v", states)
	}
	if trace.Record == nil || trace.Record.EventID != e.ID {
		t.Errorf("record: %+v", trace.Record)
	}
}

// Entries are found by state, error code, correlation id and time, on pages that repeat and skip nothing.
func TestEntriesAreFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var events []*auditv1.AuditEvent
	for i := range 6 {
		events = append(events, newEvent(t, granted, func(e *auditv1.AuditEvent) { e.Context.CorrelationId = fmt.Sprint("c-", i%2) }).Audit)
	}
	b.take(t, ourCatalog(), sealed(t, events...)...)
	b.consume(t, AuditLogConsumer, func(_ context.Context, _ pgx.Tx, batch []inbox.Event) error {
		if batch[0].Audit.GetContext().GetCorrelationId() == "c-1" {
			return inbox.Permanent("test.odd", errors.New("no"))
		}
		return inbox.Permanent("test.even", errors.New("no"))
	}, 1)
	for name, c := range map[string]struct {
		query EntryQuery
		want  int
	}{
		"all":                 {EntryQuery{}, 12},
		"of a consumer":       {EntryQuery{Consumer: AuditLogConsumer}, 6},
		"dead":                {EntryQuery{State: inbox.Dead}, 6},
		"by code":             {EntryQuery{State: inbox.Dead, ErrorCode: "test.odd"}, 3},
		"by correlation":      {EntryQuery{State: inbox.Dead, CorrelationID: "c-0"}, 3},
		"by both":             {EntryQuery{ErrorCode: "test.odd", CorrelationID: "c-0"}, 0},
		"since an hour ago":   {EntryQuery{State: inbox.Dead, ReceivedFrom: time.Now().Add(-time.Hour)}, 6},
		"until an hour ago":   {EntryQuery{State: inbox.Dead, ReceivedUntil: time.Now().Add(-time.Hour)}, 0},
		"of no such states":   {EntryQuery{State: inbox.Processed}, 0},
		"of no such consumer": {EntryQuery{Consumer: "nobody"}, 0},
	} {
		seen := map[inbox.RowCursor]bool{}
		c.query.Limit = 2
		for {
			rows, next, err := b.service.Entries(t.Context(), c.query)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range rows {
				key := inbox.RowCursor{EventID: row.EventID, Consumer: row.Consumer}
				if seen[key] {
					t.Errorf("%s: %v is on two pages", name, key)
				}
				seen[key] = true
			}
			if next == (inbox.RowCursor{}) {
				break
			}
			c.query.After = next
		}
		if len(seen) != c.want {
			t.Errorf("%s: %d entries, want %d", name, len(seen), c.want)
		}
	}
	if _, err := b.service.Entry(t.Context(), "nobody", uuid.New()); apperr.KindOf(err) != apperr.KindNotFound {
		t.Errorf("unknown entry: %v", err)
	}
}

// A refusal of a known caller is in the log, as DENIED, with the method and the code.
func TestRefusedCallsAreRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.service.Refused(t.Context(), b.caller, "/counterfoil.admin.v1.InboxService/ReplayInboxEntries", "ROLE_REQUIRED")
	records := b.ownEvents(t, EventCallRefused)
	if len(records) != 1 {
		t.Fatalf("%d records, want 1", len(records))
	}
	e := records[0].Event
	if e.GetOutcome() != auditv1.Outcome_OUTCOME_DENIED || e.GetReason() != "ROLE_REQUIRED" || e.GetActor().GetId() != b.caller.UserID ||
		e.GetResource().GetId() != "/counterfoil.admin.v1.InboxService/ReplayInboxEntries" {
		t.Errorf("recorded as %v", e)
	}
}

// Whatever a caller sends about itself, the record of what it did can be written.
func TestHostileCallersAreRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	long := string(bytes.Repeat([]byte("é"), 5000))
	for _, c := range []Caller{
		{}, {UserID: "u", DisplayName: long, UserAgent: long}, {UserID: "u", DisplayName: "a\xc5z\x00", UserAgent: "\xff"},
	} {
		b.service.Refused(t.Context(), c, "/x/Y", "ROLE_REQUIRED")
	}
	if n := len(b.ownEvents(t, EventCallRefused)); n != 3 {
		t.Errorf("%d records, want 3", n)
	}
}
