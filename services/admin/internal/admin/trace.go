// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// Trace is all that Admin knows about one event. What is absent has not happened, or has aged out.
type Trace struct {
	EventID   uuid.UUID
	Positions []store.Position
	Entries   []inbox.Row
	Poison    []inbox.Poison
	Record    *Record
}

// maxTraced bounds each list of a trace. An event has a row for each consumer, and poison for each distinct forgery.
const maxTraced = 100

// TraceEvent follows one event through Admin. An event that is not known gives an empty trace.
func (s *Service) TraceEvent(ctx context.Context, id uuid.UUID) (Trace, error) {
	t := Trace{EventID: id}
	var err error
	if t.Positions, err = store.New(s.db).Positions(ctx, id); err != nil {
		return Trace{}, err
	}
	if t.Entries, err = s.inbox.List(ctx, inbox.Filter{EventID: id}, inbox.RowCursor{}, maxTraced); err != nil {
		return Trace{}, fmt.Errorf("trace inbox rows: %w", err)
	}
	if t.Poison, err = s.inbox.ListPoison(ctx, inbox.PoisonFilter{EventID: id}, inbox.PoisonCursor{}, maxTraced); err != nil {
		return Trace{}, fmt.Errorf("trace poison: %w", err)
	}
	row, found, err := store.New(s.db).GetAuditLog(ctx, id)
	if err != nil {
		return Trace{}, err
	}
	if found {
		record := serve(row)
		t.Record = &record
	}
	return t, nil
}

// EntryQuery chooses inbox entries. A zero field chooses all.
type EntryQuery struct {
	Consumer      string
	State         inbox.State
	ErrorCode     string
	CorrelationID string
	ReceivedFrom  time.Time // inclusive
	ReceivedUntil time.Time // exclusive
	After         inbox.RowCursor
	Limit         int
}

// maxScanned bounds, in pages of MaxPageSize, what one call looks through for entries that match.
const maxScanned = 10

// Entries returns a page of inbox entries, newest event first, and where the next one starts; the zero cursor is the end.
// What no index serves is compared here, so a page may be short, or empty, and still not be the last.
func (s *Service) Entries(ctx context.Context, q EntryQuery) ([]inbox.Row, inbox.RowCursor, error) {
	size := q.Limit
	if q.comparesHere() {
		size = MaxPageSize
	}
	var found []inbox.Row
	cursor := q.After
	for range maxScanned {
		rows, err := s.inbox.List(ctx, inbox.Filter{Consumer: q.Consumer, State: q.State}, cursor, size)
		if err != nil {
			return nil, inbox.RowCursor{}, fmt.Errorf("list inbox entries: %w", err)
		}
		matches, err := s.matches(ctx, q, rows)
		if err != nil {
			return nil, inbox.RowCursor{}, err
		}
		for i, row := range rows {
			cursor = inbox.RowCursor{EventID: row.EventID, Consumer: row.Consumer}
			if matches[i] {
				found = append(found, row)
			}
			if len(found) == q.Limit {
				return found, cursor, nil
			}
		}
		if len(rows) < size {
			return found, inbox.RowCursor{}, nil
		}
	}
	return found, cursor, nil
}

// comparesHere says that q asks for more than the database selects by.
func (q EntryQuery) comparesHere() bool {
	return q.ErrorCode != "" || q.CorrelationID != "" || !q.ReceivedFrom.IsZero() || !q.ReceivedUntil.IsZero()
}

// matches says for each row whether it is one that q asks for.
func (s *Service) matches(ctx context.Context, q EntryQuery, rows []inbox.Row) ([]bool, error) {
	match := make([]bool, len(rows))
	var candidates []uuid.UUID
	for i, row := range rows {
		match[i] = (q.ErrorCode == "" || row.LastErrorCode == q.ErrorCode) &&
			(q.ReceivedFrom.IsZero() || !row.ReceivedAt.Before(q.ReceivedFrom)) &&
			(q.ReceivedUntil.IsZero() || row.ReceivedAt.Before(q.ReceivedUntil))
		if match[i] {
			candidates = append(candidates, row.EventID)
		}
	}
	if q.CorrelationID == "" || len(candidates) == 0 {
		return match, nil
	}
	wanted := map[uuid.UUID]bool{}
	err := store.New(s.db).EachPayload(ctx, candidates, func(id uuid.UUID, payload []byte) {
		event, err := decode(payload)
		wanted[id] = err == nil && event.GetContext().GetCorrelationId() == q.CorrelationID
	})
	for i, row := range rows {
		match[i] = match[i] && wanted[row.EventID]
	}
	return match, err
}

// Entry returns one inbox entry, or NOT_FOUND.
func (s *Service) Entry(ctx context.Context, consumer string, id uuid.UUID) (inbox.Row, error) {
	row, err := s.inbox.Get(ctx, consumer, id)
	if errors.Is(err, inbox.ErrNotFound) {
		return row, apperr.NotFound("INBOX_ENTRY_NOT_FOUND", fmt.Sprintf("consumer %q has no entry for event %s", consumer, id)).
			With("consumer", consumer).With("event_id", id.String())
	}
	return row, err
}

// ListPoison returns poison after the cursor, newest first.
func (s *Service) ListPoison(ctx context.Context, f inbox.PoisonFilter, after inbox.PoisonCursor, limit int) ([]inbox.Poison, error) {
	return s.inbox.ListPoison(ctx, f, after, limit)
}

// Poison returns one poison with its raw fields, or NOT_FOUND.
func (s *Service) Poison(ctx context.Context, id uuid.UUID) (inbox.Poison, error) {
	p, err := s.inbox.GetPoison(ctx, id)
	if errors.Is(err, inbox.ErrNotFound) {
		return p, apperr.NotFound("POISON_NOT_FOUND", fmt.Sprintf("there is no poison %s", id)).With("poison", id.String())
	}
	return p, err
}
