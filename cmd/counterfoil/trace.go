// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

type traceCmd struct {
	Event string `arg:"" help:"Event id, alone or as the last part of a resource name."`
}

// Help implements kong.HelpProvider.
func (traceCmd) Help() string {
	return `Asks Auth, App and Admin, and prints where the event has been: the outbox of its owner, the stream, the inbox of each
consumer, what was refused under its id, and the audit log. The last line says where it is now and what to do.

Exit codes: 0 if the event is recorded; 5 if it is known and not recorded (yet); 3 if nobody knows it; 6 if it was not found
and some service could not be asked.

` + examples("counterfoil trace 01980000-0000-7000-8000-000000000001", "counterfoil trace 01980000-0000-7000-8000-000000000001 -o json")
}

// path is all that the three services know about one event.
type path struct {
	id       string
	owner    string // whose outbox has it; "" if none does
	outbox   *outboxv1.GetOutboxEventResponse
	admin    *adminv1.TraceEventResponse
	recorded string // SHA-256 of the recorded bytes, in hex; "" if there are none or they were not read
	failures []asked
}

// asked is a service that could not be asked.
type asked struct {
	service string
	err     error
}

// Run follows the event.
func (c *traceCmd) Run(ctx context.Context, a *app) error {
	id, err := lastID("an event", c.Event)
	if err != nil {
		return err
	}
	p, err := a.follow(ctx, id)
	if err != nil {
		return err
	}
	verdict := p.verdict()
	if a.out.json {
		err = p.writeJSON(a, verdict)
	} else {
		err = p.write(a, verdict)
	}
	for _, f := range p.failures {
		a.note("%s was not asked: %v", f.service, f.err)
	}
	if err != nil || verdict.exit == exitOK {
		return err
	}
	return &failure{code: verdict.exit, text: "the event is " + verdict.state, hint: verdict.advice}
}

