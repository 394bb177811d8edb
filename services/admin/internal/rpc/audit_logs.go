// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
)

const auditLogPrefix = "auditLogs/"

// chunkBytes is the most content of one message of an export. Clients accept 4 MiB unless told otherwise.
const chunkBytes = 1 << 20

type auditLogs struct {
	adminv1.UnimplementedAuditLogServiceServer
	service *admin.Service
	tokens  *pagetoken.Codec
}

// recordCursor is the last record of a page.
type recordCursor struct {
	Before uuid.UUID `json:"b"`
}

// ListAuditLogs serves a page of records.
func (a *auditLogs) ListAuditLogs(ctx context.Context, r *adminv1.ListAuditLogsRequest) (*adminv1.ListAuditLogsResponse, error) {
	size, err := pagetoken.PageSize(r.GetPageSize(), admin.DefaultPageSize, admin.MaxPageSize)
	if err != nil {
		return nil, err
	}
	question := pagetoken.Binding{Method: adminv1.AuditLogService_ListAuditLogs_FullMethodName, Filter: r.GetFilter()}
	var cursor recordCursor
	if _, err := a.tokens.Open(question, r.GetPageToken(), &cursor); err != nil {
		return nil, err
	}
	full := r.GetView() == adminv1.AuditLogView_AUDIT_LOG_VIEW_FULL
	records, more, err := a.service.List(ctx, caller(ctx), admin.Query{
		Filter: r.GetFilter(), Before: cursor.Before, Limit: size, Payloads: full,
	})
	if err != nil {
		return nil, err
	}
	page := &adminv1.ListAuditLogsResponse{AuditLogs: make([]*adminv1.AuditLog, len(records))}
	for i, record := range records {
		page.AuditLogs[i] = auditLog(record, full)
	}
	if more {
		page.NextPageToken, err = a.tokens.Seal(question, recordCursor{Before: records[len(records)-1].EventID})
	}
	return page, err
}

// GetAuditLog serves one record.
func (a *auditLogs) GetAuditLog(ctx context.Context, r *adminv1.GetAuditLogRequest) (*adminv1.GetAuditLogResponse, error) {
	record, err := a.service.Get(ctx, lastID(r.GetName()))
	if err != nil {
		return nil, err
	}
	full := r.GetView() == adminv1.AuditLogView_AUDIT_LOG_VIEW_FULL
	return &adminv1.GetAuditLogResponse{AuditLog: auditLog(record, full)}, nil
}

// ExportAuditLogs streams a file.
func (a *auditLogs) ExportAuditLogs(r *adminv1.ExportAuditLogsRequest, stream grpc.ServerStreamingServer[adminv1.ExportAuditLogsResponse]) error {
	format := admin.FormatNDJSON
	if r.GetFormat() == adminv1.ExportFormat_EXPORT_FORMAT_CSV {
		format = admin.FormatCSV
	}
	asJSON := func(record admin.Record) proto.Message { return auditLog(record, false) }
	ctx := stream.Context()
	return a.service.Export(ctx, caller(ctx), r.GetFilter(), format, asJSON, func(piece []byte, records int64) error {
		// An empty file is a message too: it says that the count is zero.
		for first := true; first || len(piece) > 0; first = false {
			n := min(len(piece), chunkBytes)
			if err := stream.Send(&adminv1.ExportAuditLogsResponse{Content: piece[:n], RecordCount: records}); err != nil {
				return err
			}
			piece = piece[n:]
		}
		return nil
	})
}

// TraceEvent serves what is known about one event.
func (a *auditLogs) TraceEvent(ctx context.Context, r *adminv1.TraceEventRequest) (*adminv1.TraceEventResponse, error) {
	trace, err := a.service.TraceEvent(ctx, lastID(r.GetEventId()))
	if err != nil {
		return nil, err
	}
	answer := &adminv1.TraceEventResponse{EventId: trace.EventID.String()}
	for _, p := range trace.Positions {
		answer.LedgerPositions = append(answer.LedgerPositions, &adminv1.LedgerPosition{
			Owner: p.Owner, LedgerId: p.LedgerID.String(), LedgerNumber: p.LedgerSeq,
		})
	}
	for _, row := range trace.Entries {
		answer.StreamEntry = &adminv1.StreamEntry{EntryId: row.EntryID, ReceiveTime: timestamppb.New(row.ReceivedAt)}
		answer.InboxEntries = append(answer.InboxEntries, inboxEntry(row))
	}
	for _, p := range trace.Poison {
		answer.Poison = append(answer.Poison, poison(p))
	}
	if trace.Record != nil {
		answer.AuditLog = auditLog(*trace.Record, false)
	}
	return answer, nil
}

func auditLog(r admin.Record, full bool) *adminv1.AuditLog {
	log := &adminv1.AuditLog{
		Name:              auditLogPrefix + r.EventID.String(),
		Event:             r.Event,
		LedgerId:          r.LedgerID.String(),
		LedgerNumber:      r.LedgerSeq,
		RecordTime:        timestamppb.New(r.RecordTime),
		PayloadUnreadable: r.Unreadable,
	}
	if full {
		log.Payload = r.Payload
	}
	return log
}
