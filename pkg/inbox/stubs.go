// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Bridge takes one owner's events over. Any number may run on one stream, here and in other
// processes, each with a Source that has a name of its own; takeovers of one owner are serial, so
// more than one is for availability and not for speed.
type Bridge struct{ o BridgeOptions }

// NewBridge checks the options and fills their defaults. It connects to nothing.
func NewBridge(o BridgeOptions) (*Bridge, error) { panic("stub") }

// Run takes over until ctx ends, and then returns nil. Trouble with broker or database is waited
// out; entries stay pending meanwhile. It returns an error only if it panics' worth is found.
func (b *Bridge) Run(ctx context.Context) error { panic("stub") }

// Once makes one pass without waiting: idle entries of others if due, this consumer's own, then one
// page of new ones. It returns how many entries were taken over and acknowledged. After an error, or
// a crash at any point, the entries are still pending and a later pass takes them.
func (b *Bridge) Once(ctx context.Context) (int, error) { panic("stub") }

// Stats returns counters since the start. Safe for concurrent use.
func (b *Bridge) Stats() BridgeStats { panic("stub") }

// BridgeStats counts since the start of the process.
type BridgeStats struct {
	Takeover
	Pages    int64
	Repairs  int64
	Troubles int64
	Stuck    []string
}

// Consumer applies events for one named consumer.
type Consumer struct{ o ConsumerOptions }

// NewConsumer checks the options and fills their defaults. It refuses a handler with outside effects
// and no idempotency key. It connects to nothing.
func NewConsumer(o ConsumerOptions) (*Consumer, error) { panic("stub") }

// Run works until ctx ends, then gives back what it holds and returns nil.
func (c *Consumer) Run(ctx context.Context) error { panic("stub") }

// Once claims one batch and applies it. It returns how many rows became PROCESSED.
func (c *Consumer) Once(ctx context.Context) (int, error) { panic("stub") }

// Wake makes an idle Run look at once. It never blocks.
func (c *Consumer) Wake() { panic("stub") }

// Subscription is what to give a bridge's Catalog for this consumer.
func (c *Consumer) Subscription() Subscription { panic("stub") }

// Stats returns counters since the start. Safe for concurrent use.
func (c *Consumer) Stats() ConsumerStats { panic("stub") }

// ConsumerStats counts since the start of the process.
type ConsumerStats struct {
	Claimed, Processed, Failed, Died, GivenBack, LostFences, Troubles int64
}

// Postgres reads the inbox and does what an operator may do. Methods that change rows take the
// caller's transaction, so that the caller can record the action in it.
type Postgres struct{}

// NewPostgres checks the catalog, which ReplayPoison and Status use.
func NewPostgres(db *pgxpool.Pool, catalog Catalog) (*Postgres, error) { panic("stub") }

// Outcome is what a change did, id by id.
type Outcome struct {
	// Changed lists the ids that were changed, in order.
	Changed []uuid.UUID
	// Refused lists the others, with a reason.
	Refused []Refusal
}

// Refusal says why one id was left as it was.
type Refusal struct {
	ID     uuid.UUID
	Reason string
}

// Actor is who decides and why; both are stored with poison.
type Actor struct {
	ID     string // opaque id
	Reason string
}

// Requeue sets DEAD rows of one consumer to PENDING with fresh attempts. The last error code is kept.
func (p *Postgres) Requeue(ctx context.Context, tx pgx.Tx, consumer string, events []uuid.UUID) (Outcome, error) {
	panic("stub")
}

// Replay sets PROCESSED rows of one consumer to PENDING: its handler runs again for them.
func (p *Postgres) Replay(ctx context.Context, tx pgx.Tx, consumer string, events []uuid.UUID) (Outcome, error) {
	panic("stub")
}

// ReplayPoison checks PARKED poison again by today's catalog and makes inbox rows of what passes.
// After the caller's commit it should call WakeAll.
func (p *Postgres) ReplayPoison(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, by Actor) (Outcome, error) {
	panic("stub")
}

// DiscardPoison marks open poison of any kind as discarded. Nothing is deleted.
func (p *Postgres) DiscardPoison(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, by Actor) (Outcome, error) {
	panic("stub")
}

// Row is one consumer's work on one event, with what the event says of itself.
type Row struct {
	Consumer      string
	EventID       uuid.UUID
	Owner         string
	EventType     string
	SchemaVersion int32
	LedgerID      uuid.UUID
	LedgerSeq     int64
	EntryID       string
	State         State
	Attempts      int
	ReceivedAt    time.Time
	NextRetryAt   time.Time // zero unless PENDING
	LeaseOwner    string    // only while PROCESSING
	LeaseExpires  time.Time // zero unless PROCESSING
	FinishedAt    time.Time // zero unless PROCESSED or DEAD
	LastErrorCode string
	LastErrorAt   time.Time // zero without an error
}

