// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package memory is an outbox store in this process's memory, for tests, samples
// and local runs. It keeps the state machine of package outbox and nothing else:
// it is gone with the process, Append cannot write to it, and since nobody else
// can see it, it proves nothing about leases, fencing or replicas (A34, A36).
package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Options configures a Store. The zero value works.
type Options struct {
	// Owner names the owner in Status.
	Owner string
	// LedgerID is the ledger whose numbers Add gives. Default a random id.
	LedgerID uuid.UUID
	// MaxAttempts is each entry's. Default 10.
	MaxAttempts int
	// Now is the store's clock. Default time.Now.
	Now func() time.Time
}

// Store implements outbox.Store. It is safe for concurrent use.
type Store struct {
	o Options

	mu      sync.Mutex
	entries []*entry // in number order
	byID    map[uuid.UUID]*entry
	history []outbox.Transition
}

type entry struct {
	outbox.Record
	token      uuid.UUID
	payload    []byte
	tracestate string
}

var _ outbox.Store = (*Store)(nil)

// New returns an empty store.
func New(o Options) *Store {
	if o.LedgerID == uuid.Nil {
		o.LedgerID = uuid.New()
	}
	o.MaxAttempts = cmp.Or(o.MaxAttempts, 10)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Store{o: o, byID: make(map[uuid.UUID]*entry)}
}

// Add puts events in, numbered in the order given. It stands for Append and a
// Sealer at once and checks neither the events nor a transaction; an id that is
// there already is an error, and then nothing is added.
func (s *Store) Add(events ...*auditv1.AuditEvent) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var added []*entry
	for _, e := range events {
		id, err := uuid.Parse(e.GetAuditId())
		if err != nil {
			return fmt.Errorf("audit id: %w", err)
		}
		if s.byID[id] != nil {
			return fmt.Errorf("event %s is there already", id)
		}
		payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			return fmt.Errorf("marshal event: %w", err)
		}
		n := int64(len(s.entries) + len(added) + 1)
		now := s.o.Now().UTC()
		added = append(added, &entry{payload: payload, Record: outbox.Record{
			EventID: id, EventType: e.GetEventType(), SchemaVersion: e.GetSchemaVersion(),
			Operation:    strings.TrimPrefix(e.GetOperation().String(), "OPERATION_"),
			ResourceType: e.GetResource().GetType(), ResourceID: e.GetResource().GetId(), ResourceVersion: e.GetResource().GetVersion(),
			OccurTime: e.GetOccurTime().AsTime(), CreateTime: now, AppendNo: n, LedgerID: s.o.LedgerID, LedgerSeq: n,
			Status: outbox.StatusPending, MaxAttempts: s.o.MaxAttempts, NextAttemptTime: now, PayloadBytes: len(payload),
		}})
	}
	for _, e := range added {
		s.entries = append(s.entries, e)
		s.byID[e.EventID] = e
	}
	return nil
}

// Claim implements outbox.Store.
func (s *Store) Claim(_ context.Context, req outbox.ClaimRequest) (outbox.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Now().UTC()
	page := outbox.Page{Token: req.Token}
	size, found := int64(0), 0
	for _, e := range s.entries {
		if found == req.Rows || page.Alone {
			break
		}
		due := e.Status.Open() && !e.NextAttemptTime.After(now) && !e.ClaimExpiresAt.After(now) && e.EventID != req.Except
		if !due {
			continue
		}
		found++
		size += int64(e.PayloadBytes)
		first, alone := len(page.Messages) == 0, e.ClaimCount >= req.AloneAfter
		if !first && (alone || size > req.Bytes) {
			continue
		}
		e.ClaimOwner, e.token, e.ClaimedAt, e.ClaimExpiresAt = req.Owner, req.Token, now, now.Add(req.Lease)
		e.ClaimCount++
		page.Alone = first && alone
		page.Messages = append(page.Messages, outbox.Message{
			EventID: e.EventID, EventType: e.EventType, SchemaVersion: e.SchemaVersion, LedgerID: e.LedgerID, LedgerSeq: e.LedgerSeq,
			AppendNo: e.AppendNo, Payload: e.payload, Traceparent: e.Traceparent, Tracestate: e.tracestate, Status: e.Status,
			Attempts: e.Attempts, MaxAttempts: e.MaxAttempts, ClaimCount: e.ClaimCount, LastErrorAt: e.LastErrorAt,
		})
	}
	return page, nil
}

// held calls f for each entry of ids that token still holds and returns how many.
func (s *Store) held(token uuid.UUID, ids []uuid.UUID, f func(*entry)) int {
	n := 0
	for _, id := range ids {
		if e := s.byID[id]; e != nil && token != uuid.Nil && e.token == token {
			f(e)
			n++
		}
	}
	return n
}

func (e *entry) unclaim() {
	e.ClaimOwner, e.token, e.ClaimedAt, e.ClaimExpiresAt = "", uuid.Nil, time.Time{}, time.Time{}
}

// Renew implements outbox.Store.
func (s *Store) Renew(_ context.Context, token uuid.UUID, ids []uuid.UUID, lease time.Duration) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	until := s.o.Now().UTC().Add(lease)
	return s.held(token, ids, func(e *entry) { e.ClaimExpiresAt = until }), nil
}

// Release implements outbox.Store.
func (s *Store) Release(_ context.Context, token uuid.UUID, ids []uuid.UUID) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held(token, ids, func(e *entry) {
		e.ClaimCount = max(0, e.ClaimCount-1)
		e.unclaim()
	}), nil
}

