// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

// station is one place where an event can be, and what trace says about it.
type station struct {
	name    string
	outbox  *outboxv1.OutboxEvent // nil: no owner has it
	admin   *adminv1.TraceEventResponse
	payload string // of the record
	down    string // the service that does not answer
	code    int
	says    []string // in both outputs together
}

func stations() []station {
	delivered := outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DELIVERED
	entry := &adminv1.StreamEntry{EntryId: "1764504000000-0", ReceiveTime: at(12, 1)}
	held := []*adminv1.LedgerPosition{{Owner: "auth", LedgerId: ledgerID, LedgerNumber: 42}}
	nothing := &adminv1.TraceEventResponse{EventId: eventID}
	inbox := func(entries ...*adminv1.InboxEntry) *adminv1.TraceEventResponse {
		return &adminv1.TraceEventResponse{EventId: eventID, LedgerPositions: held, StreamEntry: entry, InboxEntries: entries}
	}
	recorded := func(entries ...*adminv1.InboxEntry) *adminv1.TraceEventResponse {
		r := inbox(entries...)
		r.AuditLog = record(granted())
		return r
	}
	poisoned := func(kind adminv1.PoisonKind, state adminv1.PoisonState) *adminv1.TraceEventResponse {
		p := parked()
		p.Kind, p.State = kind, state
		return &adminv1.TraceEventResponse{EventId: eventID, Poison: []*adminv1.Poison{p}}
	}
	open := adminv1.PoisonState_POISON_STATE_OPEN
	return []station{
		{
			name: "recorded", outbox: outboxEvent(delivered), admin: recorded(inboxEntry("audit-log", processed)), payload: "payload", code: exitOK,
			says: []string{"NOW        recorded", "the same in the outbox"},
		},
		{
			name: "recorded, outbox pruned", admin: recorded(), code: exitOK, says: []string{"OUTBOX     -\n", "NOW        recorded"},
		},
		{
			name: "recorded with other bytes", outbox: outboxEvent(delivered), admin: recorded(), payload: "altered", code: exitConflict,
			says: []string{"recorded with other bytes than its owner holds", "ANOTHER in the outbox"},
		},
		{
			name: "recorded, another consumer dead", outbox: outboxEvent(delivered), payload: "payload", code: exitOK,
			admin: recorded(inboxEntry("audit-log", processed), inboxEntry("security-alerts", deadEntry)),
			says:  []string{"recorded, but the work of security-alerts on it is DEAD (inbox.handler_panic)", "inbox requeue --consumer security-alerts --event " + eventID},
		},
		{
			name: "recorded, owner down", admin: recorded(), down: serviceAuth, code: exitOK,
			says: []string{"OUTBOX     unknown: auth was not asked", "auth was not asked: "},
		},
		{
			name: "dead in the inbox", outbox: outboxEvent(delivered), admin: inbox(inboxEntry("audit-log", deadEntry)), code: exitConflict,
			says: []string{"stopped in Admin's inbox: DEAD (inbox.handler_panic)", "inbox requeue --consumer audit-log --event " + eventID},
		},
		{
			name: "waiting in the inbox", outbox: outboxEvent(delivered), code: exitConflict,
			admin: inbox(inboxEntry("audit-log", adminv1.InboxState_INBOX_STATE_PENDING)),
			says:  []string{"waiting in Admin's inbox: PENDING", "STREAM     entry 1764504000000-0, taken over 2026-11-30 12:01:00 UTC", "held as number 42 of auth's ledger"},
		},
		{
			name: "processed without a record", outbox: outboxEvent(delivered), admin: inbox(inboxEntry("audit-log", processed)), code: exitConflict,
			says: []string{"marked PROCESSED, and missing from the audit log"},
		},
		{
			name: "taken over and gone", outbox: outboxEvent(delivered), admin: inbox(), code: exitConflict,
			says: []string{"taken over by Admin, and not in its inbox any more"},
		},
		{
			name: "parked", outbox: outboxEvent(delivered), admin: poisoned(adminv1.PoisonKind_POISON_KIND_PARKED, open), code: exitConflict,
			says: []string{"parked by Admin: type.unknown", "poison replay " + poison1, "POISON     PARKED type.unknown (open), seen 2 times, poison/" + poison1},
		},
		{
			name: "discarded", outbox: outboxEvent(delivered), code: exitConflict,
			admin: poisoned(adminv1.PoisonKind_POISON_KIND_PARKED, adminv1.PoisonState_POISON_STATE_DISCARDED),
			says:  []string{"refused by Admin: type.unknown, DISCARDED", "poison get " + poison1},
		},
		{
			name: "forged under its id, the true one waits", outbox: outboxEvent(outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING),
			admin: poisoned(adminv1.PoisonKind_POISON_KIND_FORGED, open), code: exitConflict, says: []string{"waiting in the outbox of auth: PENDING", "POISON     FORGED"},
		},
		{
			name: "in the stream", outbox: outboxEvent(delivered), admin: nothing, code: exitConflict,
			says: []string{"in the stream as 1764504000000-0, and not taken over by Admin yet", "INBOX      -"},
		},
		{
			name: "in the stream, Admin down", outbox: outboxEvent(delivered), down: serviceAdmin, code: exitUnavailable,
			says: []string{"delivered to the stream as 1764504000000-0; Admin was not asked", "AUDIT LOG  unknown: admin was not asked"},
		},
		{
			name: "dead letter", outbox: outboxEvent(dead), admin: nothing, code: exitConflict,
			says: []string{
				"stopped in the outbox of auth: DEAD_LETTERED (outbox.attempts_exhausted)", "outbox requeue --service auth " + eventID,
				"requeued DEAD_LETTERED → PENDING by " + userID + ": broker is back",
			},
		},
		{
			name: "broker in trouble", outbox: outboxEvent(outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEFERRED), admin: nothing, code: exitConflict,
			says: []string{"waiting in the outbox of auth: DEFERRED (broker.oom)", "next attempt 2026-11-30 12:31:00 UTC"},
		},
		{name: "unknown", admin: nothing, code: exitNotFound, says: []string{"not known to any service"}},
		{name: "unknown, App down", admin: nothing, down: serviceApp, code: exitUnavailable, says: []string{"not found where it could be asked for", "app was not asked"}},
	}
}

