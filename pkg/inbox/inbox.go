// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// State is where one consumer's work on one event stands.
type State string

// The four states; the package comment has the table of their changes.
const (
	Pending    State = "PENDING"
	Processing State = "PROCESSING"
	Processed  State = "PROCESSED"
	Dead       State = "DEAD"
)

// Event is one event as a handler gets it.
type Event struct {
	ID            uuid.UUID
	Owner         string
	Type          string
	SchemaVersion int32
	LedgerID      uuid.UUID
	LedgerSeq     int64
	// Payload is the event's bytes as its owner appended them. Store these, never a re-encoding.
	Payload []byte
	// Audit is Payload, decoded once.
	Audit       *auditv1.AuditEvent
	Traceparent string
	Tracestate  string
	// Attempt counts the starts of the handler for this event, this one included.
	Attempt int
	// IdempotencyKey is what ConsumerOptions.IdempotencyKey made of the event; empty without one.
	IdempotencyKey string
}

// Handler applies a batch of distinct events in tx, in the order given. All of it takes effect
// with the mark that it was done, or none: it must neither commit nor roll back (tx refuses both).
//
// It may run again for an event: after a crash, after database trouble, for a batch one of whose
// events failed, and on an operator's replay; so it writes with ON CONFLICT DO NOTHING or looks
// first. An error that [Permanent] made sends its event to DEAD at once; any other is tried again
// with a backoff. Where a batch of several fails, each event is tried alone, and only the error of
// that run counts. ctx ends with the budget ([ConsumerOptions.Budget]) and on a stop.
type Handler func(ctx context.Context, tx pgx.Tx, batch []Event) error

// Subscription is what a bridge must know of a consumer.
type Subscription struct {
	// Consumer is the consumer's name. Required, at most 64 characters of a-z, 0-9 and "-".
	Consumer string
	// Wants says whether the consumer gets events of this owner and type. Default: all.
	Wants func(owner, eventType string) bool
	// Wake is called after a takeover committed rows for the consumer. It must not block. Default: none.
	Wake func()
}

// Catalog says what a receiver understands and who wants it. A bridge asks it at takeover, and
// [Postgres.ReplayPoison] asks it again for what was parked.
type Catalog struct {
	// Known says whether this release can use the type at that version. What it cannot is parked.
	// Default: everything is known.
	Known func(owner, eventType string, schemaVersion int32) bool
	// Subscriptions lists the consumers. At least one is required.
	Subscriptions []Subscription
}

func (c Catalog) validate() error {
	if len(c.Subscriptions) == 0 {
		return errors.New("inbox: a catalog needs at least one subscription")
	}
	seen := map[string]bool{}
	for _, s := range c.Subscriptions {
		if err := validName(s.Consumer); err != nil {
			return err
		}
		if seen[s.Consumer] {
			return fmt.Errorf("inbox: consumer %q is subscribed twice", s.Consumer)
		}
		seen[s.Consumer] = true
	}
	return nil
}

func (c Catalog) known(owner, eventType string, version int32) bool {
	return c.Known == nil || c.Known(owner, eventType, version)
}

func validName(name string) error {
	if name == "" || len(name) > 64 {
		return fmt.Errorf("inbox: consumer name %q: want 1 to 64 characters", name)
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return fmt.Errorf("inbox: consumer name %q: want a-z, 0-9 and - only", name)
		}
	}
	return nil
}
