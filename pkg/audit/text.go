// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"strings"
	"unicode/utf8"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// checkTexts refuses what Postgres text (U+0000) or protobuf (invalid UTF-8,
// which is how a lone surrogate arrives) cannot hold.
func checkTexts(e *auditv1.AuditEvent) []Violation {
	var found []Violation
	eachText(e, func(at place, s string) {
		switch {
		case !utf8.ValidString(s):
			found = append(found, Violation{at.String(), "text.utf8", "is not valid UTF-8"})
		case strings.IndexByte(s, 0) >= 0:
			found = append(found, Violation{at.String(), "text.nul", "contains the character U+0000"})
		}
	})
	return found
}

// place says where a text stands. It is spelled out only for one that is refused.
type place struct {
	message string // "" for the event itself
	nth     int    // 1 for the first of a list, 0 for no list
	key     string // of a map
	field   string
	part    string // of a Personal
}

func (p place) String() string {
	at := p.message
	switch {
	case p.nth > 0:
		at = fmt.Sprintf("%s[%d]", at, p.nth-1)
	case p.key != "":
		at = fmt.Sprintf("%s[%q]", at, printable(p.key))
	}
	return strings.Trim(strings.Join([]string{at, p.field, p.part}, "."), ".")
}

// eachText visits every string of the event. A test compares it with the contract.
func eachText(e *auditv1.AuditEvent, visit func(at place, s string)) {
	visit(place{field: "audit_id"}, e.GetAuditId())
	visit(place{field: "event_type"}, e.GetEventType())
	visit(place{field: "owner"}, e.GetOwner())
	visit(place{field: "action"}, e.GetAction())
	visit(place{field: "reason"}, e.GetReason())
	actor := e.GetActor()
	visit(place{message: "actor", field: "type"}, actor.GetType())
	visit(place{message: "actor", field: "id"}, actor.GetId())
	visit(place{message: "actor", field: "session_id"}, actor.GetSessionId())
	visit(place{message: "actor", field: "on_behalf_of"}, actor.GetOnBehalfOf())
	eachPersonal(place{message: "actor", field: "display_name"}, actor.GetDisplayName(), visit)
	eachResource(place{message: "resource"}, e.GetResource(), visit)
	for i, r := range e.GetRelatedResources() {
		eachResource(place{message: "related_resources", nth: i + 1}, r, visit)
	}
	for i, c := range e.GetChanges() {
		visit(place{message: "changes", nth: i + 1, field: "field"}, c.GetField())
		eachPersonal(place{message: "changes", nth: i + 1, field: "old_value"}, c.GetOldValue(), visit)
		eachPersonal(place{message: "changes", nth: i + 1, field: "new_value"}, c.GetNewValue(), visit)
	}
	from := e.GetContext()
	visit(place{message: "context", field: "correlation_id"}, from.GetCorrelationId())
	visit(place{message: "context", field: "trace_id"}, from.GetTraceId())
	visit(place{message: "context", field: "user_agent"}, from.GetUserAgent())
	eachPersonal(place{message: "context", field: "client_address"}, from.GetClientAddress(), visit)
	for key, value := range e.GetMetadata() {
		visit(place{message: "metadata", key: key}, key)
		visit(place{message: "metadata", key: key}, value)
	}
}

func eachResource(at place, r *auditv1.Resource, visit func(place, string)) {
	at.field = "type"
	visit(at, r.GetType())
	at.field = "id"
	visit(at, r.GetId())
	at.field = "display_name"
	eachPersonal(at, r.GetDisplayName(), visit)
}

func eachPersonal(at place, p *auditv1.Personal, visit func(place, string)) {
	at.part = "plain"
	visit(at, p.GetPlain())
	at.part = "sealed.key_id"
	visit(at, p.GetSealed().GetKeyId())
}
