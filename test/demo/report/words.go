// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Printf prints for a person. If nobody reads any more, the run goes on to its exit code.
func Printf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }

// longest is how many characters of one value are shown.
const longest = 40

// learn keeps the names that an event mentions, so that events which hold only an id can be read, too.
func (t *Trail) learn(e *auditv1.AuditEvent) {
	keep := func(id, name string) {
		if id != "" && name != "" {
			t.names[id] = name
		}
	}
	if e.GetActor().GetType() == "user" {
		keep(e.GetActor().GetId(), e.GetActor().GetDisplayName().GetPlain())
	}
	for _, r := range append([]*auditv1.Resource{e.GetResource()}, e.GetRelatedResources()...) {
		keep(r.GetId(), r.GetDisplayName().GetPlain())
	}
}

// name is what a resource is called, or the beginning of its id.
func (t *Trail) name(id string) string {
	if name := t.names[id]; name != "" {
		return clean(name)
	}
	if len(id) == 36 {
		return id[24:] // of a UUIDv7 the end tells rows apart, the beginning only says when
	}
	return clean(id)
}

// actor is who did it.
func (t *Trail) actor(e *auditv1.AuditEvent) string {
	actor := e.GetActor()
	if actor.GetType() == "user" {
		return cut(t.name(actor.GetId()), 17)
	}
	if actor.GetId() == "" {
		return actor.GetType()
	}
	return actor.GetType() + ": " + clean(actor.GetId())
}

// target is what it was done to.
func (t *Trail) target(e *auditv1.AuditEvent) string {
	r := e.GetResource()
	user, project := related(e, "user"), related(e, "project")
	switch r.GetType() {
	case "login_policy":
		return "login policy"
	case "role_grant":
		return "role " + clean(e.GetMetadata()["role"]) + " of " + t.name(user)
	case "session":
		if user == "" {
			return "session " + t.name(r.GetId())
		}
		return "session of " + t.name(user)
	case "project_member":
		if project == "" {
			return "member " + t.name(r.GetId())
		}
		return t.name(user) + " in " + t.name(project)
	case "method":
		return "method " + clean(r.GetId()[strings.LastIndexByte(r.GetId(), '/')+1:])
	case "user", "project":
		if name := r.GetDisplayName().GetPlain(); r.GetId() == "" && name != "" {
			return r.GetType() + " " + clean(name)
		}
	}
	return strings.TrimSpace(strings.ReplaceAll(r.GetType(), "_", " ") + " " + t.name(r.GetId()))
}

// common is what all events of a folded line were done to.
func (t *Trail) common(l line) string {
	first, last := l.first.GetEvent(), l.last.GetEvent()
	if a := t.target(first); a == t.target(last) {
		return a
	}
	if in := related(first, "project"); in != "" && in == related(last, "project") {
		return "members of " + t.name(in)
	}
	return strings.ReplaceAll(first.GetResource().GetType(), "_", " ") + "s"
}

// related returns the id of the event's resource of a type, its own or a related one.
func related(e *auditv1.AuditEvent, kind string) string {
	for _, r := range append([]*auditv1.Resource{e.GetResource()}, e.GetRelatedResources()...) {
		if r.GetType() == kind {
			return r.GetId()
		}
	}
	return ""
}

// changes is what it changed: "state: ACTIVE → ARCHIVED".
func (t *Trail) changes(e *auditv1.AuditEvent) string {
	var parts []string
	for _, c := range e.GetChanges() {
		before, after := c.GetOldValue(), c.GetNewValue()
		if before == nil && after == nil {
			parts = append(parts, c.GetField()+": changed")
			continue
		}
		parts = append(parts, clean(c.GetField())+": "+t.value(before)+" → "+t.value(after))
	}
	return strings.Join(parts, ", ")
}

func (t *Trail) value(p *auditv1.Personal) string {
	text := p.GetPlain()
	if text == "" {
		return "–"
	}
	if name := t.names[text]; name != "" {
		return clean(name)
	}
	return cut(clean(text), longest)
}

// clean makes text that strangers wrote fit for a terminal.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

// cut shortens a text.
func cut(text string, n int) string {
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}
