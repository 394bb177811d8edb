// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/pkg/audit"
)

// Bridge takes one owner's events over. Any number may run on one stream, here and in other
// processes, each with a Source that has a name of its own; takeovers of one owner are serial, so
// more than one is for availability and not for speed.
type Bridge struct {
	o        BridgeOptions
	settings string // of its transactions
	log      *throttle

	once       sync.Mutex // guards the fields below: one pass at a time
	ready      bool       // group and position row are there
	own        bool       // own pending entries may exist
	repairAt   time.Time
	reclaimAt  time.Time
	tidyAt     time.Time
	mean       int // bytes of an entry, by the last page
	count      int // entries to ask for
	ownLedgers map[uuid.UUID]bool

	mu    sync.Mutex
	stats BridgeStats
}

// BridgeStats counts since the start of the process.
type BridgeStats struct {
	Takeover             // sums over all pages
	Pages          int64 // pages committed
	Bytes          int64 // field bytes of all entries
	Repairs        int64 // groups that were lost and made again
	Troubles       int64 // passes that ended with trouble of broker or database
	Trimmed        int64
	Removed        int64    // names of dead consumers
	Stuck          []string // groups that hold back trimming at the moment
	LastTakeoverAt time.Time
}

// NewBridge checks the options and fills their defaults. It connects to nothing.
func NewBridge(o BridgeOptions) (*Bridge, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o = o.filled()
	return &Bridge{
		o: o, settings: settings(o.LockTimeout, o.IdleTimeout, true) + byIndex, own: true, ownLedgers: map[uuid.UUID]bool{},
		log:   newThrottle(o.Logger.With(slog.String("owner", o.Owner)), o.LogEvery, o.Now),
		stats: BridgeStats{Takeover: Takeover{Owner: o.Owner, Stream: o.Stream, PoisonReasons: map[string]int64{}}},
		// What an entry takes is not known yet.
		mean: audit.MaxPayload, count: 8,
	}, nil
}

// Run takes over until ctx ends, and then returns nil. Trouble with broker or database is waited
// out; entries stay pending meanwhile. Run at most once at a time.
func (b *Bridge) Run(ctx context.Context) error {
	b.once.Lock()
	defer b.once.Unlock()
	rest := pause{least: b.o.PauseMin, most: b.o.PauseMax, jitter: b.o.Jitter}
	for ctx.Err() == nil {
		if _, err := b.pass(ctx, b.o.Block); err != nil && ctx.Err() == nil {
			b.troubled(ctx, err)
			sleep(ctx, rest.next(), nil)
			continue
		}
		rest.reset()
	}
	return nil
}

// Once makes one pass without waiting: idle entries of other readers if due, this reader's own, then
// one page of new ones. It returns how many entries were committed and acknowledged. After an error,
// or a crash at any point, what was not acknowledged is still pending, and a later pass takes it and
// recognises what it had committed.
func (b *Bridge) Once(ctx context.Context) (int, error) {
	b.once.Lock()
	defer b.once.Unlock()
	return b.pass(ctx, 0)
}

// Owner returns the owner whose stream this is.
func (b *Bridge) Owner() string { return b.o.Owner }

// Stream returns the stream's name.
func (b *Bridge) Stream() string { return b.o.Stream }

// Position asks the source how far it was read. It is safe for concurrent use.
func (b *Bridge) Position(ctx context.Context) (Position, error) { return b.o.Source.Position(ctx) }

// Stats returns counters since the start. It is safe for concurrent use.
func (b *Bridge) Stats() BridgeStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.PoisonReasons = maps.Clone(s.PoisonReasons)
	return s
}

// troubled notes a pass that failed. What it had read is this reader's own now.
func (b *Bridge) troubled(ctx context.Context, err error) {
	b.mu.Lock()
	b.stats.Troubles++
	b.mu.Unlock()
	b.log.say(ctx, slog.LevelWarn, "the bridge waits for broker or database", slog.String("error", err.Error()))
}

func (b *Bridge) pass(ctx context.Context, block time.Duration) (n int, err error) {
	defer func() {
		if err != nil {
			b.own = true
		}
		if errors.Is(err, ErrNoGroup) {
			b.ready = false
		}
	}()
	if err := b.prepare(ctx); err != nil {
		return 0, err
	}
	if now := b.o.Now(); !now.Before(b.reclaimAt) {
		got, err := b.drain(ctx, Idle)
		if n += got; err != nil {
			return n, err
		}
		b.reclaimAt = now.Add(b.o.ReclaimEvery)
		b.own = true // what was refused alone is tried again
	}
	if b.own {
		got, err := b.drain(ctx, Own)
		if n += got; err != nil {
			return n, err
		}
		b.own = false
	}
	got, _, err := b.page(ctx, New, Limit{Count: b.count, Block: block})
	if n += got; err != nil {
		return n, err
	}
	return n, b.tidy(ctx)
}

// prepare makes group and position row if they may be missing, the group at a bounded rate.
func (b *Bridge) prepare(ctx context.Context) error {
	if b.ready {
		return nil
	}
	now := b.o.Now()
	if wait := b.repairAt.Sub(now); wait > 0 {
		sleep(ctx, wait, nil)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	again := !b.repairAt.IsZero()
	b.repairAt = b.o.Now().Add(b.o.RepairEvery)
	if err := b.o.Source.Prepare(ctx); err != nil {
		return fmt.Errorf("prepare the source: %w", err)
	}
	if err := b.makePosition(ctx); err != nil {
		return err
	}
	if again {
		b.mu.Lock()
		b.stats.Repairs++
		b.mu.Unlock()
		b.log.say(ctx, slog.LevelWarn, "the consumer group was made again at the stream's beginning")
	}
	b.ready, b.own = true, true
	return nil
}

// drain takes pages of one kind until there are no more. A round of own entries begins with the first
// of them, since the round before may have ended at a page that failed.
func (b *Bridge) drain(ctx context.Context, kind Kind) (int, error) {
	n := 0
	for first := true; ; first = false {
		got, done, err := b.page(ctx, kind, Limit{Count: b.count, First: first})
		n += got
		if err != nil || done {
			return n, err
		}
	}
}

// page reads one page, takes it over, and only then acknowledges it. If it was larger than expected,
// nothing of it is kept in memory, and it is read again in smaller ones.
func (b *Bridge) page(ctx context.Context, kind Kind, limit Limit) (n int, done bool, err error) {
	limit.Bytes = 2 * b.o.PageBytes // the count follows a mean
	p, err := b.o.Source.Read(ctx, kind, limit)
	if errors.Is(err, ErrTooLarge) {
		b.own = true
		b.count = max(min(b.count/4, b.o.PageBytes/audit.MaxPayload), 1)
		return 0, kind == New, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read: %w", err)
	}
	failpoint.Hit(failpoint.InboxRead)
	size := b.measure(p.Entries)
	if len(p.Deleted) > 0 {
		b.log.say(ctx, slog.LevelError, "entries were deleted from the stream before they were taken over",
			slog.Int("entries", len(p.Deleted)), slog.String("first", p.Deleted[0]))
	}
	t, err := b.takeWhole(ctx, p)
	n = int(t.acked())
	if n > 0 || t.Refused > 0 {
		b.note(t, size)
		if b.o.Acked != nil {
			if err := b.o.Acked(ctx, t); err != nil {
				b.log.say(ctx, slog.LevelWarn, "what follows an acknowledgement failed", slog.String("error", err.Error()))
			}
			failpoint.Hit(failpoint.InboxReceiptSent)
		}
	}
	return n, p.Done && err == nil, err
}

// takeWhole commits and acknowledges a page. A page that the database refuses for a reason that is
// not its own trouble is taken entry by entry, so that one entry holds up no other; the one that is
// refused alone stays pending, and is tried again with the next round of own entries. Deleted entries
// come first: the source may name them once, whatever becomes of the others. It returns what was
// acknowledged, also with an error.
func (b *Bridge) takeWhole(ctx context.Context, p Page) (Takeover, error) {
	sum := Takeover{Owner: b.o.Owner, Stream: b.o.Stream, PoisonReasons: map[string]int64{}}
	if err := b.ack(ctx, p.Deleted); err != nil {
		return sum, err
	}
	sum.Deleted = int64(len(p.Deleted))
	t, err := b.commitAndAck(ctx, p.Entries)
	if err == nil {
		sum.add(t)
		return sum, nil
	}
	if trouble(err) || !isPostgres(err) || ctx.Err() != nil {
		return sum, err
	}
	for i := range p.Entries {
		t, err := b.commitAndAck(ctx, p.Entries[i:i+1])
		switch {
		case err == nil:
			sum.add(t)
		case trouble(err) || !isPostgres(err) || ctx.Err() != nil:
			return sum, err
		default:
			sum.Refused++
			b.log.say(ctx, slog.LevelError, "an entry cannot be written and stays pending",
				slog.String("entry_id", p.Entries[i].ID), slog.String("error", err.Error()))
		}
	}
	return sum, nil
}

func isPostgres(err error) bool {
	var p *pgconn.PgError
	return errors.As(err, &p)
}

func (b *Bridge) commitAndAck(ctx context.Context, entries []Entry) (Takeover, error) {
	if len(entries) == 0 {
		return Takeover{}, nil
	}
	t, err := b.takeOver(ctx, entries)
	if err != nil {
		return t, err
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.ID
	}
	return t, b.ack(ctx, ids)
}

func (b *Bridge) ack(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if err := b.o.Source.Ack(ctx, ids); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	failpoint.Hit(failpoint.InboxAcked)
	return nil
}

// wake tells the consumers of this process that have rows of this page.
func (b *Bridge) wake(page []checked) {
	events := usable(page)
	for _, s := range b.o.Catalog.Subscriptions {
		if s.Wake != nil && len(wanted(s, b.o.Owner, events)) > 0 {
			s.Wake()
		}
	}
}

// measure lets the next count follow the mean size of this page, growing slowly.
func (b *Bridge) measure(entries []Entry) int {
	size := 0
	for _, e := range entries {
		for name, v := range e.Values {
			size += len(name) + len(fieldText(v))
		}
	}
	if len(entries) > 0 {
		b.mean = max(size/len(entries), 1)
		b.count = max(min(b.o.PageBytes/b.mean, b.o.PageRows, b.count*4), 1)
	}
	return size
}

func (b *Bridge) note(t Takeover, size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.add(t)
	b.stats.Pages++
	b.stats.Bytes += int64(size)
	b.stats.LastTakeoverAt = b.o.Now()
	if t.Conflicts > 0 {
		b.log.say(context.Background(), slog.LevelError, "an authentic entry contradicts what is held", slog.Int64("entries", t.Conflicts))
	}
	if t.Forged > 0 {
		b.log.say(context.Background(), slog.LevelError, "entries are not authentic", slog.Int64("entries", t.Forged))
	}
}

// tidy tidies if it is time. What keeps it from that is no trouble of the takeover, which goes on.
func (b *Bridge) tidy(ctx context.Context) error {
	now := b.o.Now()
	if now.Before(b.tidyAt) {
		return nil
	}
	b.tidyAt = now.Add(b.o.TidyEvery)
	done, err := b.o.Source.Tidy(ctx)
	switch {
	case errors.Is(err, ErrNoGroup):
		return fmt.Errorf("tidy: %w", err)
	case err != nil:
		b.log.say(ctx, slog.LevelWarn, "the stream was not tidied", slog.String("error", err.Error()))
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Trimmed += done.Trimmed
	b.stats.Removed += done.ConsumersRemoved
	b.stats.Stuck = done.Stuck
	if len(done.Stuck) > 0 {
		b.log.say(ctx, slog.LevelError, "a consumer group does not move and holds back trimming", slog.Any("groups", done.Stuck))
	}
	return nil
}

// add sums up takeovers.
func (t *Takeover) add(u Takeover) {
	t.LastEntryID = laterID(t.LastEntryID, u.LastEntryID)
	t.Received += u.Received
	t.Renumbered += u.Renumbered
	t.Duplicates += u.Duplicates
	t.Parked += u.Parked
	t.Forged += u.Forged
	t.Conflicts += u.Conflicts
	t.Checkpoints += u.Checkpoints
	t.Deleted += u.Deleted
	t.Refused += u.Refused
	for reason, n := range u.PoisonReasons {
		t.PoisonReasons[reason] += n
	}
}

// acked counts the entries that were acknowledged.
func (t *Takeover) acked() int64 {
	return t.Received + t.Renumbered + t.Duplicates + t.Parked + t.Forged + t.Conflicts + t.Checkpoints + t.Deleted
}

// compareIDs compares entry ids as pairs of numbers. What is not one counts as 0-0.
func compareIDs(a, b string) int {
	a1, a2 := splitID(a)
	b1, b2 := splitID(b)
	return cmp.Or(cmp.Compare(a1, b1), cmp.Compare(a2, b2))
}

func splitID(id string) (uint64, uint64) {
	ms, seq, _ := strings.Cut(id, "-")
	first, _ := strconv.ParseUint(ms, 10, 64)
	second, _ := strconv.ParseUint(seq, 10, 64)
	return first, second
}
