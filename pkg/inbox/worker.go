// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/pkg/audit"
)

// markTrails is how far behind the newest claim the low-water mark stays: a takeover of another owner
// may commit a lower number that much later and is still seen at once. Later ones wait for a full scan.
const markTrails = 2 * time.Second

// worker works on one batch at a time.
type worker struct {
	c     *Consumer
	beat  *heartbeat
	begin string // for batches: synchronous
	quick string // settings of claims, which may be forgotten
	alone string // settings of claims of rows that run alone, which must not
	own   string // settings of the mark, after the handler's statements

	page  int               // rows to claim: halved by trouble, doubled by success
	debts []debt            // settles that could not be written yet
	cuts  map[uuid.UUID]int // connections lost while this event ran alone

	marks   lowWater
	dry     bool      // the last claim of a batch found nothing
	scanAt  time.Time // when all open rows are looked at again
	aloneAt time.Time // when rows that run alone are looked for again, between batches
	restAt  time.Time // and when there are no batches
	turn    bool      // one ran alone just now: a batch comes first
}

func newWorker(c *Consumer) *worker {
	return &worker{
		c:     c,
		beat:  newHeartbeat(c),
		begin: begin(c.o.LockTimeout, c.o.IdleTimeout, true),
		quick: settings(c.o.LockTimeout, c.o.IdleTimeout, false) + byIndex,
		alone: settings(c.o.LockTimeout, c.o.IdleTimeout, true) + byIndex,
		own:   settings(c.o.LockTimeout, c.o.IdleTimeout, true) + byIndex,
		page:  c.o.PageRows,
		cuts:  map[uuid.UUID]int{},
	}
}

// run repeats passes until ctx ends.
func (w *worker) run(ctx context.Context) {
	defer w.beat.close()
	rest := pause{least: w.c.o.PauseMin, most: w.c.o.PauseMax, jitter: w.c.o.Jitter}
	for ctx.Err() == nil {
		_, more, err := w.pass(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			w.c.count.troubles.Add(1)
			w.c.log.say(ctx, slog.LevelWarn, "the inbox waits for its database", slog.String("error", err.Error()))
			sleep(ctx, rest.next(), nil)
		case !more:
			rest.reset()
			sleep(ctx, time.Duration(float64(w.c.o.Poll)*(0.75+w.c.o.Jitter()/2)), w.c.wake)
		default:
			rest.reset()
		}
	}
	w.leave(ctx)
}

// leave settles what is still owed when the worker stops.
func (w *worker) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := w.pay(ctx); err != nil {
		w.c.log.say(ctx, slog.LevelWarn, "rows stay leased until their leases expire", slog.Int("settles", len(w.debts)), slog.String("error", err.Error()))
	}
}

// pass settles what is owed, claims one batch and applies it. It returns how many rows were finished,
// and whether there may be more due by now: a claim that did not fill its page took all there was, and
// whoever adds a row afterwards wakes the worker.
func (w *worker) pass(ctx context.Context) (done int, more bool, err error) {
	if err := w.pay(ctx); err != nil {
		return 0, false, err
	}
	room := w.page
	b, err := w.claimNext(ctx)
	if err != nil || len(b.rows) == 0 {
		return 0, false, err
	}
	w.c.count.claimed.Add(int64(len(b.rows)))
	failpoint.Hit(failpoint.InboxClaimed)
	stop := w.beat.start(ctx, b)
	defer stop()
	done, err = w.apply(ctx, b)
	w.c.count.processed.Add(int64(done))
	switch {
	case err != nil:
		w.page = max(w.page/2, 1)
	case done > 0:
		w.page = min(w.page*2, w.c.o.PageRows)
	}
	// The next event, of at most audit.MaxPayload bytes, may not have fitted any more.
	more = w.turn || done < len(b.rows) || len(b.rows) == room || b.bytes()+audit.MaxPayload > w.c.o.PageBytes
	return done, more, err
}

// batch is what one claim gave: rows under one token.
type batch struct {
	token uuid.UUID
	rows  []claimed
}

// claimed is one row under a lease.
type claimed struct {
	no       int64
	attempts int
	event    Event
}

func (b batch) bytes() int {
	n := 0
	for i := range b.rows {
		n += len(b.rows[i].event.Payload)
	}
	return n
}

func (b batch) ids() [][16]byte { return idsOf(b.rows) }

func idsOf(rows []claimed) [][16]byte {
	ids := make([][16]byte, len(rows))
	for i, r := range rows {
		ids[i] = r.event.ID
	}
	return ids
}