// follow asks all three at once. A service that cannot be asked is noted; that none can is an error.
func (a *app) follow(ctx context.Context, id string) (*path, error) {
	p := &path{id: id}
	services := []string{serviceAuth, serviceApp, serviceAdmin}
	failures := make([]error, len(services))
	owned := make([]*outboxv1.GetOutboxEventResponse, len(services))
	// One token for all, and every connection made, before the three go their ways.
	if _, err := a.token(ctx, ""); err != nil {
		return nil, err
	}
	for _, service := range services {
		if err := a.conn(service).dial(); err != nil {
			return nil, err
		}
	}
	a.correlation()
	var wait sync.WaitGroup
	for i, service := range services {
		wait.Go(func() {
			if service == serviceAdmin {
				p.admin, failures[i] = a.auditLogs().TraceEvent(ctx, &adminv1.TraceEventRequest{EventId: id})
				return
			}
			owned[i], failures[i] = a.outbox(service).GetOutboxEvent(ctx, &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/" + id})
		})
	}
	wait.Wait()
	for i, service := range services {
		switch s, answered := statusOf(failures[i]); {
		case failures[i] == nil && owned[i] != nil:
			p.owner, p.outbox = service, owned[i]
		case failures[i] == nil, answered && s.Code() == codes.NotFound:
		default:
			p.failures = append(p.failures, asked{service, failures[i]})
		}
	}
	if len(p.failures) == len(services) {
		return nil, p.failures[0].err
	}
	return p, a.compare(ctx, p)
}

// compare reads the recorded bytes, where there are the owner's to compare them with.
func (a *app) compare(ctx context.Context, p *path) error {
	if p.outbox == nil || p.admin.GetAuditLog() == nil {
		return nil
	}
	r, err := a.auditLogs().GetAuditLog(ctx, &adminv1.GetAuditLogRequest{
		Name: p.admin.GetAuditLog().GetName(), View: adminv1.AuditLogView_AUDIT_LOG_VIEW_FULL,
	})
	if err != nil {
		return err
	}
	sum := sha256.Sum256(r.GetAuditLog().GetPayload())
	p.recorded = hex.EncodeToString(sum[:])
	return nil
}

// verdict is where an event is.
type verdict struct {
	state  string // "recorded", "waiting in the outbox of auth", …
	advice string
	exit   int
}

// verdict follows the path to its last station.
func (p *path) verdict() verdict {
	if p.admin.GetAuditLog() != nil {
		return p.atEnd()
	}
	if v, ok := p.atAdmin(); ok {
		return v
	}
	if p.outbox != nil {
		return p.atOwner()
	}
	if len(p.failures) > 0 {
		return verdict{"not found where it could be asked for", "ask again when all three services answer", exitUnavailable}
	}
	return verdict{"not known to any service", "check the id; finished events leave the outbox after a time, but never the audit log", exitNotFound}
}

// atEnd is the end of the path. Other consumers than audit-log may be behind, which changes nothing about the record.
func (p *path) atEnd() verdict {
	if p.recorded != "" && p.outbox != nil && p.recorded != p.outbox.GetPayloadSha256() {
		return verdict{"recorded with other bytes than its owner holds", "keep both databases as they are and find out who changed one", exitConflict}
	}
	for _, e := range p.admin.GetInboxEntries() {
		if e.GetState() == adminv1.InboxState_INBOX_STATE_DEAD {
			return verdict{
				"recorded, but the work of " + e.GetConsumer() + " on it is DEAD (" + or(e.GetLastErrorCode(), "no code") + ")",
				requeueAdvice(e), exitOK,
			}
		}
	}
	return verdict{state: "recorded", exit: exitOK}
}

func requeueAdvice(e *adminv1.InboxEntry) string {
	return fmt.Sprintf("remove the cause, then: counterfoil inbox requeue --consumer %s --event %s --reason TEXT", e.GetConsumer(), e.GetEventId())
}

// atAdmin is where the event is if Admin has it and did not record it.
func (p *path) atAdmin() (verdict, bool) {
	for _, e := range p.admin.GetInboxEntries() {
		if e.GetConsumer() != "audit-log" {
			continue
		}
		switch e.GetState() {
		case adminv1.InboxState_INBOX_STATE_DEAD:
			return verdict{"stopped in Admin's inbox: DEAD (" + or(e.GetLastErrorCode(), "no code") + ")", requeueAdvice(e), exitConflict}, true
		case adminv1.InboxState_INBOX_STATE_PROCESSED:
			return verdict{"marked PROCESSED, and missing from the audit log", "this must not be: keep Admin's database as it is and report it", exitConflict}, true
		default:
			return verdict{"waiting in Admin's inbox: " + word(e.GetState(), "INBOX_STATE_"), "look again in a moment; counterfoil inbox status shows how much is before it", exitConflict}, true
		}
	}
	for _, bad := range p.admin.GetPoison() {
		if bad.GetState() == adminv1.PoisonState_POISON_STATE_OPEN && bad.GetKind() == adminv1.PoisonKind_POISON_KIND_PARKED {
			return verdict{
				"parked by Admin: " + bad.GetReason(),
				fmt.Sprintf("upgrade Admin, then: counterfoil poison replay %s --reason TEXT", poisonID(bad)), exitConflict,
			}, true
		}
	}
	for _, bad := range p.admin.GetPoison() {
		if bad.GetState() != adminv1.PoisonState_POISON_STATE_RESOLVED && bad.GetKind() != adminv1.PoisonKind_POISON_KIND_FORGED {
			return verdict{"refused by Admin: " + bad.GetReason() + ", " + word(bad.GetState(), "POISON_STATE_"), "counterfoil poison get " + poisonID(bad) + " shows the evidence", exitConflict}, true
		}
	}
	if len(p.admin.GetLedgerPositions()) > 0 {
		return verdict{"taken over by Admin, and not in its inbox any more", "this must not be: keep Admin's database as it is and report it", exitConflict}, true
	}
	return verdict{}, false
}

// atOwner is where the event is if only its owner has it.
func (p *path) atOwner() verdict {
	e := p.outbox.GetOutboxEvent()
	status := word(e.GetStatus(), statusPrefix)
	switch e.GetStatus() {
	case outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_FAILED, outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED:
		code := or(or(e.GetDeadLetterReason(), e.GetLastErrorCode()), "no code")
		return verdict{
			"stopped in the outbox of " + p.owner + ": " + status + " (" + code + ")",
			fmt.Sprintf("remove the cause, then: counterfoil outbox requeue --service %s %s --reason TEXT", p.owner, p.id), exitConflict,
		}
	case outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DELIVERED:
		if p.unasked(serviceAdmin) {
			return verdict{"delivered to the stream as " + e.GetProviderRecordId() + "; Admin was not asked", "ask again when Admin answers", exitUnavailable}
		}
		return verdict{"in the stream as " + e.GetProviderRecordId() + ", and not taken over by Admin yet", "look again in a moment; counterfoil inbox status shows how far the stream is read", exitConflict}
	default:
		text := "waiting in the outbox of " + p.owner + ": " + status
		if e.GetLastErrorCode() != "" {
			text += " (" + e.GetLastErrorCode() + ")"
		}
		return verdict{text, "look again in a moment; counterfoil outbox status shows whether it moves", exitConflict}
	}
}

func (p *path) unasked(service string) bool {
	for _, f := range p.failures {
		if f.service == service {
			return true
		}
	}
	return false
}

// event is the event itself, from whoever has it.
func (p *path) event() *auditv1.AuditEvent {
	if e := p.admin.GetAuditLog().GetEvent(); e != nil {
		return e
	}
	return p.outbox.GetAuditEvent()
}

// writeJSON prints the answers of the services as they are, and the verdict.
func (p *path) writeJSON(a *app, v verdict) error {
	document := map[string]any{
		"eventId": p.id, "owner": p.owner, "recorded": p.admin.GetAuditLog() != nil, "state": v.state, "advice": v.advice, "recordedSha256": p.recorded,
		"outbox": nil, "admin": nil, "notAsked": some(nil),
	}
	for key, m := range map[string]proto.Message{"outbox": p.outbox, "admin": p.admin} {
		if !m.ProtoReflect().IsValid() {
			continue
		}
		text, err := marshal(m)
		if err != nil {
			return err
		}
		document[key] = json.RawMessage(text)
	}
	var missing []string
	for _, f := range p.failures {
		missing = append(missing, f.service)
	}
	document["notAsked"] = some(missing)
	return a.out.value(document)
}
