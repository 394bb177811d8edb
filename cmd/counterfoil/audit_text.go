// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// personal shows a value about a person, if it is there to be shown.
func personal(p *auditv1.Personal) string {
	if p.GetSealed() != nil {
		return "(sealed)"
	}
	return p.GetPlain()
}

// who shows who acted, by the name of the time.
func who(actor *auditv1.Actor) string {
	text := personal(actor.GetDisplayName())
	switch {
	case text != "":
	case actor.GetType() == "user":
		text = actor.GetId()
	default:
		text = strings.TrimSpace(actor.GetType() + " " + actor.GetId())
	}
	if other := actor.GetOnBehalfOf(); other != "" {
		text += " for " + other
	}
	return text
}

// thing shows a resource: its kind, and its name or else its id.
func thing(r *auditv1.Resource) string {
	if name := personal(r.GetDisplayName()); name != "" {
		return r.GetType() + " " + strconv.Quote(name)
	}
	return strings.TrimSpace(r.GetType() + " " + r.GetId())
}

// toWhat shows what was acted on. Something that has no name of its own is shown with the first related thing that has.
func toWhat(e *auditv1.AuditEvent) string {
	if personal(e.GetResource().GetDisplayName()) == "" {
		for _, related := range e.GetRelatedResources() {
			if personal(related.GetDisplayName()) != "" {
				return e.GetResource().GetType() + " of " + thing(related)
			}
		}
	}
	return thing(e.GetResource())
}

// result shows how it ended, and why.
func result(e *auditv1.AuditEvent) string {
	text := strings.ToLower(word(e.GetOutcome(), "OUTCOME_"))
	if e.GetReason() != "" {
		text += " " + e.GetReason()
	}
	return text
}

// fromWhere shows the client's address, and whether it is only what somebody said.
func fromWhere(c *auditv1.RequestContext) string {
	address := personal(c.GetClientAddress())
	if address != "" && c.GetClientAddressClaimed() {
		address += " (claimed)"
	}
	return address
}

// changes shows what changed: "role: viewer → editor; …".
func changes(e *auditv1.AuditEvent) string {
	var texts []string
	for _, c := range e.GetChanges() {
		texts = append(texts, c.GetField()+": "+change(c))
	}
	return strings.Join(texts, "; ")
}

func change(c *auditv1.Change) string {
	return or(personal(c.GetOldValue()), "(none)") + " → " + or(personal(c.GetNewValue()), "(none)")
}

// recordFields are all that a record says, for reading.
func recordFields(l *adminv1.AuditLog) [][2]string {
	e := l.GetEvent()
	fields := [][2]string{
		{"record", l.GetName()},
		{"when", whenUTC(e.GetOccurTime())},
		{"who", who(e.GetActor())},
		{"did", e.GetAction() + " (" + strings.ToLower(word(e.GetOperation(), "OPERATION_")) + ")"},
		{"to what", toWhat(e)},
		{"result", result(e)},
		{"from", fromWhere(e.GetContext())},
		{"user agent", e.GetContext().GetUserAgent()},
	}
	for _, c := range e.GetChanges() {
		fields = append(fields, [2]string{"change", c.GetField() + ": " + change(c)})
	}
	for _, key := range slices.Sorted(maps.Keys(e.GetMetadata())) {
		fields = append(fields, [2]string{"metadata", key + " = " + e.GetMetadata()[key]})
	}
	fields = append(fields,
		[2]string{"actor", strings.TrimSpace(e.GetActor().GetType() + " " + e.GetActor().GetId())},
		[2]string{"session", e.GetActor().GetSessionId()},
		[2]string{"resource", versioned(e.GetResource())},
	)
	for _, related := range e.GetRelatedResources() {
		fields = append(fields, [2]string{"related", strings.TrimSpace(related.GetType() + " " + related.GetId())})
	}
	fields = append(fields,
		[2]string{"correlation id", e.GetContext().GetCorrelationId()},
		[2]string{"trace id", e.GetContext().GetTraceId()},
		[2]string{"event type", e.GetEventType()},
		[2]string{"ledger", position(e.GetOwner(), l.GetLedgerId(), l.GetLedgerNumber())},
		[2]string{"recorded", whenUTC(l.GetRecordTime())},
	)
	if l.GetPayloadUnreadable() {
		fields = append(fields, [2]string{"payload", "does not decode: only what Admin keeps in columns is shown"})
	}
	if payload := l.GetPayload(); len(payload) > 0 {
		fields = append(fields, [2]string{"payload", fmt.Sprintf("%d bytes: %s", len(payload), hex.EncodeToString(payload))})
	}
	return fields
}

// versioned shows a resource's id and version.
func versioned(r *auditv1.Resource) string {
	text := strings.TrimSpace(r.GetType() + " " + r.GetId())
	if r.GetVersion() > 0 {
		text += " version " + strconv.FormatInt(r.GetVersion(), 10)
	}
	return text
}

// position shows a place in an owner's ledger.
func position(owner, ledger string, number int64) string {
	if number == 0 {
		return ""
	}
	return fmt.Sprintf("number %d of %s's ledger %s", number, owner, ledger)
}
