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
	eachText(e, func(field, s string) {
		switch {
		case !utf8.ValidString(s):
			found = append(found, Violation{field, "text.utf8", "is not valid UTF-8"})
		case strings.IndexByte(s, 0) >= 0:
			found = append(found, Violation{field, "text.nul", "contains the character U+0000"})
		}
	})
	return found
}

// eachText visits every string of the event. A test compares it with the contract.
func eachText(e *auditv1.AuditEvent, visit func(field, s string)) {
	visit("audit_id", e.GetAuditId())
	visit("event_type", e.GetEventType())
	visit("owner", e.GetOwner())
	visit("action", e.GetAction())
	visit("reason", e.GetReason())
	actor := e.GetActor()
	visit("actor.type", actor.GetType())
	visit("actor.id", actor.GetId())
	visit("actor.session_id", actor.GetSessionId())
	visit("actor.on_behalf_of", actor.GetOnBehalfOf())
	eachPersonal("actor.display_name", actor.GetDisplayName(), visit)
	eachResource("resource", e.GetResource(), visit)
	for i, r := range e.GetRelatedResources() {
		eachResource(fmt.Sprintf("related_resources[%d]", i), r, visit)
	}
	for i, c := range e.GetChanges() {
		at := fmt.Sprintf("changes[%d]", i)
		visit(at+".field", c.GetField())
		eachPersonal(at+".old_value", c.GetOldValue(), visit)
		eachPersonal(at+".new_value", c.GetNewValue(), visit)
	}
	from := e.GetContext()
	visit("context.correlation_id", from.GetCorrelationId())
	visit("context.trace_id", from.GetTraceId())
	visit("context.user_agent", from.GetUserAgent())
	eachPersonal("context.client_address", from.GetClientAddress(), visit)
	for key, value := range e.GetMetadata() {
		at := fmt.Sprintf("metadata[%q]", printable(key))
		visit(at, key)
		visit(at, value)
	}
}

func eachResource(at string, r *auditv1.Resource, visit func(field, s string)) {
	visit(at+".type", r.GetType())
	visit(at+".id", r.GetId())
	eachPersonal(at+".display_name", r.GetDisplayName(), visit)
}

func eachPersonal(at string, p *auditv1.Personal, visit func(field, s string)) {
	visit(at+".plain", p.GetPlain())
	visit(at+".sealed.key_id", p.GetSealed().GetKeyId())
}