// set makes the services know what the station says.
func (s station) set(w *world) {
	missing := refusal(codes.NotFound, "EVENT_NOT_FOUND", "there is no such event")
	w.fails("OutboxService/GetOutboxEvent", missing)
	if s.outbox != nil {
		w.says("auth:OutboxService/GetOutboxEvent", outboxAnswer(s.outbox))
	}
	w.says("AuditLogService/TraceEvent", s.admin)
	w.on("AuditLogService/GetAuditLog", func(received) ([]proto.Message, error) {
		r := record(granted())
		r.Payload = []byte(s.payload)
		return []proto.Message{&adminv1.GetAuditLogResponse{AuditLog: r}}, nil
	})
	if s.down != "" {
		down := refusal(codes.Unavailable, "SERVER_STOPPING", "stopping")
		w.fails(s.down+":OutboxService/GetOutboxEvent", down)
		w.fails(s.down+":AuditLogService/TraceEvent", down)
	}
}

// TestTrace: wherever an event is, its path, its place, the way on and the exit code are told.
func TestTrace(t *testing.T) {
	t.Parallel()
	for _, s := range stations() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s.set(w)
			o := w.run("trace", "auditLogs/"+eventID)
			if o.code != s.code {
				t.Errorf("exit code %d, want %d", o.code, s.code)
			}
			has(t, o.out+o.err, s.says...)
			o = w.run("trace", eventID, "-o", "json")
			var document struct {
				EventID, Owner, State, Advice, RecordedSha256 string
				Recorded                                      bool
				Outbox, Admin                                 map[string]any
				NotAsked                                      []string
			}
			if err := json.Unmarshal([]byte(o.out), &document); err != nil {
				t.Fatalf("%v\n%s", err, o.out)
			}
			if o.code != s.code || document.EventID != eventID || document.Recorded != (s.admin.GetAuditLog() != nil) ||
				(document.Outbox != nil) != (s.outbox != nil) || (len(document.NotAsked) == 1) != (s.down != "") || document.State == "" {
				t.Errorf("exit code %d: %s", o.code, o.out)
			}
		})
	}
}

// TestTraceText: the whole path at one look.
func TestTraceText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stations()[0].set(w)
	same(t, w.must("trace", eventID), `
EVENT      01980000-0000-7000-8000-0000000000e1
           2026-11-30 12:00:00 UTC: Ada Lovelace, auth.role.granted, role_grant of user "Grace Hopper" (succeeded)
OUTBOX     auth: DELIVERED, attempts 1 of 12, written 2026-11-30 12:00:00 UTC
           number 42 of auth's ledger 01980000-0000-7000-8000-000000000099
           2026-11-30 12:20:00 UTC requeued DEAD_LETTERED → PENDING by 01980000-0000-7000-8000-0000000000a1: broker is back
STREAM     entry 1764504000000-0, taken over 2026-11-30 12:01:00 UTC
           held as number 42 of auth's ledger 01980000-0000-7000-8000-000000000099
INBOX      audit-log: PROCESSED, attempts 1, finished 2026-11-30 12:01:00 UTC
AUDIT LOG  auditLogs/01980000-0000-7000-8000-0000000000e1, recorded 2026-11-30 12:01:00 UTC, number 42 of auth's ledger 01980000-0000-7000-8000-000000000099
           sha256 of its bytes 239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5, the same in the outbox
NOW        recorded
`)
}

// TestTraceNobodyAnswers: without any answer there is nothing to print.
func TestTraceNobodyAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	denied := refusal(codes.PermissionDenied, "ROLE_REQUIRED", "needs the role auditor")
	w.fails("OutboxService/GetOutboxEvent", denied)
	w.fails("AuditLogService/TraceEvent", denied)
	if o := w.run("trace", eventID); o.code != exitDenied || o.out != "" || !strings.Contains(o.err, "needs the role auditor") {
		t.Errorf("exit code %d: %s%s", o.code, o.out, o.err)
	}
}
