// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

func plain(text string) *auditv1.Personal {
	return &auditv1.Personal{Value: &auditv1.Personal_Plain{Plain: text}}
}

// granted is an event with everything in it.
func granted() *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId: eventID, EventType: "auth.role.granted.v1", SchemaVersion: 1, Owner: "auth", Action: "auth.role.granted",
		Operation:        auditv1.Operation_OPERATION_CREATE,
		Actor:            &auditv1.Actor{Type: "user", Id: userID, DisplayName: plain("Ada Lovelace"), SessionId: sessionID},
		Resource:         &auditv1.Resource{Type: "role_grant", Id: memberID, Version: 1},
		RelatedResources: []*auditv1.Resource{{Type: "user", Id: userID2, DisplayName: plain("Grace Hopper")}},
		Outcome:          auditv1.Outcome_OUTCOME_SUCCEEDED, OccurTime: at(12, 0),
		Changes:  []*auditv1.Change{{Field: "role", NewValue: plain("operator")}},
		Context:  &auditv1.RequestContext{CorrelationId: "req-1", ClientAddress: plain("10.1.2.3"), ClientAddressClaimed: true, UserAgent: "counterfoil/1.0"},
		Metadata: map[string]string{"role": "operator"},
	}
}

// denied is an event that says as little as an event may.
func denied() *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId: eventID2, EventType: "auth.login.denied.v1", SchemaVersion: 1, Owner: "auth", Action: "auth.login.denied",
		Operation: auditv1.Operation_OPERATION_LOGIN, Actor: &auditv1.Actor{Type: "anonymous"},
		Resource: &auditv1.Resource{Type: "user", Id: userID2}, Outcome: auditv1.Outcome_OUTCOME_DENIED, Reason: "LOCKED_OUT", OccurTime: at(11, 59),
	}
}

func record(e *auditv1.AuditEvent) *adminv1.AuditLog {
	return &adminv1.AuditLog{Name: "auditLogs/" + e.GetAuditId(), Event: e, LedgerId: ledgerID, LedgerNumber: 42, RecordTime: at(12, 1)}
}

func outboxEvent(status outboxv1.OutboxEventStatus) *outboxv1.OutboxEvent {
	e := &outboxv1.OutboxEvent{
		Name: "outboxEvents/" + eventID, EventId: eventID, EventType: "auth.role.granted.v1", Operation: "CREATE", ResourceType: "role_grant",
		ResourceId: memberID, ResourceVersion: 1, OccurTime: at(12, 0), CreateTime: at(12, 0), LedgerId: ledgerID, LedgerSeq: 42,
		Status: status, Attempts: 1, MaxAttempts: 12,
	}
	switch status {
	case outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DELIVERED:
		e.ProviderName, e.ProviderRecordId, e.DeliverTime = "redisstream", "1764504000000-0", at(12, 0)
	case outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED:
		e.Attempts, e.DeadLetterReason, e.LastErrorCode, e.LastErrorTime = 12, "outbox.attempts_exhausted", "broker.refused", at(12, 30)
	case outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEFERRED:
		e.LastErrorCode, e.LastErrorTime, e.NextAttemptTime = "broker.oom", at(12, 30), at(12, 31)
	}
	return e
}

const dead = outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED

func outboxAnswer(e *outboxv1.OutboxEvent) *outboxv1.GetOutboxEventResponse {
	return &outboxv1.GetOutboxEventResponse{
		OutboxEvent: e, AuditEvent: granted(), PayloadSize: 300,
		// Of "payload".
		PayloadSha256: "239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5",
		Transitions: []*outboxv1.OutboxTransition{{
			OccurTime: at(12, 20), Transition: "requeued", FromStatus: dead, ToStatus: outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING,
			Actor: userID, Reason: "broker is back",
		}},
	}
}