// claimNext claims a batch of rows that have not failed often, or one row that has. While there are
// batches, rows that run alone are looked for now and then, and only among numbers that were claimed
// before: a deep backlog is not searched for them.
func (w *worker) claimNext(ctx context.Context) (batch, error) {
	now := w.c.o.Now()
	if !w.dry && !w.turn && w.marks.top > 0 && !now.Before(w.aloneAt) {
		b, took, err := w.claimAlone(ctx, w.marks.top)
		if err != nil || len(b.rows) > 0 {
			return b, err
		}
		w.aloneAt = now.Add(w.interval(took))
	}
	w.turn = false
	b, err := w.claimBatch(ctx)
	if err != nil || len(b.rows) > 0 || now.Before(w.restAt) {
		return b, err
	}
	b, took, err := w.claimAlone(ctx, math.MaxInt64)
	if err == nil && len(b.rows) == 0 {
		w.restAt = now.Add(w.interval(took))
	}
	return b, err
}

// claimAlone claims one row that was started too often without success. Its attempt is counted
// durably, since it may be Postgres that the handler brings down.
func (w *worker) claimAlone(ctx context.Context, top int64) (batch, time.Duration, error) {
	began := w.c.o.Now()
	b, err := w.claim(ctx, w.alone, 0, top, w.c.o.AloneAfter, math.MaxInt32, 1)
	w.turn = len(b.rows) > 0
	return b, w.c.o.Now().Sub(began), err
}

// lookEverywhere makes the next claim a search of all rows.
func (w *worker) lookEverywhere() {
	w.scanAt, w.aloneAt, w.restAt = time.Time{}, time.Time{}, time.Time{}
}

func (w *worker) claimBatch(ctx context.Context) (batch, error) {
	began := w.c.o.Now()
	mark := w.marks.mark(began)
	full := w.dry || !began.Before(w.scanAt)
	if full {
		mark = 0
	}
	b, err := w.claim(ctx, w.quick, mark, math.MaxInt64, 0, w.c.o.AloneAfter-1, w.page)
	if err != nil {
		return b, err
	}
	n := len(b.rows)
	w.dry = n == 0
	if full {
		now := w.c.o.Now()
		w.scanAt = now.Add(w.interval(now.Sub(began)))
		if n > 0 && b.rows[n-1].no <= w.marks.mark(now) {
			w.scanAt = now // a whole page lay below the mark: there may be more
		}
	}
	if n > 0 {
		w.marks.claimed(b.rows[n-1].no)
	}
	return b, nil
}

// interval keeps a search that takes long from taking more than a twentieth of the time.
func (w *worker) interval(took time.Duration) time.Duration { return max(w.c.o.ScanEvery, 20*took) }

// lowWater is the number above which a busy worker looks for rows. Entries of finished rows stay in
// the index for as long as somebody holds an old snapshot; without the mark each claim walks them all.
type lowWater struct {
	top, newer, older int64
	rotated           time.Time
}

func (l *lowWater) claimed(no int64) { l.top = max(l.top, no) }

// mark returns the highest number claimed at least markTrails ago.
func (l *lowWater) mark(now time.Time) int64 {
	if now.Sub(l.rotated) >= markTrails {
		l.older, l.newer, l.rotated = l.newer, l.top, now
	}
	return l.older
}

// claim takes rows whose attempts so far lie between least and most. A claim whose reply was lost is
// given back as a whole.
func (w *worker) claim(ctx context.Context, settings string, mark, top int64, least, most, limit int) (batch, error) {
	b := batch{token: uuid.New()}
	err := oneTrip(ctx, w.c.o.DB, settings, func(claim *pgx.Batch) {
		claim.Queue(sqlClaim, w.c.o.Name, mark, least, most, limit, w.c.o.LeaseOwner, [16]byte(b.token), int64(w.c.o.PageBytes),
			w.c.o.Lease, top).Query(func(rows pgx.Rows) (err error) {
			b.rows, err = pgx.CollectRows(rows, scanClaimed)
			return err
		})
	})
	if err != nil {
		w.debts = append(w.debts, debt{kind: owesToken, token: b.token, mark: mark})
		return batch{}, fmt.Errorf("claim: %w", err)
	}
	slices.SortFunc(b.rows, func(x, y claimed) int { return int(x.no - y.no) })
	return b, nil
}

func scanClaimed(row pgx.CollectableRow) (claimed, error) {
	var c claimed
	e := &c.event
	err := row.Scan(&c.no, &e.ID, &e.LedgerID, &e.LedgerSeq, &e.SchemaVersion, &e.Owner, &e.Type, &e.Traceparent, &e.Tracestate,
		&e.Payload, &c.attempts)
	e.Attempt = c.attempts
	return c, err
}