// Filter chooses rows. A zero field chooses all.
type Filter struct {
	Consumer string
	State    State
	EventID  uuid.UUID
	Owner    string
}

// RowCursor is where a page of rows ends: the last row of it. The zero value is the beginning.
type RowCursor struct {
	EventID  uuid.UUID
	Consumer string
}

// List returns rows, newest event first, after the cursor, at most limit (1 to 1000).
func (p *Postgres) List(ctx context.Context, f Filter, after RowCursor, limit int) ([]Row, error) {
	panic("stub")
}

// Get returns one row, or ErrNotFound.
func (p *Postgres) Get(ctx context.Context, consumer string, event uuid.UUID) (Row, error) {
	panic("stub")
}

// PoisonKind is why an entry was not taken over as an event.
type PoisonKind string

// The three kinds.
const (
	Forged   PoisonKind = "FORGED"
	Parked   PoisonKind = "PARKED"
	Conflict PoisonKind = "CONFLICT"
)

// PoisonState is what became of it.
type PoisonState string

// The three states.
const (
	PoisonOpen      PoisonState = "OPEN"
	PoisonResolved  PoisonState = "RESOLVED"
	PoisonDiscarded PoisonState = "DISCARDED"
)

// Poison is the distinct content of stream entries that were not taken over.
type Poison struct {
	ID           uuid.UUID
	Stream       string
	Owner        string
	Kind         PoisonKind
	Reason       string
	State        PoisonState
	EventID      uuid.UUID // zero if the entry had none
	ClaimedType  string
	LedgerID     uuid.UUID // zero unless authentic
	LedgerSeq    int64     // zero unless authentic
	FirstEntryID string
	LastEntryID  string
	SeenCount    int64
	FirstSeenAt  time.Time
	LastSeenAt   time.Time
	RawSize      int64
	RawFields    []byte // only in GetPoison; DecodeFields reads it
	DecidedBy    string
	DecidedAt    time.Time
	Decision     string
}

// PoisonFilter chooses poison. A zero field chooses all.
type PoisonFilter struct {
	Kind    PoisonKind
	State   PoisonState
	EventID uuid.UUID
}

// PoisonCursor is where a page of poison ends. The zero value is the beginning.
type PoisonCursor struct {
	FirstSeenAt time.Time
	ID          uuid.UUID
}

// ListPoison returns poison, newest first, after the cursor, at most limit (1 to 1000).
func (p *Postgres) ListPoison(ctx context.Context, f PoisonFilter, after PoisonCursor, limit int) ([]Poison, error) {
	panic("stub")
}

// GetPoison returns one with its raw fields, or ErrNotFound.
func (p *Postgres) GetPoison(ctx context.Context, id uuid.UUID) (Poison, error) { panic("stub") }

// Status is the inbox at one moment, by the database's clock.
type Status struct {
	Consumers []ConsumerStatus // one a subscribed consumer, by name, also when it has no rows
	Streams   []StreamStatus   // one a stream that was ever taken over
	Poison    []PoisonCount    // open poison
}

// ConsumerStatus counts one consumer's unfinished and dead rows. Ages are zero without such a row.
type ConsumerStatus struct {
	Consumer         string
	Pending          int64
	Processing       int64
	Dead             int64
	DeadByCode       map[string]int64
	OldestPendingAge time.Duration // of rows without a failed attempt, since takeover
	OldestLeaseAge   time.Duration // since the claim, however often renewed
	OldestRetryAge   time.Duration // of rows with a failed attempt, since takeover
}

// StreamStatus is how far one owner's stream was taken over, by the database.
type StreamStatus struct {
	Owner          string
	Stream         string
	LastEntryID    string
	TakenOver      int64
	LastTakeoverAt time.Time
}

// PoisonCount counts open poison.
type PoisonCount struct {
	Kind   PoisonKind
	Reason string
	Count  int64
}

// Status reads the counts in one snapshot.
func (p *Postgres) Status(ctx context.Context) (Status, error) { panic("stub") }

// Prune removes PROCESSED rows that finished more than age ago (at least an hour), at most limit
// (1 to 10000) of them, and returns how many; call it until it returns less than limit.
func (p *Postgres) Prune(ctx context.Context, age time.Duration, limit int) (int, error) {
	panic("stub")
}

// WakeAll wakes every subscribed consumer of this process.
func (p *Postgres) WakeAll() { panic("stub") }

// CheckSchema compares the tables in db with what this package needs.
func CheckSchema(ctx context.Context, db *pgxpool.Pool) error { panic("stub") }

// DecodeFields reads Poison.RawFields: names and values as the entry had them. Where they were cut, the last value is short.
func DecodeFields(raw []byte) (map[string][]byte, error) { panic("stub") }