func inboxEntry(consumer string, state adminv1.InboxState) *adminv1.InboxEntry {
	e := &adminv1.InboxEntry{
		Name: "consumers/" + consumer + "/entries/" + eventID, Consumer: consumer, EventId: eventID, Owner: "auth", EventType: "auth.role.granted.v1",
		LedgerId: ledgerID, LedgerNumber: 42, State: state, Attempts: 1, ReceiveTime: at(12, 1), StreamEntryId: "1764504000000-0", SchemaVersion: 1,
	}
	switch state {
	case adminv1.InboxState_INBOX_STATE_PROCESSED:
		e.FinishTime = at(12, 1)
	case adminv1.InboxState_INBOX_STATE_DEAD:
		e.FinishTime, e.LastErrorCode, e.LastErrorTime, e.Attempts = at(12, 5), "inbox.handler_panic", at(12, 5), 8
	}
	return e
}

const (
	deadEntry = adminv1.InboxState_INBOX_STATE_DEAD
	processed = adminv1.InboxState_INBOX_STATE_PROCESSED
)

func parked() *adminv1.Poison {
	return &adminv1.Poison{
		Name: "poison/" + poison1, Stream: "audit:{auth}", Owner: "auth", Kind: adminv1.PoisonKind_POISON_KIND_PARKED, Reason: "type.unknown",
		State: adminv1.PoisonState_POISON_STATE_OPEN, EventId: eventID, ClaimedType: "auth.user.cloned.v1", LedgerId: ledgerID, LedgerNumber: 42,
		FirstEntryId: "1-0", LastEntryId: "2-0", SeenCount: 2, FirstSeenTime: at(12, 0), LastSeenTime: at(12, 1), RawSize: 3, RawFields: []byte("raw"),
	}
}

