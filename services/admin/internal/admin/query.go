// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// Bounds of a page (U-rows of the read side: a page is limited in rows and in bytes).
const (
	DefaultPageSize = 50
	MaxPageSize     = 1000
	maxPageBytes    = 3 << 20 // of payload; a gRPC client accepts 4 MiB unless told otherwise
)

// Record is one record of the audit log as it is served.
type Record struct {
	EventID    uuid.UUID
	LedgerID   uuid.UUID
	LedgerSeq  int64
	RecordTime time.Time
	// Event is the payload, decoded; where that fails, what the columns hold, and Unreadable is true.
	Event      *auditv1.AuditEvent
	Unreadable bool
	// Payload is the exact bytes that the owner appended.
	Payload []byte
}

// Query asks for one page of records.
type Query struct {
	Filter string
	Before uuid.UUID // the last record of the page before; the zero id starts at the newest
	Limit  int       // from 1 to MaxPageSize
	// Payloads says that the payload is served beside the decoded event, so that fewer records fit a page.
	Payloads bool
}

// List returns a page of records, newest first, and whether there are more.
//
// The order is that of event ids, which begin with the time of the event. A record that arrives late takes its place
// among its contemporaries, so a later page may show one that was not there when the first page was served; none that
// was there is skipped or repeated. The first page of a listing is recorded; a listing that cannot be recorded is
// served and counted.
func (s *Service) List(ctx context.Context, c Caller, q Query) ([]Record, bool, error) {
	where, err := parseFilter(q.Filter)
	if err != nil {
		return nil, false, err
	}
	if q.Before == uuid.Nil {
		s.viewed(ctx, c, q.Filter)
	}
	page := store.Page{Before: q.Before, Rows: q.Limit, MaxBytes: maxPageBytes}
	if q.Payloads {
		page.MaxBytes /= 2
	}
	rows, more, err := store.New(s.db).ListAuditLogs(ctx, where, page)
	if err != nil {
		return nil, false, err
	}
	return served(rows), more, nil
}

func (s *Service) viewed(ctx context.Context, c Caller, filter string) {
	event, err := s.events.logViewed(c, filter)
	if err == nil {
		err = s.recordAlone(ctx, event)
	}
	if err != nil {
		s.missed.Add(ctx, 1)
		s.log.ErrorContext(ctx, "a listing was served without a record of it", slog.Any("error", err))
	}
}

// Get returns one record, or NOT_FOUND.
func (s *Service) Get(ctx context.Context, id uuid.UUID) (Record, error) {
	row, found, err := store.New(s.db).GetAuditLog(ctx, id)
	if err != nil {
		return Record{}, err
	}
	if !found {
		return Record{}, apperr.NotFound("AUDIT_LOG_NOT_FOUND",
			fmt.Sprintf("there is no record of event %s; it may not have arrived yet", id)).With("event_id", id.String())
	}
	return serve(row), nil
}

func served(rows []store.AuditLog) []Record {
	records := make([]Record, len(rows))
	for i, row := range rows {
		records[i] = serve(row)
	}
	return records
}

func serve(row store.AuditLog) Record {
	r := Record{
		EventID: row.EventID, LedgerID: row.LedgerID, LedgerSeq: row.LedgerSeq, RecordTime: row.RecordTime, Payload: row.Payload,
	}
	var err error
	if r.Event, err = decode(row.Payload); err != nil {
		r.Event, r.Unreadable = fromColumns(row), true
	}
	return r
}
