// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxrpc

import (
	"strings"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

const (
	namePrefix   = "outboxEvents/"
	statusPrefix = "OUTBOX_EVENT_STATUS_"
)

func statusValue(s outbox.Status) outboxv1.OutboxEventStatus {
	return outboxv1.OutboxEventStatus(outboxv1.OutboxEventStatus_value[statusPrefix+string(s)])
}

// parseName returns the id in outboxEvents/{id}. The contract has checked it; what fails here is a rule missing there.
func parseName(field, name string) (uuid.UUID, error) {
	id, err := uuid.Parse(strings.TrimPrefix(name, namePrefix))
	if err != nil {
		return uuid.Nil, apperr.InvalidField(field, "must be outboxEvents/{event_id}").WithCause(err)
	}
	return id, nil
}

// text is an id, and empty for the zero id.
func text(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}

func eventMessage(r outbox.Record) *outboxv1.OutboxEvent {
	m := &outboxv1.OutboxEvent{
		Name:             namePrefix + r.EventID.String(),
		EventId:          r.EventID.String(),
		EventType:        r.EventType,
		Operation:        r.Operation,
		ResourceType:     r.ResourceType,
		ResourceId:       r.ResourceID,
		ResourceVersion:  r.ResourceVersion,
		OccurTime:        timestamp(r.OccurTime),
		CreateTime:       timestamp(r.CreateTime),
		LedgerId:         text(r.LedgerID),
		LedgerSeq:        r.LedgerSeq,
		Status:           statusValue(r.Status),
		Attempts:         int32(r.Attempts),        //nolint:gosec // a column of type integer
		MaxAttempts:      int32(r.MaxAttempts),     //nolint:gosec // likewise
		ClaimCount:       int32(r.ClaimCount),      //nolint:gosec // likewise
		RedeliveryCount:  int32(r.RedeliveryCount), //nolint:gosec // likewise
		ClaimOwner:       r.ClaimOwner,
		ClaimExpireTime:  timestamp(r.ClaimExpiresAt),
		DeliverTime:      timestamp(r.DeliveredAt),
		ProviderName:     r.Provider,
		ProviderRecordId: r.RecordID,
		LastErrorCode:    r.LastErrorCode,
		LastErrorTime:    timestamp(r.LastErrorAt),
		DeadLetterReason: r.DeadReason,
	}
	if r.Status.Open() {
		m.NextAttemptTime = timestamp(r.NextAttemptTime)
	}
	return m
}

func transitionMessage(t outbox.Transition) *outboxv1.OutboxTransition {
	return &outboxv1.OutboxTransition{
		OccurTime:  timestamp(t.Time),
		Transition: t.Name,
		FromStatus: statusValue(t.From),
		ToStatus:   statusValue(t.To),
		Code:       t.Code,
		Actor:      t.Actor,
		Reason:     t.Reason,
	}
}
