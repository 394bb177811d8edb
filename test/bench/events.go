// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/audit"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// population is how many users the day's events are about.
const population = 4000

// dayAtAuth makes event n of a working day at Auth: of 1000, 600 log-ins, 199 refreshed sessions, 120 ended ones, 50
// changed users, 30 failed log-ins over all users, and one privileged role granted. The last two kinds concern the security
// rules, whose consumer subscribes to them. An event has about 400 bytes, as the floor's.
func dayAtAuth(n int) *auditv1.AuditEvent {
	user := person(n * 7919 % population)
	session := uuid.NewString()
	e := &auditv1.AuditEvent{
		AuditId: uuid.Must(uuid.NewV7()).String(), SchemaVersion: 1, Owner: "auth", Outcome: auditv1.Outcome_OUTCOME_SUCCEEDED,
		OccurTime: timestamppb.New(time.Now()),
		Actor:     &auditv1.Actor{Type: "user", Id: user.GetId(), DisplayName: user.GetDisplayName(), SessionId: session},
		Context: &auditv1.RequestContext{
			CorrelationId: uuid.NewString(), ClientAddress: audit.Plain(fmt.Sprintf("198.51.%d.%d", n/250%250, n%250)),
			UserAgent: "grpc-go/1.80.0",
		},
	}
	own := &auditv1.Resource{Type: "session", Id: session}
	kind := func(action string, operation auditv1.Operation, resource *auditv1.Resource, related ...*auditv1.Resource) {
		e.Action, e.EventType, e.Operation, e.Resource, e.RelatedResources = action, action+".v1", operation, resource, related
	}
	switch day := n % 1000; {
	case day < 600:
		own.Version = 1
		kind("auth.login.succeeded", auditv1.Operation_OPERATION_LOGIN, own, user)
	case day < 799:
		kind("auth.session.refreshed", auditv1.Operation_OPERATION_UPDATE, own, user)
	case day < 919:
		own.Version = 2
		e.Reason = "LOGOUT"
		kind("auth.session.ended", auditv1.Operation_OPERATION_LOGOUT, own, user)
	case day < 969:
		e.Changes = []*auditv1.Change{{Field: "display_name", OldValue: user.GetDisplayName(), NewValue: audit.Plain("Another Name")}}
		kind("auth.user.updated", auditv1.Operation_OPERATION_UPDATE, user)
	case day < 999:
		e.Outcome, e.Reason, e.Actor = auditv1.Outcome_OUTCOME_FAILED, "BAD_PASSWORD", &auditv1.Actor{Type: "anonymous"}
		kind("auth.login.failed", auditv1.Operation_OPERATION_LOGIN, user)
	default:
		e.Metadata = map[string]string{"role": "auditor"}
		kind("auth.role.granted", auditv1.Operation_OPERATION_CREATE,
			&auditv1.Resource{Type: "role_grant", Id: uuid.NewString(), Version: 1}, user)
	}
	return e
}

// manyChanges makes an event of nearly the greatest size: as many long texts as one may hold.
func manyChanges(n int) *auditv1.AuditEvent {
	user := person(n % population)
	e := dayAtAuth(0)
	e.Action, e.EventType, e.Operation, e.Resource = "auth.user.updated", "auth.user.updated.v1", auditv1.Operation_OPERATION_UPDATE, user
	text := strings.Repeat("é", 4096) // a limit counts characters
	for i := range 63 {
		e.Changes = append(e.Changes, &auditv1.Change{Field: fmt.Sprintf("field_%d", i), OldValue: audit.Plain(text), NewValue: audit.Plain(text)})
	}
	return e
}

// person is one of the users.
func person(n int) *auditv1.Resource {
	return &auditv1.Resource{
		Type: "user", Id: fmt.Sprintf("0193f2a1-7b3c-7def-8123-%012x", n), DisplayName: audit.Plain(fmt.Sprintf("Person Number %d", n)),
	}
}

// projectCreated is the event of the business part's INSERT.
func projectCreated(id, creator uuid.UUID, slug string) *auditv1.AuditEvent {
	return &auditv1.AuditEvent{
		AuditId: uuid.Must(uuid.NewV7()).String(), EventType: "app.project.created.v1", SchemaVersion: 1, Owner: "app",
		Action: "app.project.created", Operation: auditv1.Operation_OPERATION_CREATE, Outcome: auditv1.Outcome_OUTCOME_SUCCEEDED,
		OccurTime: timestamppb.New(time.Now()),
		Actor:     &auditv1.Actor{Type: "user", Id: creator.String(), DisplayName: audit.Plain("Ada Example"), SessionId: creator.String()},
		Resource:  &auditv1.Resource{Type: "bench_project", Id: id.String(), DisplayName: audit.Plain("Project"), Version: 1},
		Changes:   []*auditv1.Change{{Field: "slug", NewValue: audit.Plain(slug)}, {Field: "display_name", NewValue: audit.Plain("Project")}},
		Context: &auditv1.RequestContext{
			CorrelationId: uuid.NewString(), ClientAddress: audit.Plain("198.51.100.7"), UserAgent: "grpc-go/1.80.0",
		},
	}
}