// deliveryVerbs are the commands about the audit log and the way of events into it.
func deliveryVerbs() []verb {
	alert := &adminv1.SecurityAlert{
		Name: "securityAlerts/" + memberID, Rule: "privileged_role_granted", Severity: adminv1.AlertSeverity_ALERT_SEVERITY_HIGH, Subject: userID2,
		FirstEvent: "auditLogs/" + eventID, LastEvent: "auditLogs/" + eventID, EventCount: 1, RaiseTime: at(12, 2),
	}
	return []verb{
		{
			name: "audit list", args: "audit list --changes --owner auth", method: "AuditLogService/ListAuditLogs",
			answers: one("AuditLogService/ListAuditLogs", &adminv1.ListAuditLogsResponse{AuditLogs: []*adminv1.AuditLog{record(granted()), record(denied())}}),
			asks:    &adminv1.ListAuditLogsRequest{PageSize: 50, Filter: `owner = "auth"`},
			table: `
WHEN (UTC)           WHO           DID                TO WHAT                                    RESULT             FROM                EVENT                                 CHANGES
2026-11-30 12:00:00  Ada Lovelace  auth.role.granted  role_grant of user "Grace Hopper"          succeeded          10.1.2.3 (claimed)  01980000-0000-7000-8000-0000000000e1  role: (none) → operator
2026-11-30 11:59:00  anonymous     auth.login.denied  user 01980000-0000-7000-8000-0000000000a2  denied LOCKED_OUT  -                   01980000-0000-7000-8000-0000000000e2  -
`,
		},
		{
			name: "audit get", args: "audit get " + eventID, method: "AuditLogService/GetAuditLog",
			answers: one("AuditLogService/GetAuditLog", &adminv1.GetAuditLogResponse{AuditLog: record(granted())}),
			asks:    &adminv1.GetAuditLogRequest{Name: "auditLogs/" + eventID, View: adminv1.AuditLogView_AUDIT_LOG_VIEW_BASIC},
			table: `
record          auditLogs/01980000-0000-7000-8000-0000000000e1
when            2026-11-30 12:00:00 UTC
who             Ada Lovelace
did             auth.role.granted (create)
to what         role_grant of user "Grace Hopper"
result          succeeded
from            10.1.2.3 (claimed)
user agent      counterfoil/1.0
change          role: (none) → operator
metadata        role = operator
actor           user 01980000-0000-7000-8000-0000000000a1
session         01980000-0000-7000-8000-0000000000b1
resource        role_grant 01980000-0000-7000-8000-0000000000d1 version 1
related         user 01980000-0000-7000-8000-0000000000a2
correlation id  req-1
event type      auth.role.granted.v1
ledger          number 42 of auth's ledger 01980000-0000-7000-8000-000000000099
recorded        2026-11-30 12:01:00 UTC
`,
		},
		{
			name: "alerts", args: "alerts list --rule privileged_role_granted", method: "SecurityAlertService/ListSecurityAlerts",
			answers: one("SecurityAlertService/ListSecurityAlerts", &adminv1.ListSecurityAlertsResponse{SecurityAlerts: []*adminv1.SecurityAlert{alert}}),
			asks:    &adminv1.ListSecurityAlertsRequest{PageSize: 50, Rule: "privileged_role_granted"},
			table: "RAISED (UTC)         SEVERITY  RULE                     ABOUT                                 EVENTS  LAST EVENT\n" +
				"2026-11-30 12:02:00  HIGH      privileged_role_granted  " + userID2 + "  1       auditLogs/" + eventID + "\n",
		},
		{
			name: "outbox list", args: "outbox list --service auth --status dead-lettered --event-type auth.* --limit 3", method: "OutboxService/ListOutboxEvents",
			answers: one("OutboxService/ListOutboxEvents", &outboxv1.ListOutboxEventsResponse{OutboxEvents: []*outboxv1.OutboxEvent{outboxEvent(dead)}}),
			asks:    &outboxv1.ListOutboxEventsRequest{PageSize: 3, Statuses: []outboxv1.OutboxEventStatus{dead}, EventType: "auth.*"},
			table: `
WHEN (UTC)           TYPE                  RESOURCE                                         NUMBER  STATUS         ATTEMPTS  ERROR                      EVENT
2026-11-30 12:00:00  auth.role.granted.v1  role_grant 01980000-0000-7000-8000-0000000000d1  42      DEAD_LETTERED  12/12     outbox.attempts_exhausted  01980000-0000-7000-8000-0000000000e1
`,
		},
		{
			name: "outbox get", args: "outbox get --service app " + eventID, method: "OutboxService/GetOutboxEvent",
			answers: one("app:OutboxService/GetOutboxEvent", outboxAnswer(outboxEvent(dead))),
			asks:    &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/" + eventID},
			table: `
event         01980000-0000-7000-8000-0000000000e1
type          auth.role.granted.v1
written       2026-11-30 12:00:00 UTC
ledger        number 42 of app's ledger 01980000-0000-7000-8000-000000000099
status        DEAD_LETTERED
dead because  outbox.attempts_exhausted
attempts      12 of 12
last error    broker.refused 2026-11-30 12:30:00 UTC
payload       300 bytes, sha256 239f59ed55e737c77147cf55ad0c1b030b6d7ee748a7426952f9b852d5a935e5
history       2026-11-30 12:20:00 UTC requeued DEAD_LETTERED → PENDING by 01980000-0000-7000-8000-0000000000a1: broker is back
`,
		},
		{
			name: "outbox requeue", args: "outbox requeue --service auth " + eventID + " --reason broker·is·back", method: "OutboxService/RequeueOutboxEvents",
			answers: one("auth:OutboxService/RequeueOutboxEvents", &outboxv1.RequeueOutboxEventsResponse{RequeuedCount: 1}),
			asks:    &outboxv1.RequeueOutboxEventsRequest{Names: []string{"outboxEvents/" + eventID}, Reason: "broker is back"},
			table:   "requeued events of auth  1\n",
		},
		{
			name: "inbox list", args: "inbox list --state dead --consumer audit-log --correlation req-1", method: "InboxService/ListInboxEntries",
			answers: one("InboxService/ListInboxEntries", &adminv1.ListInboxEntriesResponse{InboxEntries: []*adminv1.InboxEntry{inboxEntry("audit-log", deadEntry)}}),
			asks:    &adminv1.ListInboxEntriesRequest{PageSize: 50, Parent: "consumers/audit-log", State: deadEntry, CorrelationId: "req-1"},
			table: `
TAKEN OVER (UTC)     CONSUMER   TYPE                  OWNER  NUMBER  STATE  ATTEMPTS  ERROR                EVENT
2026-11-30 12:01:00  audit-log  auth.role.granted.v1  auth   42      DEAD   8         inbox.handler_panic  01980000-0000-7000-8000-0000000000e1
`,
		},
		{
			name: "inbox get", args: "inbox get --consumer audit-log " + eventID, method: "InboxService/GetInboxEntry",
			answers: one("InboxService/GetInboxEntry", &adminv1.GetInboxEntryResponse{InboxEntry: inboxEntry("audit-log", deadEntry)}),
			asks:    &adminv1.GetInboxEntryRequest{Name: "consumers/audit-log/entries/" + eventID},
			table: `
entry         consumers/audit-log/entries/01980000-0000-7000-8000-0000000000e1
type          auth.role.granted.v1
ledger        number 42 of auth's ledger 01980000-0000-7000-8000-000000000099
taken over    2026-11-30 12:01:00 UTC
stream entry  1764504000000-0
state         DEAD
attempts      8
finished      2026-11-30 12:05:00 UTC
last error    inbox.handler_panic 2026-11-30 12:05:00 UTC
`,
		},
		{
			name: "inbox requeue", args: "inbox requeue --consumer audit-log --event " + eventID + " --reason fixed", method: "InboxService/RequeueInboxEntries",
			answers: one("InboxService/RequeueInboxEntries", &adminv1.RequeueInboxEntriesResponse{RequeuedEventIds: []string{eventID}}),
			asks:    &adminv1.RequeueInboxEntriesRequest{Parent: "consumers/audit-log", EventIds: []string{eventID}, Reason: "fixed"},
			table:   "requeued entries of audit-log  1\n",
		},
		{
			name: "inbox replay", args: "inbox replay --consumer security-alerts --event " + eventID + " --reason new·rule", method: "InboxService/ReplayInboxEntries",
			answers: one("InboxService/ReplayInboxEntries", &adminv1.ReplayInboxEntriesResponse{ReplayedEventIds: []string{eventID}}),
			asks:    &adminv1.ReplayInboxEntriesRequest{Parent: "consumers/security-alerts", EventIds: []string{eventID}, Reason: "new rule"},
			table:   "replayed entries of security-alerts  1\n",
		},
		{
			name: "poison list", args: "poison list --kind parked --code type.unknown", method: "PoisonService/ListPoison",
			answers: one("PoisonService/ListPoison", &adminv1.ListPoisonResponse{Poison: []*adminv1.Poison{parked(), {Name: "poison/" + poison2, Reason: "payload.invalid"}}}),
			asks: &adminv1.ListPoisonRequest{
				PageSize: 50, Kind: adminv1.PoisonKind_POISON_KIND_PARKED, State: adminv1.PoisonState_POISON_STATE_OPEN,
			},
			table: `
FIRST SEEN (UTC)     KIND    REASON        STATE  SEEN  STREAM        CLAIMS TO BE                                              POISON
2026-11-30 12:00:00  PARKED  type.unknown  OPEN   2     audit:{auth}  auth.user.cloned.v1 01980000-0000-7000-8000-0000000000e1  01980000-0000-7000-8000-0000000000f1
`,
		},
		{
			name: "poison get", args: "poison get poison/" + poison1, method: "PoisonService/GetPoison",
			answers: one("PoisonService/GetPoison", &adminv1.GetPoisonResponse{Poison: parked()}),
			asks:    &adminv1.GetPoisonRequest{Name: "poison/" + poison1},
			table: `
poison        poison/01980000-0000-7000-8000-0000000000f1
kind          PARKED
reason        type.unknown
state         OPEN
stream        audit:{auth}
claims to be  auth.user.cloned.v1 01980000-0000-7000-8000-0000000000e1
ledger        number 42 of auth's ledger 01980000-0000-7000-8000-000000000099
first seen    2026-11-30 12:00:00 UTC 1-0
last seen     2026-11-30 12:01:00 UTC 2-0
times         2
size          3 bytes
00000000  72 61 77                                          |raw|
`,
		},
		{
			name: "poison replay", args: "poison replay " + poison1 + " --reason upgraded", method: "PoisonService/ReplayPoison",
			answers: one("PoisonService/ReplayPoison", &adminv1.ReplayPoisonResponse{ResolvedNames: []string{"poison/" + poison1}}),
			asks:    &adminv1.ReplayPoisonRequest{Names: []string{"poison/" + poison1}, Reason: "upgraded"}, table: "resolved poison  1\n",
		},
		{
			name: "poison discard", args: "poison discard " + poison1 + " --reason forged -y", method: "PoisonService/DiscardPoison",
			answers: one("PoisonService/DiscardPoison", &adminv1.DiscardPoisonResponse{DiscardedNames: []string{"poison/" + poison1}}),
			asks:    &adminv1.DiscardPoisonRequest{Names: []string{"poison/" + poison1}, Reason: "forged"}, table: "discarded poison  1\n",
		},
		statusOfOutbox(), statusOfInbox(),
	}
}

