// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// MaxRequeue is how many entries one Requeue may name.
const MaxRequeue = 1000

// MaxList is the largest page that List returns; DefaultList is the page of a Filter without Limit.
const (
	MaxList     = 1000
	DefaultList = 50
)

// ErrNotFound is returned by Get for an id that the outbox does not hold: never appended, rolled back, or pruned.
var ErrNotFound = errors.New("outbox: no such entry")

// Filter selects entries for List. Its zero value selects all.
type Filter struct {
	// Statuses selects by status; empty means any.
	Statuses []Status
	// EventType selects one type; a trailing "*" matches any ending.
	EventType string
	// EventID selects one event.
	EventID uuid.UUID
	// ErrorCode selects by last error code or dead-letter reason.
	ErrorCode string
	// ResourceType and ResourceID select by resource.
	ResourceType, ResourceID string
	// OccurredFrom (inclusive) and OccurredBefore (exclusive) bound occur_time; zero means unbounded.
	OccurredFrom, OccurredBefore time.Time
	// After is the event id of the last record of the previous page; entries below it follow.
	After uuid.UUID
	// Limit is the page size, at most MaxList; 0 means DefaultList, negative is refused.
	Limit int
}

// PageSize returns the page size to use, or an error if Limit is negative.
func (f Filter) PageSize() (int, error) {
	switch {
	case f.Limit < 0:
		return 0, fmt.Errorf("outbox: limit %d is negative", f.Limit)
	case f.Limit == 0:
		return DefaultList, nil
	default:
		return min(f.Limit, MaxList), nil
	}
}

// Matches reports whether List with this filter would return r, apart from the
// page size. Postgres asks the same in SQL; the conformance suite compares them.
func (f Filter) Matches(r Record) bool {
	prefix, open := strings.CutSuffix(f.EventType, "*")
	return (len(f.Statuses) == 0 || slices.Contains(f.Statuses, r.Status)) &&
		(f.EventType == "" || r.EventType == f.EventType || open && strings.HasPrefix(r.EventType, prefix)) &&
		(f.EventID == uuid.Nil || r.EventID == f.EventID) &&
		(f.ErrorCode == "" || r.LastErrorCode == f.ErrorCode || r.DeadReason == f.ErrorCode) &&
		(f.ResourceType == "" || r.ResourceType == f.ResourceType) &&
		(f.ResourceID == "" || r.ResourceID == f.ResourceID) &&
		(f.OccurredFrom.IsZero() || !r.OccurTime.Before(f.OccurredFrom)) &&
		(f.OccurredBefore.IsZero() || r.OccurTime.Before(f.OccurredBefore)) &&
		(f.After == uuid.Nil || bytes.Compare(r.EventID[:], f.After[:]) < 0)
}

// Record is an outbox row as an operator sees it, without the payload.
// Times are zero, and texts empty, where the column is null.
type Record struct {
	EventID         uuid.UUID
	EventType       string
	SchemaVersion   int32
	Operation       string
	ResourceType    string
	ResourceID      string
	ResourceVersion int64 // 0: about no row
	OccurTime       time.Time
	CreateTime      time.Time
	AppendNo        int64
	LedgerID        uuid.UUID
	LedgerSeq       int64 // 0: not numbered yet
	Status          Status
	Attempts        int
	MaxAttempts     int
	ClaimCount      int
	RedeliveryCount int
	NextAttemptTime time.Time
	ClaimOwner      string // empty: not claimed
	ClaimedAt       time.Time
	ClaimExpiresAt  time.Time
	DeliveredAt     time.Time
	Provider        string
	RecordID        string
	LastErrorCode   string
	LastErrorAt     time.Time
	DeadReason      string
	PayloadBytes    int
	Traceparent     string
}

// Transition is one row of an entry's history.
type Transition struct {
	// Time is when it happened, by the store's clock.
	Time time.Time
	// Name is what happened: the new status in lower case, or "requeued".
	Name string
	// EventID names the entry; uuid.Nil where the row stands for a range of numbers.
	EventID uuid.UUID
	// LedgerID, FirstSeq and LastSeq name the range; Count is how many entries of it moved.
	LedgerID          uuid.UUID
	FirstSeq, LastSeq int64
	Count             int
	// From and To are the statuses.
	From, To Status
	// Code is the error code, for a requeue the one that was cleared.
	Code string
	// Actor and Reason say who asked for it and why; empty if the machinery did it.
	Actor, Reason string
}

// Snapshot counts what is where, at one moment of the store's clock.
type Snapshot struct {
	// Time is the moment.
	Time time.Time
	// Depth counts entries by status; every status is present.
	Depth map[Status]int64
	// Unsealed counts committed entries without a number.
	Unsealed int64
	// OldestUndelivered is the age of the oldest open entry; 0 if none is open.
	OldestUndelivered time.Duration
	// ClaimsHeld counts live claims.
	ClaimsHeld int64
	// DeadByReason counts FAILED and DEAD_LETTERED entries by code.
	DeadByReason map[string]int64
	// Owner, LedgerID, Head and SealedAt are the ledger's head; zero where no Sealer runs.
	Owner    string
	LedgerID uuid.UUID
	Head     int64
	SealedAt time.Time
}

// CheckRequeue says whether a requeue may be asked for: 1 to MaxRequeue ids, an actor and a reason.
func CheckRequeue(ids []uuid.UUID, actor, reason string) error {
	switch {
	case len(ids) == 0 || len(ids) > MaxRequeue:
		return fmt.Errorf("outbox: requeue names %d entries, not 1 to %d", len(ids), MaxRequeue)
	case actor == "":
		return errors.New("outbox: requeue needs an actor")
	case reason == "":
		return errors.New("outbox: requeue needs a reason")
	default:
		return nil
	}
}
