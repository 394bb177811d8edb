// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/audit"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// owner is the name under which the service's events are known.
const owner = "app"

// Kind is a type of event that the service emits.
type Kind struct {
	// Action is what happened: "app.project.created".
	Action string
	// Version is the version of the event's meaning; the event type is the action, ".v" and the version.
	Version int32
	// Operation is the kind of action; unspecified where each event has its own.
	Operation auditv1.Operation
}

// EventType returns the action and its version: "app.project.created.v1".
func (k Kind) EventType() string { return fmt.Sprintf("%s.v%d", k.Action, k.Version) }

// Every event that the service emits. One that ends in "refused" is about an attempt, and changed nothing: its
// operation says what was tried, its outcome and reason why not, its metadata by which method.
var (
	ProjectCreated  = Kind{"app.project.created", 1, auditv1.Operation_OPERATION_CREATE}
	ProjectUpdated  = Kind{"app.project.updated", 1, auditv1.Operation_OPERATION_UPDATE}
	ProjectArchived = Kind{"app.project.archived", 1, auditv1.Operation_OPERATION_UPDATE}
	ProjectRestored = Kind{"app.project.restored", 1, auditv1.Operation_OPERATION_UPDATE}
	ProjectDeleted  = Kind{"app.project.deleted", 1, auditv1.Operation_OPERATION_DELETE}
	ProjectRefused  = Kind{Action: "app.project.refused", Version: 1}

	MemberAdded   = Kind{"app.member.added", 1, auditv1.Operation_OPERATION_CREATE}
	MemberUpdated = Kind{"app.member.updated", 1, auditv1.Operation_OPERATION_UPDATE}
	MemberRemoved = Kind{"app.member.removed", 1, auditv1.Operation_OPERATION_DELETE}
	MemberRefused = Kind{Action: "app.member.refused", Version: 1}

	OutboxRequeued = Kind{"app.outbox.requeued", 1, auditv1.Operation_OPERATION_OPERATE}
	OutboxRefused  = Kind{Action: "app.outbox.refused", Version: 1}

	CallRefused = Kind{Action: "app.call.refused", Version: 1}
)

// Kinds lists every type of event that the service emits.
func Kinds() []Kind {
	return []Kind{
		ProjectCreated, ProjectUpdated, ProjectArchived, ProjectRestored, ProjectDeleted, ProjectRefused,
		MemberAdded, MemberUpdated, MemberRemoved, MemberRefused, OutboxRequeued, OutboxRefused, CallRefused,
	}
}

// field is one field of a resource and how a change of it is recorded.
type field[T any] struct {
	path  string
	value func(T) string
	// secret: that it changed is recorded, and neither value. Free text holds whatever people paste into it.
	secret bool
}

// The allow-lists: what is not here is never recorded.
var (
	projectFields = []field[store.Project]{
		{path: "slug", value: func(p store.Project) string { return p.Slug }},
		{path: "display_name", value: func(p store.Project) string { return p.DisplayName }},
		{path: "description", value: func(p store.Project) string { return p.Description }, secret: true},
		{path: "state", value: func(p store.Project) string { return string(p.State) }},
	}
	memberFields = []field[store.Member]{
		{path: "user", value: func(m store.Member) string { return nonzero(m.UserID) }},
		{path: "role", value: func(m store.Member) string { return string(m.Role) }},
	}
)

// changes compares two states of a resource; the zero value stands for one that does not exist.
func changes[T any](fields []field[T], before, after T) []*auditv1.Change {
	var list []*auditv1.Change
	for _, f := range fields {
		was, is := f.value(before), f.value(after)
		if was == is {
			continue
		}
		change := &auditv1.Change{Field: f.path}
		if !f.secret {
			change.OldValue, change.NewValue = audit.Plain(was), audit.Plain(is)
		}
		list = append(list, change)
	}
	return list
}

// projectCreated and its siblings describe one change of one project each; version and name are those after it.
func projectCreated(call Call, p store.Project) *auditv1.AuditEvent {
	return projectEvent(call, ProjectCreated, p, p.CreateTime, changes(projectFields, store.Project{}, p))
}

func projectUpdated(call Call, before, after store.Project) *auditv1.AuditEvent {
	return projectEvent(call, ProjectUpdated, after, after.UpdateTime, changes(projectFields, before, after))
}

func projectArchived(call Call, before, after store.Project) *auditv1.AuditEvent {
	return projectEvent(call, ProjectArchived, after, after.UpdateTime, changes(projectFields, before, after))
}

func projectRestored(call Call, before, after store.Project) *auditv1.AuditEvent {
	return projectEvent(call, ProjectRestored, after, after.UpdateTime, changes(projectFields, before, after))
}