func statusOfOutbox() verb {
	of := func(owner string) *outboxv1.GetOutboxStatusResponse {
		return &outboxv1.GetOutboxStatusResponse{
			Owner: owner, ReadTime: at(12, 0), UnsealedCount: 1, OldestOpenAge: durationpb.New(90 * time.Second), ClaimedCount: 2,
			Counts: []*outboxv1.GetOutboxStatusResponse_StatusCount{
				{Status: outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING, Count: 7}, {Status: dead, Count: 1},
			},
			FailureCounts: map[string]int64{"broker.refused": 1}, LedgerId: ledgerID, LedgerHead: 42, SealTime: at(11, 59),
		}
	}
	block := func(owner string) string {
		return "outbox of                 " + owner + ` at 2026-11-30 12:00:00 UTC
  PENDING                 7
  DELIVERED               0
  DEFERRED                0
  FAILED                  0
  RETRYABLE_FAILURE       0
  DEAD_LETTERED           1
  oldest waiting          1m30s
  being delivered         2
  without a number        1
  ledger                  01980000-0000-7000-8000-000000000099, up to number 42
  last numbered           2026-11-30 11:59:00 UTC
  failed: broker.refused  1
`
	}
	return verb{
		name: "outbox status", args: "outbox status", method: "OutboxService/GetOutboxStatus", asks: &outboxv1.GetOutboxStatusRequest{},
		answers: map[string]proto.Message{"auth:OutboxService/GetOutboxStatus": of("auth"), "app:OutboxService/GetOutboxStatus": of("app")},
		table:   block("auth") + block("app"),
	}
}

