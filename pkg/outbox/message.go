// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Message is a claimed entry as a publisher gets it.
type Message struct {
	// EventID is the event's id, and the idempotency key of every hop after this one.
	EventID uuid.UUID
	// EventType is the action and its version: "auth.user.registered.v1".
	EventType string
	// SchemaVersion is the version of the payload's meaning.
	SchemaVersion int32
	// LedgerID and LedgerSeq are the entry's number and the ledger that gave it; zero where no Sealer runs.
	LedgerID  uuid.UUID
	LedgerSeq int64
	// AppendNo is the order of the INSERT.
	AppendNo int64
	// Payload is the event as it was marshalled at Append. It must not be changed.
	Payload []byte
	// Traceparent and Tracestate are the W3C trace context of the business call; empty if it had none.
	Traceparent, Tracestate string
	// Status is the status that the entry was claimed in, and keeps until it is settled.
	Status Status
	// Attempts is how many attempts the entry has used, of MaxAttempts.
	Attempts, MaxAttempts int
	// ClaimCount is how many claims, this one included, have had no outcome.
	ClaimCount int
	// LastErrorAt is when the entry last failed, by the store's clock; zero if never.
	LastErrorAt time.Time
}

// Publisher hands entries to a broker.
//
// Publish returns one result for each message, in order, and never panics. It
// must not retry by itself: a retry after a lost reply doubles the entry
// (BC-24). It may be called again with a message that an earlier call
// delivered; receivers tell copies by EventID. When ctx ends it returns soon,
// with broker trouble for every message whose reply it did not see. It is
// called by one goroutine at a time per Dispatcher.
type Publisher interface {
	// Name names the kind of broker in provider_name: "redis-streams".
	Name() string
	// Publish sends msgs.
	Publish(ctx context.Context, msgs []Message) []Result
}

// Result is what became of one message.
type Result struct {
	// RecordID is the broker's id of the accepted entry.
	RecordID string
	// Fault is why the entry was not accepted; its zero value means that it was.
	Fault Fault
}

// Accepted reports whether the broker took the entry.
func (r Result) Accepted() bool { return r.Fault.Kind == FaultNone }

// FaultKind says whose fault a refusal is.
type FaultKind int

// The kinds of fault.
const (
	// FaultNone is no fault.
	FaultNone FaultKind = iota
	// FaultBroker is the broker's own trouble, or a reply that never came. It uses no attempt.
	FaultBroker
	// FaultRefused is an error reply that may be this entry's own. The
	// Dispatcher believes it only if the broker accepted another entry of the
	// page, or any other since this entry's previous failure.
	FaultRefused
	// FaultPermanent is an entry that this publisher can never send.
	FaultPermanent
)

// Fault is a stable description of a refusal. It holds no text of a driver,
// which could carry a secret or a payload (A67).
type Fault struct {
	// Kind says whose fault it is.
	Kind FaultKind
	// Code is a short stable code: "broker.oom". See the Code constants.
	Code string
}

// Stable codes that the package itself stores. Publishers add codes of their own under "broker.".
const (
	// CodeTooLarge is an entry over the publisher's size limit.
	CodeTooLarge = "outbox.too_large"
	// CodeForeignOwner is an entry whose payload names another owner than the publisher's.
	CodeForeignOwner = "outbox.foreign_owner"
	// CodeMalformed is an entry whose payload is no event any more.
	CodeMalformed = "outbox.malformed_payload"
	// CodeMaxClaims is an entry that was claimed alone too often without an outcome.
	CodeMaxClaims = "outbox.max_claims_exceeded"
	// CodeAttemptsExhausted is an entry that the broker refused max_attempts times.
	CodeAttemptsExhausted = "outbox.attempts_exhausted"
	// CodePublisherPanic is a publisher that panicked or broke its contract.
	CodePublisherPanic = "outbox.publisher_panic"
)
