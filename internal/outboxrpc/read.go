// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxrpc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

const payloadSQL = `SELECT payload FROM audit_outbox WHERE event_id = $1`

// GetOutboxStatus implements OutboxService.
func (s *Server) GetOutboxStatus(ctx context.Context, _ *outboxv1.GetOutboxStatusRequest) (*outboxv1.GetOutboxStatusResponse, error) {
	now, err := s.cfg.Outbox.Status(ctx)
	if err != nil {
		return nil, err
	}
	response := &outboxv1.GetOutboxStatusResponse{
		Owner:         s.cfg.Owner,
		ReadTime:      timestamp(now.Time),
		UnsealedCount: now.Unsealed,
		LedgerId:      text(now.LedgerID),
		LedgerHead:    now.Head,
		SealTime:      timestamp(now.SealedAt),
		ClaimedCount:  now.ClaimsHeld,
		FailureCounts: now.DeadByReason,
	}
	for _, status := range outbox.Statuses() {
		if n := now.Depth[status]; n > 0 {
			response.Counts = append(response.Counts, &outboxv1.GetOutboxStatusResponse_StatusCount{Status: statusValue(status), Count: n})
		}
	}
	if now.OldestUndelivered > 0 {
		response.OldestOpenAge = durationpb.New(now.OldestUndelivered)
	}
	return response, nil
}

// cursor is where a page starts: below the event id of the last one seen.
type cursor struct {
	After uuid.UUID `json:"a"`
}

// ListOutboxEvents implements OutboxService.
func (s *Server) ListOutboxEvents(ctx context.Context, req *outboxv1.ListOutboxEventsRequest) (*outboxv1.ListOutboxEventsResponse, error) {
	size, err := pagetoken.PageSize(req.GetPageSize(), outbox.DefaultList, outbox.MaxList)
	if err != nil {
		return nil, err
	}
	binding, err := listBinding(req)
	if err != nil {
		return nil, err
	}
	var from cursor
	if _, err := s.cfg.Tokens.Open(binding, req.GetPageToken(), &from); err != nil {
		return nil, err
	}
	filter := outbox.Filter{EventType: req.GetEventType(), ErrorCode: req.GetErrorCode(), After: from.After, Limit: size}
	for _, status := range req.GetStatuses() {
		filter.Statuses = append(filter.Statuses, outbox.Status(strings.TrimPrefix(status.String(), statusPrefix)))
	}
	if t := req.GetStartTime(); t != nil {
		filter.OccurredFrom = t.AsTime()
	}
	if t := req.GetEndTime(); t != nil {
		filter.OccurredBefore = t.AsTime()
	}
	records, err := s.cfg.Outbox.List(ctx, filter)
	if err != nil {
		return nil, err
	}
	response := &outboxv1.ListOutboxEventsResponse{}
	if len(records) == size { // there may be more
		if response.NextPageToken, err = s.cfg.Tokens.Seal(binding, cursor{records[size-1].EventID}); err != nil {
			return nil, err
		}
	}
	for _, r := range records {
		response.OutboxEvents = append(response.OutboxEvents, eventMessage(r))
	}
	return response, nil
}

// listBinding ties a page token to all filters of the request.
func listBinding(req *outboxv1.ListOutboxEventsRequest) (pagetoken.Binding, error) {
	filters := proto.CloneOf(req)
	filters.PageSize, filters.PageToken = 0, ""
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(filters)
	if err != nil {
		return pagetoken.Binding{}, fmt.Errorf("marshal filters: %w", err)
	}
	return pagetoken.Binding{Method: outboxv1.OutboxService_ListOutboxEvents_FullMethodName, Filter: string(raw)}, nil
}

// GetOutboxEvent implements OutboxService.
func (s *Server) GetOutboxEvent(ctx context.Context, req *outboxv1.GetOutboxEventRequest) (*outboxv1.GetOutboxEventResponse, error) {
	id, err := parseName("name", req.GetName())
	if err != nil {
		return nil, err
	}
	record, transitions, err := s.cfg.Outbox.Get(ctx, id)
	if errors.Is(err, outbox.ErrNotFound) {
		return nil, notFound(id)
	} else if err != nil {
		return nil, err
	}
	var payload []byte
	err = s.cfg.DB.QueryRow(ctx, payloadSQL, id).Scan(&payload)
	if errors.Is(err, pgx.ErrNoRows) { // pruned in between
		return nil, notFound(id)
	} else if err != nil {
		return nil, fmt.Errorf("read payload: %w", err)
	}
	hash := sha256.Sum256(payload)
	response := &outboxv1.GetOutboxEventResponse{
		OutboxEvent:   eventMessage(record),
		PayloadSize:   int64(len(payload)),
		PayloadSha256: hex.EncodeToString(hash[:]),
		Traceparent:   record.Traceparent,
	}
	var event auditv1.AuditEvent
	if proto.Unmarshal(payload, &event) == nil { // otherwise the rest of the answer says what there is
		response.AuditEvent = &event
	}
	for _, t := range transitions {
		response.Transitions = append(response.Transitions, transitionMessage(t))
	}
	return response, nil
}

func notFound(id uuid.UUID) error {
	return apperr.NotFound("OUTBOX_EVENT_NOT_FOUND", "the outbox does not hold event "+id.String()+": it never did, or no longer does").
		With("event_id", id.String())
}

// timestamp is t, and absent for the zero time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
