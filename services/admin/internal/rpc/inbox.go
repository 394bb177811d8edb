// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
)

const consumerPrefix = "consumers/"

type inboxServer struct {
	adminv1.UnimplementedInboxServiceServer
	service *admin.Service
	tokens  *pagetoken.Codec
}

// GetInboxStatus serves the counts of consumers, streams and poison.
func (s *inboxServer) GetInboxStatus(ctx context.Context, _ *adminv1.GetInboxStatusRequest) (*adminv1.GetInboxStatusResponse, error) {
	status, err := s.service.Status(ctx)
	if err != nil {
		return nil, err
	}
	answer := &adminv1.GetInboxStatusResponse{}
	for _, c := range status.Consumers {
		answer.Consumers = append(answer.Consumers, &adminv1.ConsumerStatus{
			Consumer: c.Consumer, PendingCount: c.Pending, ProcessingCount: c.Processing, DeadCount: c.Dead,
			DeadCountByCode: c.DeadByCode, OldestPendingAge: age(c.OldestPendingAge), OldestLeaseAge: age(c.OldestLeaseAge),
			OldestRetryAge: age(c.OldestRetryAge),
		})
	}
	for _, stream := range status.Streams {
		answer.Streams = append(answer.Streams, streamStatus(stream))
	}
	for _, p := range status.Poison {
		answer.OpenPoison = append(answer.OpenPoison, &adminv1.PoisonCount{Kind: string(p.Kind), Reason: p.Reason, Count: p.Count})
	}
	return answer, nil
}

// entryCursor is the last entry of a page.
type entryCursor struct {
	EventID  uuid.UUID `json:"e"`
	Consumer string    `json:"c"`
}

// ListInboxEntries serves a page of entries.
func (s *inboxServer) ListInboxEntries(ctx context.Context, r *adminv1.ListInboxEntriesRequest) (*adminv1.ListInboxEntriesResponse, error) {
	size, err := pagetoken.PageSize(r.GetPageSize(), admin.DefaultPageSize, admin.MaxPageSize)
	if err != nil {
		return nil, err
	}
	query := admin.EntryQuery{
		State: inboxState(r.GetState()), ErrorCode: r.GetErrorCode(), CorrelationID: r.GetCorrelationId(),
		ReceivedFrom: moment(r.GetReceiveTimeFrom()), ReceivedUntil: moment(r.GetReceiveTimeUntil()), Limit: size,
	}
	if consumer := consumerOf(r.GetParent()); consumer != "-" {
		query.Consumer = consumer
	}
	question := pagetoken.Binding{
		Method: adminv1.InboxService_ListInboxEntries_FullMethodName, Parent: r.GetParent(),
		Filter: fmt.Sprintf("%s %q %q %s %s", query.State, query.ErrorCode, query.CorrelationID, query.ReceivedFrom, query.ReceivedUntil),
	}
	var cursor entryCursor
	if _, err := s.tokens.Open(question, r.GetPageToken(), &cursor); err != nil {
		return nil, err
	}
	query.After = inbox.RowCursor(cursor)
	rows, next, err := s.service.Entries(ctx, query)
	if err != nil {
		return nil, err
	}
	page := &adminv1.ListInboxEntriesResponse{InboxEntries: make([]*adminv1.InboxEntry, len(rows))}
	for i, row := range rows {
		page.InboxEntries[i] = inboxEntry(row)
	}
	if next != (inbox.RowCursor{}) {
		page.NextPageToken, err = s.tokens.Seal(question, entryCursor(next))
	}
	return page, err
}

// GetInboxEntry serves one entry.
func (s *inboxServer) GetInboxEntry(ctx context.Context, r *adminv1.GetInboxEntryRequest) (*adminv1.GetInboxEntryResponse, error) {
	row, err := s.service.Entry(ctx, consumerOf(r.GetName()), lastID(r.GetName()))
	if err != nil {
		return nil, err
	}
	return &adminv1.GetInboxEntryResponse{InboxEntry: inboxEntry(row)}, nil
}

// RequeueInboxEntries gives DEAD entries fresh attempts.
func (s *inboxServer) RequeueInboxEntries(ctx context.Context, r *adminv1.RequeueInboxEntriesRequest) (*adminv1.RequeueInboxEntriesResponse, error) {
	done, err := s.service.Requeue(ctx, caller(ctx), consumerOf(r.GetParent()), lastIDs(r.GetEventIds()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &adminv1.RequeueInboxEntriesResponse{RequeuedEventIds: namesOf("", done.Changed), Refusals: refusals("", done.Refused)}, nil
}

// ReplayInboxEntries hands PROCESSED entries to their consumer again.
func (s *inboxServer) ReplayInboxEntries(ctx context.Context, r *adminv1.ReplayInboxEntriesRequest) (*adminv1.ReplayInboxEntriesResponse, error) {
	done, err := s.service.Replay(ctx, caller(ctx), consumerOf(r.GetParent()), lastIDs(r.GetEventIds()), r.GetReason())
	if err != nil {
		return nil, err
	}
	return &adminv1.ReplayInboxEntriesResponse{ReplayedEventIds: namesOf("", done.Changed), Refusals: refusals("", done.Refused)}, nil
}

// consumerOf reads the consumer from "consumers/{consumer}" and what may follow.
func consumerOf(name string) string {
	consumer, _, _ := strings.Cut(strings.TrimPrefix(name, consumerPrefix), "/")
	return consumer
}

func inboxEntry(row inbox.Row) *adminv1.InboxEntry {
	return &adminv1.InboxEntry{
		Name:            consumerPrefix + row.Consumer + "/entries/" + row.EventID.String(),
		Consumer:        row.Consumer,
		EventId:         row.EventID.String(),
		Owner:           row.Owner,
		EventType:       row.EventType,
		SchemaVersion:   row.SchemaVersion,
		LedgerId:        row.LedgerID.String(),
		LedgerNumber:    row.LedgerSeq,
		StreamEntryId:   row.EntryID,
		State:           adminv1.InboxState(adminv1.InboxState_value["INBOX_STATE_"+string(row.State)]),
		Attempts:        int32(row.Attempts),
		ReceiveTime:     timestamp(row.ReceivedAt),
		NextAttemptTime: timestamp(row.NextRetryAt),
		LeaseOwner:      row.LeaseOwner,
		LeaseExpireTime: timestamp(row.LeaseExpires),
		FinishTime:      timestamp(row.FinishedAt),
		LastErrorCode:   row.LastErrorCode,
		LastErrorTime:   timestamp(row.LastErrorAt),
	}
}

// inboxState returns the state of a request; UNSPECIFIED is any.
func inboxState(s adminv1.InboxState) inbox.State {
	if s == adminv1.InboxState_INBOX_STATE_UNSPECIFIED {
		return ""
	}
	return inbox.State(strings.TrimPrefix(s.String(), "INBOX_STATE_"))
}

func streamStatus(s admin.StreamStatus) *adminv1.StreamStatus {
	answer := &adminv1.StreamStatus{
		Owner: s.Owner, Stream: s.Stream, LastEntryId: s.LastEntryID, LastTakeoverTime: timestamp(s.LastTakeoverAt),
		TakenOverCount: s.TakenOver,
	}
	if s.Broker == nil {
		answer.ErrorCode = "broker.unreadable"
		return answer
	}
	answer.LagCount, answer.UnacknowledgedCount = &s.Broker.Lag, &s.Broker.Pending
	return answer
}

// timestamp leaves out a time that is not set.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// moment is the inverse of timestamp.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func age(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}
