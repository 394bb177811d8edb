// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Store is the Dispatcher's and the operator's side of the outbox. It has more
// than three methods because it is one table with one state machine: Postgres
// is the real one, package memory serves tests and samples. Both pass
// outboxtest.RunStoreSuite.
//
// All times are the store's clock's. Every call either takes effect as a whole
// or not at all; after an error the caller cannot know which, and may repeat it.
type Store interface {
	// Claim takes up to a page of due entries, oldest number first, skipping what others hold.
	Claim(ctx context.Context, req ClaimRequest) (Page, error)
	// Renew extends the claim and returns how many of ids it still held.
	Renew(ctx context.Context, token uuid.UUID, ids []uuid.UUID, lease time.Duration) (int, error)
	// Settle writes outcomes, ends the claim, and returns how many entries the
	// token still held. The rest are lost: another owner has them.
	Settle(ctx context.Context, token uuid.UUID, outcomes []Outcome) (Settled, error)
	// Release ends the claim without an outcome, gives the claim count back
	// and returns how many of ids the token still held.
	Release(ctx context.Context, token uuid.UUID, ids []uuid.UUID) (int, error)
	// MakeDeferredDue makes every unclaimed DEFERRED entry due now and returns how many.
	MakeDeferredDue(ctx context.Context) (int, error)

	// List returns entries newest first, by event id. Payloads are left out.
	List(ctx context.Context, f Filter) ([]Record, error)
	// Get returns one entry with its history, or ErrNotFound.
	Get(ctx context.Context, id uuid.UUID) (Record, []Transition, error)
	// Status counts what is where.
	Status(ctx context.Context) (Snapshot, error)
	// Requeue makes FAILED and DEAD_LETTERED entries PENDING again in the
	// caller's transaction, which should also record the operator's action. It
	// returns how many entries it moved: of two requeues of one entry at once,
	// one counts it. A store without transactions ignores tx.
	Requeue(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, actor, reason string) (int, error)
}

// ClaimRequest says what to claim.
type ClaimRequest struct {
	// Owner names the claimant, for people; Token is what counts.
	Owner string
	// Token is fresh and random for each claim.
	Token uuid.UUID
	// Rows and Bytes bound the page; a first entry over Bytes is taken alone.
	Rows  int
	Bytes int64
	// Lease is how long the claim lasts without renewal.
	Lease time.Duration
	// AloneAfter is the claim count from which an entry is claimed alone.
	AloneAfter int
	// Except is an entry to leave out; uuid.Nil leaves out none.
	Except uuid.UUID
}

// Page is a claimed page.
type Page struct {
	// Token holds the claim.
	Token uuid.UUID
	// Messages are the entries, oldest number first.
	Messages []Message
	// Alone is true if the page is a single entry that was claimed too often to share one.
	Alone bool
}

// IDs returns the event ids of the page.
func (p Page) IDs() []uuid.UUID {
	ids := make([]uuid.UUID, len(p.Messages))
	for i := range p.Messages {
		ids[i] = p.Messages[i].EventID
	}
	return ids
}

// Outcome is what to write for one claimed entry.
type Outcome struct {
	// EventID names the entry; From is the status it was claimed in.
	EventID uuid.UUID
	From    Status
	// To is the new status. From.CanBecome(To) must hold.
	To Status
	// UsesAttempt adds one to attempts.
	UsesAttempt bool
	// KeepClaimCount keeps the claim among those without an outcome. Otherwise
	// DEFERRED gives it back, and every other status sets the count to zero.
	KeepClaimCount bool
	// Delay is how long until the entry is due again, for DEFERRED and RETRYABLE_FAILURE.
	Delay time.Duration
	// Code is the stable error code; empty for DELIVERED.
	Code string
	// Reason is the dead-letter reason; empty unless To is DEAD_LETTERED.
	Reason string
	// Provider and RecordID say which broker has the entry, and under what id; for DELIVERED.
	Provider, RecordID string
}

// CheckOutcomes refuses a move that Status.CanBecome does not know. Every Settle begins with it.
func CheckOutcomes(outcomes []Outcome) error {
	for _, o := range outcomes {
		if !o.From.CanBecome(o.To) || !o.From.Open() {
			return fmt.Errorf("outbox: an entry cannot go from %s to %s", o.From, o.To)
		}
	}
	return nil
}

// Settled is what Settle wrote.
type Settled struct {
	// Count is how many entries were written.
	Count int
	// Kept names them if they are fewer than asked; nil if they are all.
	Kept []uuid.UUID
	// Time is the store's clock at the write.
	Time time.Time
}
