// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

// manyDead makes an outbox with n dead letters, served in pages.
func (w *world) manyDead(n int) {
	var all []*outboxv1.OutboxEvent
	for i := range n {
		e := outboxEvent(dead)
		e.EventId = fmt.Sprintf("01980000-0000-7000-8000-%012x", i)
		all = append(all, e)
	}
	w.on("OutboxService/ListOutboxEvents", func(c received) ([]proto.Message, error) {
		r := c.request.(*outboxv1.ListOutboxEventsRequest)
		from, err := strconv.Atoi(or(r.GetPageToken(), "0"))
		if err != nil {
			return nil, err
		}
		to := min(from+int(r.GetPageSize()), n)
		page := &outboxv1.ListOutboxEventsResponse{OutboxEvents: all[from:to]}
		if to < n {
			page.NextPageToken = fmt.Sprint(to)
		}
		return []proto.Message{page}, nil
	})
	w.on("OutboxService/RequeueOutboxEvents", func(c received) ([]proto.Message, error) {
		names := c.request.(*outboxv1.RequeueOutboxEventsRequest).GetNames()
		return []proto.Message{&outboxv1.RequeueOutboxEventsResponse{RequeuedCount: int32(len(names))}}, nil
	})
}

// TestBulk: all that a filter selects is shown first, asked about, and done in steps, each with a request id of its own.
func TestBulk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manyDead(2300)
	bulk := []string{"outbox", "requeue", "--service", "app", "--all", "--error-code", "broker.refused"}
	o := w.run(append(bulk, "--dry-run")...)
	if o.code != exitOK || strings.Count(o.out, "\n") != 2301 || o.err != "dry run: would requeue 2300 events of app\n" {
		t.Errorf("exit code %d, %d lines: %s", o.code, strings.Count(o.out, "\n"), o.err)
	}
	got := w.asked("OutboxService/ListOutboxEvents")[0].request.(*outboxv1.ListOutboxEventsRequest)
	if got.GetErrorCode() != "broker.refused" || len(got.GetStatuses()) != 2 {
		t.Errorf("selected by %v", got)
	}
	o = w.run(append(bulk, "--dry-run", "-o", "json")...)
	checkJSON(t, o.out)

	reason := append(bulk, "--reason", "stream repaired")
	if o := w.run(bulk...); o.code != exitUsage || !strings.Contains(o.err, "--reason is needed") {
		t.Errorf("without a reason: exit code %d: %s", o.code, o.err)
	}
	if o := w.run(reason...); o.code != exitUsage || !strings.Contains(o.err, "Requeue 2300 events of app? Nobody is here to ask") || !strings.Contains(o.err, "add --yes") {
		t.Errorf("nobody to ask: exit code %d: %s", o.code, o.err)
	}
	if o := w.runWith(types("n\n"), reason...); o.code != exitFailure || !strings.Contains(o.err, "nothing was done") {
		t.Errorf("no: exit code %d: %s", o.code, o.err)
	}
	if n := len(w.asked("OutboxService/RequeueOutboxEvents")); n != 0 {
		t.Fatalf("%d events were requeued without consent", n)
	}
	if o := w.runWith(types("y\n"), reason...); o.code != exitOK || o.out != "requeued events of app  2300\n" {
		t.Errorf("yes: exit code %d: %s%s", o.code, o.out, o.err)
	}
	steps := w.asked("OutboxService/RequeueOutboxEvents")
	seen, requests := make(map[string]bool), make(map[string]bool)
	for _, s := range steps {
		r := s.request.(*outboxv1.RequeueOutboxEventsRequest)
		requests[r.GetRequestId()] = true
		for _, name := range r.GetNames() {
			seen[name] = true
		}
		if s.service != serviceApp || r.GetReason() != "stream repaired" {
			t.Errorf("%s: %q", s.service, r.GetReason())
		}
	}
	if len(steps) != 3 || len(seen) != 2300 || len(requests) != 3 {
		t.Errorf("%d steps, %d events, %d request ids", len(steps), len(seen), len(requests))
	}
}

// TestBulkBreaksOff: it is said how far an operation came.
func TestBulkBreaksOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manyDead(1500)
	calls := 0
	w.on("OutboxService/RequeueOutboxEvents", func(received) ([]proto.Message, error) {
		if calls++; calls > 1 {
			return nil, refusal(codes.FailedPrecondition, "EVENT_NOT_DEAD", "an event is in another state")
		}
		return []proto.Message{&outboxv1.RequeueOutboxEventsResponse{RequeuedCount: 1000}}, nil
	})
	o := w.run("outbox", "requeue", "--service", "auth", "--all", "--reason", "x", "--yes")
	if o.code != exitConflict {
		t.Errorf("exit code %d", o.code)
	}
	has(t, o.err, "1000 of 1500 events of auth were done before this error", "EVENT_NOT_DEAD")
}

func TestNothingToDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manyDead(0)
	o := w.run("outbox", "requeue", "--service", "auth", "--all", "--reason", "x")
	if o.code != exitOK || o.out != "requeued events of auth  0\n" || !strings.Contains(o.err, "no events of auth to requeue") {
		t.Errorf("exit code %d: %s%s", o.code, o.out, o.err)
	}
}

// TestNamed: ids come from arguments, --event and the input, each once; not both ids and --all.
func TestNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("InboxService/RequeueInboxEntries", &adminv1.RequeueInboxEntriesResponse{RequeuedEventIds: []string{eventID, eventID2}})
	o := w.runWith(strings.NewReader("\n auditLogs/"+eventID2+"\n"+eventID+"\n"),
		"inbox", "requeue", "--consumer", "audit-log", eventID, "-", "--event", eventID, "--reason", "x")
	if o.code != exitOK {
		t.Fatalf("exit code %d: %s", o.code, o.err)
	}
	got := only[*adminv1.RequeueInboxEntriesRequest](w, "InboxService/RequeueInboxEntries").GetEventIds()
	if len(got) != 2 || got[0] != eventID || got[1] != eventID2 {
		t.Errorf("requeued %v", got)
	}
	for _, args := range [][]string{
		{"inbox", "requeue", "--consumer", "audit-log", "--reason", "x"},
		{"inbox", "requeue", "--consumer", "audit-log", "--reason", "x", "--all", eventID},
		{"inbox", "requeue", "--consumer", "audit-log", "--reason", " ", eventID},
		{"inbox", "requeue", "--consumer", "audit-log", "--reason", "x", "nonsense"},
		{"inbox", "replay", "--consumer", "audit-log", "--reason", "x", "--all", "--yes"},
		{"poison", "discard", "--reason", "x", "--all", "--yes"},
		{"poison", "discard", "--reason", "x", poison1},
		{"outbox", "requeue", "--service", "auth", eventID},
		{"session", "revoke"},
		{"session", "revoke", sessionID, "--all"},
		{"user", "delete", userID},
		{"project", "delete", projectID},
		{"user", "update", userID},
		{"policy", "set"},
		{"project", "update", projectID},
	} {
		if o := w.run(args...); o.code != exitUsage {
			t.Errorf("%v: exit code %d: %s", args, o.code, o.err)
		}
	}
	if n := len(w.calls); n != 1 {
		t.Errorf("%d calls were made by wrong usage", n-1)
	}
}

// TestLeftAsTheyAre: a script learns that what it named was not in a state to act on.
func TestLeftAsTheyAre(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("InboxService/ReplayInboxEntries", &adminv1.ReplayInboxEntriesResponse{ReplayedEventIds: []string{eventID}})
	o := w.run("inbox", "replay", "--consumer", "audit-log", eventID, eventID2, "--reason", "x")
	if o.code != exitConflict || o.out != "replayed entries of audit-log  1\n" {
		t.Errorf("exit code %d: %s", o.code, o.out)
	}
	has(t, o.err, "1 of 2 entries of audit-log were left as they are", "--dry-run")
	w.says("PoisonService/ReplayPoison", &adminv1.ReplayPoisonResponse{})
	if o := w.run("poison", "replay", poison1, "--reason", "x", "-o", "json"); o.code != exitConflict || !strings.Contains(o.out, `"resolvedNames": []`) {
		t.Errorf("exit code %d: %s", o.code, o.out)
	}
}