// projectDeleted has the version after the last one that the row had: a deletion is a change too.
func projectDeleted(call Call, last store.Project, at time.Time) *auditv1.AuditEvent {
	removed := changes(projectFields, last, store.Project{})
	last.Version++
	return projectEvent(call, ProjectDeleted, last, at, removed)
}

// memberAdded and its siblings describe one change of one member each.
func memberAdded(call Call, p store.Project, m store.Member) *auditv1.AuditEvent {
	return memberEvent(call, MemberAdded, p, m, m.CreateTime, changes(memberFields, store.Member{}, m))
}

func memberUpdated(call Call, p store.Project, before, after store.Member) *auditv1.AuditEvent {
	return memberEvent(call, MemberUpdated, p, after, after.UpdateTime, changes(memberFields, before, after))
}

// memberRemoved has the version after the last one that the row had.
func memberRemoved(call Call, p store.Project, last store.Member, at time.Time) *auditv1.AuditEvent {
	removed := changes(memberFields, last, store.Member{})
	last.Version++
	return memberEvent(call, MemberRemoved, p, last, at, removed)
}

// outboxRequeued describes one event that an operator sent on its way again, and why.
func outboxRequeued(call Call, eventID uuid.UUID, reason string, at time.Time) *auditv1.AuditEvent {
	event := newEvent(call, OutboxRequeued, at, outboxEvent(eventID))
	event.Metadata = map[string]string{"reason": reason}
	return event
}

// refused describes an attempt that changed nothing.
func refused(try attempt, outcome auditv1.Outcome, reason string, at time.Time) *auditv1.AuditEvent {
	event := newEvent(try.call, try.kind, at, try.resource)
	event.Operation, event.Outcome, event.Reason = try.operation, outcome, reason
	event.Metadata = map[string]string{"method": methodName(try.call.Info.Method)}
	return event
}

func projectEvent(call Call, kind Kind, p store.Project, at time.Time, changed []*auditv1.Change) *auditv1.AuditEvent {
	resource := project(p.ID)
	resource.Version, resource.DisplayName = p.Version, audit.Plain(p.DisplayName)
	event := newEvent(call, kind, at, resource)
	event.Changes = changed
	return event
}

func memberEvent(call Call, kind Kind, p store.Project, m store.Member, at time.Time, changed []*auditv1.Change) *auditv1.AuditEvent {
	resource := member(m.ID)
	resource.Version = m.Version
	in := project(p.ID)
	in.DisplayName = audit.Plain(p.DisplayName)
	event := newEvent(call, kind, at, resource)
	event.RelatedResources = []*auditv1.Resource{in, {Type: "user", Id: m.UserID.String()}}
	event.Changes = changed
	return event
}

// newEvent fills what every event has. Its id is made here, once, and names it everywhere.
func newEvent(call Call, kind Kind, at time.Time, resource *auditv1.Resource) *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId:       newID().String(),
		EventType:     kind.EventType(),
		SchemaVersion: kind.Version,
		Owner:         owner,
		Action:        kind.Action,
		Operation:     kind.Operation,
		Actor:         actor(call),
		Resource:      resource,
		Outcome:       auditv1.Outcome_OUTCOME_SUCCEEDED,
		OccurTime:     timestamppb.New(at),
		Context: &auditv1.RequestContext{
			CorrelationId:        call.Info.CorrelationID,
			TraceId:              call.Info.TraceID,
			ClientAddress:        audit.Plain(call.Info.ClientAddress),
			ClientAddressClaimed: call.Info.ClientAddressClaimed,
			UserAgent:            call.Info.UserAgent,
		},
	}
}

func actor(call Call) *auditv1.Actor {
	if call.UserID == uuid.Nil {
		return &auditv1.Actor{Type: "anonymous"}
	}
	return &auditv1.Actor{
		Type: "user", Id: call.UserID.String(), DisplayName: audit.Plain(call.DisplayName), SessionId: call.SessionID,
	}
}

func project(id uuid.UUID) *auditv1.Resource {
	return &auditv1.Resource{Type: "project", Id: nonzero(id)}
}

func member(id uuid.UUID) *auditv1.Resource {
	return &auditv1.Resource{Type: "project_member", Id: nonzero(id)}
}

func outboxEvent(id uuid.UUID) *auditv1.Resource {
	return &auditv1.Resource{Type: "outbox_event", Id: nonzero(id)}
}

// nonzero is the text of an id, and empty for the id of nothing.
func nonzero(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}

// methodName is the last part of a full RPC name.
func methodName(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }
