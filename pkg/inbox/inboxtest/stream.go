// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package inboxtest helps to test what is built on package inbox: a stream in memory, the conformance
// suite that every inbox.Source passes, and makers of authentic entries and of inbox rows.
//
// The stream in memory proves nothing about a broker's failures, connections or memory.
package inboxtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// Stream is one stream with one consumer group, in memory. It is safe for concurrent use.
type Stream struct {
	mu      sync.Mutex
	now     func() time.Time
	entries []inbox.Entry
	last    uint64 // number of the last entry added
	group   bool
	read    uint64 // number of the last entry given out
	pending []pending
	changed chan struct{} // closed and replaced when entries or the group change
}

// pending is an entry that was given out and not acknowledged.
type pending struct {
	id     string
	no     uint64
	holder string
	since  time.Time
}

// NewStream returns an empty stream without a group. A nil now means time.Now.
func NewStream(now func() time.Time) *Stream {
	if now == nil {
		now = time.Now
	}
	return &Stream{now: now, changed: make(chan struct{})}
}

func (s *Stream) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Add appends entries and returns their ids.
func (s *Stream) Add(values ...map[string]any) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, len(values))
	for i, v := range values {
		s.last++
		ids[i] = idOf(s.last)
		s.entries = append(s.entries, inbox.Entry{ID: ids[i], Values: v})
	}
	s.notify()
	return ids
}

// Delete removes entries as a stranger would; what was pending stays so.
func (s *Stream) Delete(ids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = slices.DeleteFunc(s.entries, func(e inbox.Entry) bool { return slices.Contains(ids, e.ID) })
}

// Flush loses everything, the group too, as a broker without persistence does. Ids go on.
func (s *Stream) Flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.pending, s.group, s.read = nil, nil, false, 0
	s.notify()
}

// Pending returns the ids that were given out and not acknowledged, oldest first.
func (s *Stream) Pending() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, len(s.pending))
	for i, p := range s.pending {
		ids[i] = p.id
	}
	return ids
}

// Len returns how many entries the stream holds.
func (s *Stream) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

func idOf(no uint64) string { return fmt.Sprintf("%d-0", no) }

func numberOf(id string) uint64 {
	var no uint64
	_, _ = fmt.Sscanf(id, "%d-0", &no)
	return no
}

// Source returns the stream as the reader of that name sees it. Entries of other readers are idle after idleAfter.
func (s *Stream) Source(reader string, idleAfter time.Duration) *Source {
	return &Source{s: s, reader: reader, idleAfter: idleAfter}
}

// Source is one reader of a Stream. It implements inbox.Source.
type Source struct {
	s         *Stream
	reader    string
	idleAfter time.Duration
	sweep     uint64
	after     uint64
}

// Prepare implements inbox.Source.
func (r *Source) Prepare(ctx context.Context) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.group, r.sweep, r.after = true, 0, 0
	return ctx.Err()
}

// Read implements inbox.Source.
func (r *Source) Read(ctx context.Context, kind inbox.Kind, limit inbox.Limit) (inbox.Page, error) {
	deadline := time.NewTimer(limit.Block)
	defer deadline.Stop()
	for {
		r.s.mu.Lock()
		changed, sweep, after := r.s.changed, r.sweep, r.after
		p, err := r.read(ctx, kind, limit)
		r.s.mu.Unlock()
		if err == nil && limit.Bytes > 0 && len(p.Entries) > 1 && size(p.Entries) > limit.Bytes {
			r.sweep, r.after = sweep, after
			return inbox.Page{}, fmt.Errorf("read: %w", inbox.ErrTooLarge)
		}
		if err != nil || len(p.Entries)+len(p.Deleted) > 0 || kind != inbox.New || limit.Block <= 0 {
			return p, err
		}
		select {
		case <-ctx.Done():
			return inbox.Page{}, ctx.Err()
		case <-deadline.C:
			return p, nil
		case <-changed:
		}
	}
}

func size(entries []inbox.Entry) int {
	n := 0
	for _, e := range entries {
		for name, v := range e.Values {
			n += len(name) + len(fmt.Sprint(v))
		}
	}
	return n
}

func (r *Source) read(ctx context.Context, kind inbox.Kind, limit inbox.Limit) (inbox.Page, error) {
	switch {
	case ctx.Err() != nil:
		return inbox.Page{}, ctx.Err()
	case !r.s.group:
		return inbox.Page{}, fmt.Errorf("read: %w", inbox.ErrNoGroup)
	case kind == inbox.New:
		return r.readNew(limit), nil
	}
	var p inbox.Page
	from := &r.after
	switch {
	case kind == inbox.Idle:
		from = &r.sweep
	case limit.First:
		r.after = 0
	}
	for i := range r.s.pending {
		e := &r.s.pending[i]
		if e.no <= *from {
			continue
		}
		if len(p.Entries)+len(p.Deleted) == limit.Count {
			return p, nil
		}
		*from = e.no
		if kind == inbox.Own && e.holder != r.reader || kind == inbox.Idle && r.s.now().Sub(e.since) < r.idleAfter {
			continue
		}
		e.holder, e.since = r.reader, r.s.now()
		r.give(&p, e.id)
	}
	if p.Done = kind == inbox.Idle || len(p.Entries)+len(p.Deleted) == 0; p.Done {
		*from = 0
	}
	return p, nil
}

func (r *Source) readNew(limit inbox.Limit) inbox.Page {
	var p inbox.Page
	for _, e := range r.s.entries {
		no := numberOf(e.ID)
		if no <= r.s.read {
			continue
		}
		if len(p.Entries) == limit.Count {
			return p
		}
		r.s.read = no
		r.s.pending = append(r.s.pending, pending{id: e.ID, no: no, holder: r.reader, since: r.s.now()})
		p.Entries = append(p.Entries, e)
	}
	p.Done = true
	return p
}

func (r *Source) give(p *inbox.Page, id string) {
	i := slices.IndexFunc(r.s.entries, func(e inbox.Entry) bool { return e.ID == id })
	if i < 0 {
		p.Deleted = append(p.Deleted, id)
		return
	}
	p.Entries = append(p.Entries, r.s.entries[i])
}

// Ack implements inbox.Source.
func (r *Source) Ack(ctx context.Context, ids []string) error {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	r.s.pending = slices.DeleteFunc(r.s.pending, func(p pending) bool { return slices.Contains(ids, p.id) })
	return nil
}

// Tidy implements inbox.Source. It trims; it keeps no list of readers that could be cleaned.
func (r *Source) Tidy(ctx context.Context) (inbox.Tidied, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if !r.s.group {
		return inbox.Tidied{}, fmt.Errorf("tidy: %w", inbox.ErrNoGroup)
	}
	before, through := len(r.s.entries), r.s.through()
	r.s.entries = slices.DeleteFunc(r.s.entries, func(e inbox.Entry) bool { return numberOf(e.ID) <= through })
	return inbox.Tidied{Trimmed: int64(before - len(r.s.entries))}, ctx.Err()
}

// through is the number up to which everything was acknowledged.
func (s *Stream) through() uint64 {
	through := s.read
	for _, p := range s.pending {
		through = min(through, p.no-1)
	}
	return through
}

// Position implements inbox.Source.
func (r *Source) Position(ctx context.Context) (inbox.Position, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if !r.s.group {
		return inbox.Position{}, fmt.Errorf("position: %w", inbox.ErrNoGroup)
	}
	p := inbox.Position{Through: idOf(r.s.through()), Pending: int64(len(r.s.pending)), Consumers: 1}
	for _, e := range r.s.entries {
		if numberOf(e.ID) > r.s.read {
			p.Lag++
		}
	}
	return p, ctx.Err()
}
