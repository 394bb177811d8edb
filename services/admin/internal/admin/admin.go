// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package admin is what Admin does with the events of all owners: it records each once in the audit log, watches them
// for security patterns, answers questions about them, and lets operators act on what did not get through.
//
// The handlers (project.go, security.go) run under package inbox: each may be called again for an event, and its effect
// takes place once. What an operator does is recorded in the transaction that does it (record.go). The package promises
// nothing about when an event arrives, and it can undo nothing: owners never hear from it.
package admin

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// Service is Admin's operations. It is safe for concurrent use.
type Service struct {
	db      *pgxpool.Pool
	inbox   *inbox.Postgres
	streams map[string]Stream
	events  events
	log     *slog.Logger
	missed  metric.Int64Counter
}

// Options are what a Service needs. All fields but Now and NewID are required.
type Options struct {
	DB    *pgxpool.Pool
	Inbox *inbox.Postgres
	// Streams tells the reading positions, by owner.
	Streams map[string]Stream
	Log     *slog.Logger
	Meter   metric.Meter
	// Now tells the time of Admin's own events; default time.Now.
	Now func() time.Time
	// NewID makes the ids of Admin's own events: UUIDv7. Default uuid.NewV7.
	NewID func() (uuid.UUID, error)
}

// New returns a Service.
func New(o Options) (*Service, error) {
	missed, err := o.Meter.Int64Counter("audit_unrecorded",
		metric.WithDescription("Listings served and calls refused of which no record could be written."))
	if err != nil {
		return nil, fmt.Errorf("make counter: %w", err)
	}
	s := &Service{
		db: o.DB, inbox: o.Inbox, streams: o.Streams, log: o.Log, missed: missed, events: events{now: o.Now, newID: o.NewID},
	}
	if s.events.now == nil {
		s.events.now = time.Now
	}
	if s.events.newID == nil {
		s.events.newID = uuid.NewV7
	}
	return s, nil
}

// Caller is who asks, and from where, as it goes into Admin's own events.
type Caller struct {
	UserID, SessionID, DisplayName string // an empty UserID is an anonymous caller
	CorrelationID, TraceID         string
	ClientAddress                  string
	ClientAddressClaimed           bool // the address is only what a proxy that we do not trust says
	UserAgent                      string
}