// TestDryRunOfNamed: what would be left alone is not shown, and nothing is touched.
func TestDryRunOfNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.on("InboxService/GetInboxEntry", func(c received) ([]proto.Message, error) {
		state := processed
		if strings.HasSuffix(c.request.(*adminv1.GetInboxEntryRequest).GetName(), eventID) {
			state = deadEntry
		}
		return []proto.Message{&adminv1.GetInboxEntryResponse{InboxEntry: inboxEntry("audit-log", state)}}, nil
	})
	o := w.run("inbox", "requeue", "--consumer", "audit-log", eventID, eventID2, "--dry-run")
	if o.code != exitOK || strings.Count(o.out, "\n") != 2 || !strings.Contains(o.out, "DEAD") || o.err != "dry run: would requeue 1 entries of audit-log\n" {
		t.Errorf("exit code %d: %s%s", o.code, o.out, o.err)
	}
	w.says("OutboxService/GetOutboxEvent", outboxAnswer(outboxEvent(outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DELIVERED)))
	has(t, w.run("outbox", "requeue", "--service", "auth", eventID, "--dry-run").err, "would requeue 0 events of auth")
	w.says("PoisonService/GetPoison", &adminv1.GetPoisonResponse{Poison: parked()})
	has(t, w.run("poison", "replay", poison1, "--dry-run").err, "would replay 1 poison")
	forged := parked()
	forged.Kind = adminv1.PoisonKind_POISON_KIND_FORGED
	w.says("PoisonService/GetPoison", &adminv1.GetPoisonResponse{Poison: forged})
	has(t, w.run("poison", "replay", poison1, "--dry-run").err, "would replay 0 poison")
	has(t, w.run("poison", "discard", poison1, "--dry-run").err, "would discard 1 poison")
	w.says("PoisonService/ListPoison", &adminv1.ListPoisonResponse{Poison: []*adminv1.Poison{forged}})
	has(t, w.run("poison", "discard", "--all", "--kind", "forged", "--dry-run").err, "would discard 1 poison")
}

// TestConsent: what cannot be taken back is asked about, by name.
func TestConsent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("UserService/DeleteUser", &authv1.DeleteUserResponse{})
	o := w.runWith(types("\n"), "user", "delete", userID)
	if o.code != exitFailure || !strings.HasPrefix(o.err, "Delete the account "+userID+" (users/"+userID+") for good? [y/N] ") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	if n := len(w.calls); n != 0 {
		t.Errorf("%d calls without consent", n)
	}
	if o := w.runWith(types("YES\n"), "user", "delete", userID); o.code != exitOK {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	w.says("SessionService/RevokeUserSessions", &authv1.RevokeUserSessionsResponse{RevokedCount: 1})
	if o := w.runWith(types("no\n"), "session", "revoke", "--all"); o.code != exitFailure || !strings.Contains(o.err, "Revoke all sessions of me") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
}

// TestOneServiceDown: the status of the other outbox is shown all the same.
func TestOneServiceDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("app:OutboxService/GetOutboxStatus", &outboxv1.GetOutboxStatusResponse{Owner: "app"})
	w.fails("auth:OutboxService/GetOutboxStatus", refusal(codes.Unavailable, "SERVER_STOPPING", "stopping"))
	o := w.run("outbox", "status")
	if o.code != exitUnavailable || !strings.Contains(o.out, "outbox of            app") || !strings.Contains(o.err, "auth: stopping") {
		t.Errorf("exit code %d: %s%s", o.code, o.out, o.err)
	}
}

// TestBothServicesDown: each says for itself what is wrong, in the form that was asked for.
func TestBothServicesDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fails("auth:OutboxService/GetOutboxStatus", refusal(codes.Unavailable, "SERVER_STOPPING", "stopping"))
	w.fails("app:OutboxService/GetOutboxStatus", refusal(codes.PermissionDenied, "ROLE_REQUIRED", "not yours"))
	o := w.run("outbox", "status")
	if lines := linesOf(o.err, "counterfoil: "); o.code != exitDenied || o.out != "" || !slices.Equal(lines, []string{
		"counterfoil: auth: stopping (SERVER_STOPPING)", "counterfoil: app: not yours (ROLE_REQUIRED)",
	}) {
		t.Errorf("exit code %d: %s%s", o.code, o.out, o.err)
	}
	o = w.run("outbox", "status", "-o", "json")
	if lines := linesOf(o.err, `{"error":{`); o.code != exitDenied || len(lines) != 2 || strings.Count(o.err, "\n") != 2 {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
}

// TestOutboxStatusOfNobody: that is said once, though it keeps two services from being asked.
func TestOutboxStatusOfNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := os.Remove(w.config); err != nil {
		t.Fatal(err)
	}
	both, one := w.run("outbox", "status"), w.run("outbox", "status", "--service", "auth")
	if both.code != exitDenied || both.err != one.err || len(linesOf(both.err, "counterfoil: ")) != 1 {
		t.Errorf("exit code %d: %s\nof one service: %s", both.code, both.err, one.err)
	}
}

// linesOf returns the lines of text that begin with prefix.
func linesOf(text, prefix string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !strings.HasPrefix(line, prefix) })
}