// Settle implements outbox.Store.
func (s *Store) Settle(_ context.Context, token uuid.UUID, outcomes []outbox.Outcome) (outbox.Settled, error) {
	if err := outbox.CheckOutcomes(outcomes); err != nil {
		return outbox.Settled{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Now().UTC()
	settled := outbox.Settled{Time: now}
	for _, o := range outcomes {
		settled.Count += s.held(token, []uuid.UUID{o.EventID}, func(e *entry) {
			settled.Kept = append(settled.Kept, e.EventID)
			s.apply(e, o, now)
		})
	}
	if settled.Count == len(outcomes) {
		settled.Kept = nil
	}
	return settled, nil
}

func (s *Store) apply(e *entry, o outbox.Outcome, now time.Time) {
	e.Status = o.To
	if o.UsesAttempt {
		e.Attempts++
	}
	switch {
	case o.KeepClaimCount:
	case o.To == outbox.StatusDeferred:
		e.ClaimCount = max(0, e.ClaimCount-1)
	default:
		e.ClaimCount = 0
	}
	if o.To.Open() {
		e.NextAttemptTime = now.Add(o.Delay)
	}
	e.LastErrorCode, e.LastErrorAt, e.DeadReason = o.Code, time.Time{}, o.Reason
	if o.Code != "" {
		e.LastErrorAt = now
	}
	if o.To == outbox.StatusDelivered {
		e.DeliveredAt = now
	}
	e.Provider, e.RecordID = cmp.Or(o.Provider, e.Provider), cmp.Or(o.RecordID, e.RecordID)
	e.unclaim()
	if o.From != outbox.StatusPending || o.To != outbox.StatusDelivered {
		s.note(e, outbox.Transition{Time: now, Name: strings.ToLower(string(o.To)), From: o.From, To: o.To, Code: o.Code})
	}
}

func (s *Store) note(e *entry, t outbox.Transition) {
	t.EventID, t.LedgerID, t.FirstSeq, t.LastSeq, t.Count = e.EventID, e.LedgerID, e.LedgerSeq, e.LedgerSeq, 1
	s.history = append(s.history, t)
}

// MakeDeferredDue implements outbox.Store.
func (s *Store) MakeDeferredDue(context.Context) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, n := s.o.Now().UTC(), 0
	for _, e := range s.entries {
		if e.Status == outbox.StatusDeferred && e.token == uuid.Nil && e.NextAttemptTime.After(now) {
			e.NextAttemptTime = now
			n++
		}
	}
	return n, nil
}

// Requeue implements outbox.Store. It takes effect at once: tx is ignored.
func (s *Store) Requeue(_ context.Context, _ pgx.Tx, ids []uuid.UUID, actor, reason string) (int, error) {
	if err := outbox.CheckRequeue(ids, actor, reason); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, n := s.o.Now().UTC(), 0
	for _, id := range ids {
		e := s.byID[id]
		if e == nil || !e.Status.CanBecome(outbox.StatusPending) {
			continue
		}
		s.note(e, outbox.Transition{
			Time: now, Name: "requeued", From: e.Status, To: outbox.StatusPending,
			Code: cmp.Or(e.DeadReason, e.LastErrorCode), Actor: actor, Reason: reason,
		})
		e.Status, e.Attempts, e.ClaimCount, e.RedeliveryCount, e.NextAttemptTime = outbox.StatusPending, 0, 0, 0, now
		e.LastErrorCode, e.LastErrorAt, e.DeadReason = "", time.Time{}, ""
		n++
	}
	return n, nil
}

// Get implements outbox.Store.
func (s *Store) Get(_ context.Context, id uuid.UUID) (outbox.Record, []outbox.Transition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[id]
	if e == nil {
		return outbox.Record{}, nil, outbox.ErrNotFound
	}
	var history []outbox.Transition
	for _, t := range s.history {
		if t.EventID == id {
			history = append(history, t)
		}
	}
	return e.Record, history, nil
}

// List implements outbox.Store.
func (s *Store) List(_ context.Context, f outbox.Filter) ([]outbox.Record, error) {
	limit, err := f.PageSize()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []outbox.Record
	for _, e := range s.entries {
		if f.Matches(e.Record) {
			out = append(out, e.Record)
		}
	}
	slices.SortFunc(out, func(a, b outbox.Record) int { return strings.Compare(b.EventID.String(), a.EventID.String()) })
	return out[:min(limit, len(out))], nil
}

// Status implements outbox.Store.
func (s *Store) Status(context.Context) (outbox.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Now().UTC()
	out := outbox.Snapshot{
		Time: now, Depth: make(map[outbox.Status]int64), DeadByReason: make(map[string]int64),
		Owner: s.o.Owner, LedgerID: s.o.LedgerID, Head: int64(len(s.entries)),
	}
	for _, status := range outbox.Statuses() {
		out.Depth[status] = 0
	}
	for _, e := range s.entries {
		out.Depth[e.Status]++
		switch {
		case e.Status.Open():
			out.OldestUndelivered = max(out.OldestUndelivered, now.Sub(e.CreateTime))
		case e.Status != outbox.StatusDelivered:
			out.DeadByReason[cmp.Or(e.DeadReason, e.LastErrorCode)]++
		}
		if e.ClaimExpiresAt.After(now) {
			out.ClaimsHeld++
		}
	}
	return out, nil
}