func statusOfInbox() verb {
	lag := int64(3)
	return verb{
		name: "inbox status", args: "inbox status", method: "InboxService/GetInboxStatus", asks: &adminv1.GetInboxStatusRequest{},
		answers: one("InboxService/GetInboxStatus", &adminv1.GetInboxStatusResponse{
			Consumers: []*adminv1.ConsumerStatus{{
				Consumer: "audit-log", PendingCount: 5, ProcessingCount: 1, DeadCount: 2, OldestPendingAge: durationpb.New(1500 * time.Millisecond),
				DeadCountByCode: map[string]int64{"inbox.handler_panic": 2},
			}},
			Streams: []*adminv1.StreamStatus{
				{Owner: "app", Stream: "audit:{app}", LastEntryId: "1-0", TakenOverCount: 9, LastTakeoverTime: at(12, 0), LagCount: &lag, UnacknowledgedCount: new(int64)},
				{Owner: "auth", Stream: "audit:{auth}", ErrorCode: "broker.noauth"},
			},
			OpenPoison: []*adminv1.PoisonCount{{Kind: "FORGED", Reason: "mac.mismatch", Count: 4}},
		}),
		table: `
CONSUMER   PENDING  PROCESSING  DEAD  OLDEST PENDING  OLDEST RUNNING  OLDEST RETRYING  DEAD BECAUSE
audit-log  5        1           2     1.5s            -               -                inbox.handler_panic 2

STREAM        TAKEN OVER  LAST (UTC)           LAST ENTRY  NOT YET READ  NOT YET ACKNOWLEDGED  BROKER
audit:{app}   9           2026-11-30 12:00:00  1-0         3             0                     ok
audit:{auth}  0           -                    -           unknown       unknown               broker.noauth

POISON  REASON        COUNT
FORGED  mac.mismatch  4
`,
	}
}

func TestDeliveryVerbs(t *testing.T) {
	t.Parallel()
	for _, v := range deliveryVerbs() {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			v.check(t)
		})
	}
}
