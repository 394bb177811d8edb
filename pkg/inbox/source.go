// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"errors"
	"time"
)

// ErrNoGroup is what a Source's Read, Ack and Tidy return, possibly wrapped, when the stream's
// reading position is gone (after a flush, a failover, an operator's mistake). The bridge then
// calls Prepare, at a bounded rate.
var ErrNoGroup = errors.New("inbox: the source has no consumer group")

// ErrTooLarge is what a Source's Read returns, possibly wrapped, when the entries that it was given
// take more than Limit.Bytes. They are this consumer's own by now, and the next read goes on where this
// one began: the bridge asks for fewer at once.
var ErrTooLarge = errors.New("inbox: the page is larger than asked for")

// Kind is which entries a Read asks for.
type Kind int

const (
	// Idle asks for entries that another consumer was given and has not acknowledged for a while.
	// They become this consumer's. Successive reads go on where the last one ended; Page.Done ends a sweep.
	Idle Kind = iota
	// Own asks for entries that this consumer was given before and has not acknowledged, from the
	// first. Successive reads go on where the last one ended. Page.Done says that there are none.
	Own
	// New asks for entries that no consumer was given yet.
	New
)

// Limit bounds one Read.
type Limit struct {
	// Count is the most entries to return, from 1.
	Count int
	// Bytes bounds what a page of more than one entry takes in memory; 0 means that nothing does. A
	// single entry is returned whatever its size.
	Bytes int
	// Block is how long a read of New may wait for a first entry; 0 means not at all.
	Block time.Duration
	// First makes a read of Own begin with the first entry again, also if the round before it did not end.
	First bool
}

// Entry is one entry as the broker holds it.
type Entry struct {
	ID string
	// Values holds the fields. They come from outside and are not checked.
	Values map[string]any
}

// Page is what one Read gave.
type Page struct {
	Entries []Entry
	// Deleted names entries that were given out, never acknowledged, and then deleted from the
	// stream by someone: their content is gone from the broker. They must be acknowledged like entries.
	Deleted []string
	// Done says that there is nothing more of this kind at the moment.
	Done bool
}

// Position is how far a source has been read.
type Position struct {
	// Through is the entry id up to which everything was acknowledged.
	Through string
	// Lag counts entries that no consumer of the group was given yet.
	Lag int64
	// Pending counts entries given out and not acknowledged.
	Pending int64
	// OldestUnread is how long ago the oldest entry of Lag was added, by the broker's ids; 0 if none.
	OldestUnread time.Duration
	// Consumers counts the names in the group.
	Consumers int64
}

// Tidied is what one Tidy did and saw.
type Tidied struct {
	Trimmed          int64
	ConsumersRemoved int64
	// Stuck names groups, this one or another, that hold back trimming with an entry older than the source's limit.
	Stuck []string
}

// Source is one owner's stream, read as one named member of a consumer group. Its methods are
// called from one goroutine, but for Position, which is safe for concurrent use. They honour ctx,
// also while blocked. The sub-package redisstream has the real one, inboxtest one in memory.
type Source interface {
	// Prepare makes the group, at the stream's beginning, if there is none. Repeating it, and two
	// callers at once, do no harm.
	Prepare(ctx context.Context) error
	// Read returns a page of one kind. An entry counts as given out even if the caller never sees the reply.
	Read(ctx context.Context, kind Kind, limit Limit) (Page, error)
	// Ack takes entries off the pending list in one call. Unknown ids do no harm.
	Ack(ctx context.Context, ids []string) error
	// Tidy trims what every group has acknowledged and removes names of dead consumers that hold nothing.
	Tidy(ctx context.Context) (Tidied, error)
	// Position reads how far the group has got.
	Position(ctx context.Context) (Position, error)
}
