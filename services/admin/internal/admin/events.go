// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/audit"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Owner is the owner of Admin's own events.
const Owner = "admin"

// The event types that Admin emits, straight into its own audit log.
const (
	EventInboxEntryRequeued = "admin.inbox_entry.requeued.v1"
	EventInboxEntryReplayed = "admin.inbox_entry.replayed.v1"
	EventPoisonReplayed     = "admin.poison.replayed.v1"
	EventPoisonDiscarded    = "admin.poison.discarded.v1"
	EventAuditLogViewed     = "admin.audit_log.viewed.v1"
	EventAuditLogExported   = "admin.audit_log.exported.v1"
	EventCallRefused        = "admin.call.refused.v1"
)

// EventTypes lists every event type that Admin emits, for the test that holds it against the documentation.
func EventTypes() []string {
	return []string{
		EventInboxEntryRequeued, EventInboxEntryReplayed, EventPoisonReplayed, EventPoisonDiscarded, EventAuditLogViewed,
		EventAuditLogExported, EventCallRefused,
	}
}

// schemaVersion is the version of the contract that this release writes.
const schemaVersion = 1

// maxMetadataValue is the most characters of one metadata value (audit.v1.AuditEvent.metadata).
const maxMetadataValue = 512

// events makes Admin's own events.
type events struct {
	now   func() time.Time
	newID func() (uuid.UUID, error)
}

func (e events) entryRequeued(c Caller, consumer string, event uuid.UUID, reason string) (*auditv1.AuditEvent, error) {
	return e.operated(c, EventInboxEntryRequeued, resource("inbox_entry", event.String()),
		map[string]string{"consumer": consumer, "reason": reason})
}

func (e events) entryReplayed(c Caller, consumer string, event uuid.UUID, reason string) (*auditv1.AuditEvent, error) {
	return e.operated(c, EventInboxEntryReplayed, resource("inbox_entry", event.String()),
		map[string]string{"consumer": consumer, "reason": reason})
}

func (e events) poisonReplayed(c Caller, poison uuid.UUID, reason string) (*auditv1.AuditEvent, error) {
	return e.operated(c, EventPoisonReplayed, resource("poison", poison.String()), map[string]string{"reason": reason})
}

func (e events) poisonDiscarded(c Caller, poison uuid.UUID, reason string) (*auditv1.AuditEvent, error) {
	return e.operated(c, EventPoisonDiscarded, resource("poison", poison.String()), map[string]string{"reason": reason})
}

func (e events) operated(c Caller, eventType string, r *auditv1.Resource, facts map[string]string) (*auditv1.AuditEvent, error) {
	return e.event(c, eventType, auditv1.Operation_OPERATION_OPERATE, r, facts)
}

func (e events) logViewed(c Caller, filter string) (*auditv1.AuditEvent, error) {
	return e.event(c, EventAuditLogViewed, auditv1.Operation_OPERATION_READ, resource("audit_log", ""), split("filter", filter))
}

func (e events) logExported(c Caller, filter, format string) (*auditv1.AuditEvent, error) {
	facts := split("filter", filter)
	facts["format"] = format
	return e.event(c, EventAuditLogExported, auditv1.Operation_OPERATION_EXPORT, resource("audit_log", ""), facts)
}

func (e events) callRefused(c Caller, method, reason string) (*auditv1.AuditEvent, error) {
	event, err := e.event(c, EventCallRefused, auditv1.Operation_OPERATION_OPERATE, resource("method", clip(method, 128)), nil)
	if err != nil {
		return nil, err
	}
	event.Outcome = auditv1.Outcome_OUTCOME_DENIED
	event.Reason = reason
	return event, nil
}

// event fills in what all of Admin's events have in common.
func (e events) event(c Caller, eventType string, op auditv1.Operation, r *auditv1.Resource, facts map[string]string) (*auditv1.AuditEvent, error) {
	id, err := e.newID()
	if err != nil {
		return nil, fmt.Errorf("make event id: %w", err)
	}
	actor := &auditv1.Actor{Type: "anonymous"}
	if c.UserID != "" {
		actor = &auditv1.Actor{
			Type: "user", Id: c.UserID, SessionId: c.SessionID, DisplayName: audit.Plain(clip(c.DisplayName, maxMetadataValue)),
		}
	}
	return &auditv1.AuditEvent{
		AuditId:       id.String(),
		EventType:     eventType,
		SchemaVersion: schemaVersion,
		Owner:         Owner,
		Action:        strings.TrimSuffix(eventType, ".v1"),
		Operation:     op,
		Actor:         actor,
		Resource:      r,
		Outcome:       auditv1.Outcome_OUTCOME_SUCCEEDED,
		OccurTime:     timestamppb.New(e.now().UTC().Truncate(time.Microsecond)),
		Context: &auditv1.RequestContext{
			CorrelationId:        c.CorrelationID,
			TraceId:              c.TraceID,
			ClientAddress:        audit.Plain(c.ClientAddress),
			ClientAddressClaimed: c.ClientAddressClaimed,
			UserAgent:            clip(c.UserAgent, maxMetadataValue),
		},
		Metadata: facts,
	}, nil
}

func resource(kind, id string) *auditv1.Resource {
	return &auditv1.Resource{Type: kind, Id: id}
}

// split spreads a text over as many metadata values as it needs: key, key_2, key_3, …
func split(key, text string) map[string]string {
	parts := map[string]string{}
	for name, rest := key, []rune(text); len(rest) > 0; name = key + "_" + strconv.Itoa(len(parts)+1) {
		n := min(len(rest), maxMetadataValue)
		parts[name], rest = string(rest[:n]), rest[n:]
	}
	return parts
}

// clip makes untrusted text fit for an event: valid, without NUL, and at most n characters.
func clip(text string, n int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n])
}
