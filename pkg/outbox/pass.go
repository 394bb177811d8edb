// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/failpoint"
)

// taken is a claimed page, which may be empty.
type taken struct {
	page  Page
	probe bool // the circuit is open, and this is its one entry
	again bool // there may be more: look again without waiting
}

// take seals and claims. Claims go in number order, so the entries that the
// sealing pass numbers are claimed with it only if no older one is due. An older
// one is there after a crash, a failure or an outage: it is looked for once a
// poll, and until there is none, but not before each new page. A page can come with
// an error: what has a number goes out, whatever kept the Sealer from giving more.
func (d *Dispatcher) take(ctx context.Context) (taken, error) {
	if pause, open := d.circuit.untilProbe(d.o.Now()); open {
		d.lookForOlder()
		return d.takeProbe(ctx, pause <= 0)
	}
	req := d.request(d.o.PageRows)
	if d.o.Sealer == nil || d.timeForOlder() {
		page, err := d.o.Store.Claim(ctx, req)
		if n := len(page.Messages); err != nil || n > 0 {
			d.lookForOlder()
			if err != nil {
				return taken{}, err
			}
			d.stats.claimed.Add(int64(n))
			_, _, err = d.seal(ctx, nil)
			return taken{page: page, again: true}, err
		}
	}
	page, more, err := d.seal(ctx, &req)
	d.stats.claimed.Add(int64(len(page.Messages)))
	return taken{page: page, again: more}, err
}

// timeForOlder says that numbered entries are to be looked for, and that they are
// now: whoever makes one due after this says so again.
func (d *Dispatcher) timeForOlder() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.o.Now()
	if now.Before(d.olderAt) {
		return false
	}
	d.olderAt = now.Add(d.o.Poll * 3 / 4) // the shortest poll
	return true
}

// lookForOlder makes the next pass look for numbered entries.
func (d *Dispatcher) lookForOlder() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.olderAt = time.Time{}
}

// takeProbe goes on sealing while the broker is away and, if it is time, claims
// the oldest due entry that did not fail the previous probe, or else that one.
func (d *Dispatcher) takeProbe(ctx context.Context, due bool) (taken, error) {
	_, more, sealing := d.seal(ctx, nil)
	if !due {
		return taken{again: more}, sealing
	}
	req := d.request(1)
	req.Except = d.circuit.lastProbe()
	page, err := d.o.Store.Claim(ctx, req)
	if err == nil && len(page.Messages) == 0 && req.Except != uuid.Nil {
		req.Except = uuid.Nil
		page, err = d.o.Store.Claim(ctx, req)
	}
	if len(page.Messages) == 0 {
		d.circuit.postpone(d.o.Now())
	}
	d.stats.claimed.Add(int64(len(page.Messages)))
	return taken{page: page, probe: true, again: more || len(page.Messages) > 0}, errors.Join(sealing, err)
}

func (d *Dispatcher) request(rows int) ClaimRequest {
	return ClaimRequest{
		Owner: d.o.Name, Token: d.o.NewToken(), Rows: rows, Bytes: d.o.PageBytes, Lease: d.o.Lease, AloneAfter: d.o.AloneAfter,
	}
}

// seal is one pass of the Sealer, if there is one.
func (d *Dispatcher) seal(ctx context.Context, claim *ClaimRequest) (Page, bool, error) {
	if d.o.Sealer == nil {
		return Page{}, false, nil
	}
	page, sealed, more, err := d.o.Sealer.Seal(ctx, claim)
	d.stats.sealed.Add(int64(sealed))
	if len(page.Messages) > 0 {
		failpoint.Hit(failpoint.OutboxClaimed)
	}
	return page, more, err
}

// deliver publishes and settles a page. ctx ends when the dispatcher is to stop,
// work a grace later. A page whose settling does not land stays claimed until
// its lease ends, and goes out again.
func (d *Dispatcher) deliver(ctx, work context.Context, t taken) error {
	if len(t.page.Messages) == 0 {
		return nil
	}
	if m := t.page.Messages[0]; t.page.Alone && m.ClaimCount > d.o.AloneAfter+d.o.MaxClaims {
		_, err := d.settle(work, t.page.Token, []Outcome{deadFor(m, CodeMaxClaims)})
		return err
	}
	send, cancel := linger(ctx, d.o.StopGrace/2)
	defer cancel()
	start := d.o.Now()
	results, panicked := d.publish(send, t.page.Messages)
	failpoint.Hit(failpoint.OutboxPublished)
	d.stats.published(d.o.Now().Sub(start))

	v := d.judge(t, results, panicked, send.Err() != nil)
	if v.trouble {
		d.noteTrouble(work, t, v)
	}
	settled, err := d.settle(work, t.page.Token, v.outcomes)
	if len(v.unknown) > 0 {
		d.release(work, t.page.Token, v.unknown)
	}
	if v.accepted > 0 {
		d.noteSuccess(work, v.trouble, settled.Time)
	}
	return err
}

// publish calls the publisher and survives it.
func (d *Dispatcher) publish(ctx context.Context, msgs []Message) (results []Result, panicked bool) {
	defer func() {
		if r := recover(); r != nil {
			d.o.Logger.ErrorContext(ctx, "publisher panicked", slog.Any("panic", r))
			results, panicked = nil, true
		}
	}()
	results = d.o.Publisher.Publish(ctx, msgs)
	return results, len(results) != len(msgs)
}

// keepRenewing renews the page until the returned function is called, which waits for it.
func (d *Dispatcher) keepRenewing(ctx context.Context, page Page) (stop func()) {
	if len(page.Messages) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ids := page.IDs()
		for {
			wait(ctx, d.o.Renew, nil)
			if ctx.Err() != nil {
				return
			}
			held, err := d.o.Store.Renew(ctx, page.Token, ids, d.o.Lease)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				d.stats.storeErrors.Add(1)
				d.o.Logger.WarnContext(ctx, "outbox claims not renewed", slog.Int("count", len(ids)), slog.Any("error", err))
			case held < len(ids):
				d.o.Logger.WarnContext(ctx, "outbox claims lost before they were settled", slog.Int("count", len(ids)-held))
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// settle writes outcomes, trying again for up to a lease while the store is in
// trouble. If one outcome keeps a page from landing, each is written alone (BC-32).
func (d *Dispatcher) settle(ctx context.Context, token uuid.UUID, outcomes []Outcome) (Settled, error) {
	if len(outcomes) == 0 {
		return Settled{}, nil
	}
	deadline := d.o.Now().Add(d.o.Lease)
	for n := 1; ; n++ {
		settled, err := d.o.Store.Settle(ctx, token, outcomes)
		if err == nil {
			d.noteSettled(ctx, outcomes, settled)
			return settled, nil
		}
		d.stats.storeErrors.Add(1)
		if len(outcomes) > 1 && refused(err) {
			return d.settleEach(ctx, token, outcomes)
		}
		if ctx.Err() != nil || refused(err) || d.o.Now().After(deadline) {
			d.stats.lost.Add(int64(len(outcomes)))
			return Settled{}, err
		}
		wait(ctx, d.databasePause(n), nil)
	}
}

func (d *Dispatcher) settleEach(ctx context.Context, token uuid.UUID, outcomes []Outcome) (Settled, error) {
	var sum Settled
	var first error
	for i := range outcomes {
		settled, err := d.settle(ctx, token, outcomes[i:i+1])
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		sum.Count += settled.Count
		sum.Time = settled.Time
	}
	return sum, first
}

// noteSettled counts. What the token no longer held is lost, never a success (T11).
func (d *Dispatcher) noteSettled(ctx context.Context, outcomes []Outcome, s Settled) {
	if lost := len(outcomes) - s.Count; lost > 0 {
		d.stats.lost.Add(int64(lost))
		d.o.Logger.WarnContext(ctx, "outbox claims lost before they were settled", slog.Int("count", lost))
	}
	for i := range outcomes {
		if s.Count == len(outcomes) || slices.Contains(s.Kept, outcomes[i].EventID) {
			d.stats.settled(outcomes[i].To)
		}
	}
}

func (d *Dispatcher) release(ctx context.Context, token uuid.UUID, ids []uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	n, err := d.o.Store.Release(ctx, token, ids)
	d.lookForOlder()
	d.stats.released.Add(int64(n))
	if err != nil {
		d.stats.storeErrors.Add(1)
		d.o.Logger.WarnContext(ctx, "outbox claims not released; they end with their lease", slog.Int("count", len(ids)), slog.Any("error", err))
	}
}

func (d *Dispatcher) noteTrouble(ctx context.Context, t taken, v verdict) {
	if t.probe {
		d.circuit.failedProbe(t.page.Messages[0].EventID)
	}
	if d.circuit.failuresInRow() == 1 {
		d.o.Logger.WarnContext(ctx, "broker trouble: outbox circuit open", slog.String("code", v.code), slog.Int("entries", len(t.page.Messages)))
	}
	d.Wake() // Run sleeps until the probe
}

// noteSuccess closes the circuit, unless this page met trouble too, and makes
// DEFERRED entries due: the oldest must not wait out their backoff while new ones pass.
func (d *Dispatcher) noteSuccess(ctx context.Context, trouble bool, at time.Time) {
	d.mu.Lock()
	if at.After(d.lastAccepted) {
		d.lastAccepted = at
	}
	d.mu.Unlock()
	d.stats.succeeded(d.o.Now())
	if trouble || !d.circuit.close() {
		return
	}
	due, err := d.o.Store.MakeDeferredDue(ctx)
	if err != nil {
		d.stats.storeErrors.Add(1)
		d.o.Logger.WarnContext(ctx, "deferred entries wait out their backoff", slog.Any("error", err))
	}
	d.lookForOlder()
	d.o.Logger.InfoContext(ctx, "broker is back: outbox circuit closed", slog.Int("deferred_made_due", due))
	d.Wake()
}
