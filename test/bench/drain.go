// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// drainOwner is the service whose backlog is drained: both consumers take its events.
const drainOwner = "auth"

// backlog is what a drain begins with.
type backlog struct {
	events int
	event  func(n int) *auditv1.AuditEvent
	page   int // events a transaction
}

// day is a backlog of n of the day's events.
func day(n int) backlog { return backlog{n, dayAtAuth, 500} }

// statsDelay is how long Postgres may keep a session's counters to itself before pg_stat_wal shows them.
const statsDelay = 12 * time.Second

// drained is what one drain showed.
type drained struct {
	rate    float64 // events/s until audit_logs had all
	allRate float64 // until every consumer had finished, too
	wal     walUse
	rss     map[string]float64 // MB by service
	cpu     map[string]float64 // seconds by service and server
}

// drains measures the backlog, turn by turn with the floor.
func (b *bench) drains(ctx context.Context, r *results) error {
	var mine []drained
	var floors []floorRun
	for i := range b.o.rounds {
		if b.floor != nil {
			f, err := b.floor.drain(ctx)
			if err != nil {
				return err
			}
			b.say("drain %d: the floor %.0f events/s, %.0f µs of CPU an event", i+1, f.rate, 1e6*f.cpu/float64(b.o.events))
			floors = append(floors, f)
		}
		d, err := b.drain(ctx, day(b.o.events))
		if err != nil {
			return err
		}
		b.say("drain %d: %s", i+1, d)
		mine = append(mine, d)
	}
	r.Drain = newDrainResult(b.o.events, mine, floors)

	// Once more without full-page images, which say more about checkpoints than about the path.
	if err := b.fullPageWrites(ctx, "off"); err != nil {
		return err
	}
	d, err := b.drain(ctx, day(b.o.events))
	if err != nil {
		return err
	}
	b.say("drain without full-page images: %s", d)
	r.Drain.WALBytesPerEventNoFPI = d.wal.bytes
	return b.fullPageWrites(ctx, "on")
}

// largeEvents follow as many small ones, by which a reader that sizes its page would be misled.
const largeEvents = 200

// large measures the memory of a drain in which small events are followed by ones of nearly a MiB.
func (b *bench) large(ctx context.Context, r *results) error {
	d, err := b.drain(ctx, backlog{2 * largeEvents, func(n int) *auditv1.AuditEvent {
		if n < largeEvents {
			return dayAtAuth(n)
		}
		return manyChanges(n)
	}, 20})
	if err != nil {
		return err
	}
	r.Large = &largeResult{Events: largeEvents, PayloadBytes: proto.Size(manyChanges(0)), PeakMemoryMB: d.rss}
	b.say("large events: %s", byName(d.rss, "%.0f MB"))
	return nil
}

func (d drained) String() string {
	return fmt.Sprintf("%.0f events/s (every consumer: %.0f), %.0f bytes of WAL and %.4f fsyncs an event; CPU seconds: %s", d.rate,
		d.allRate, d.wal.bytes, d.wal.syncs, byName(d.cpu, "%.2f"))
}

// empty empties the tables of the path, since the floor makes its own anew for each of its drains.
func (b *bench) empty(ctx context.Context) error {
	for owner, tables := range map[string]string{
		drainOwner: "audit_outbox, audit_lifecycle",
		"admin":    "ledger_entries, inbox_events, consumer_inbox, audit_logs, security_observations, security_alerts",
	} {
		_, err := b.system.DB(owner).Exec(ctx, "SET session_replication_role = replica; TRUNCATE "+tables+"; RESET session_replication_role")
		if err != nil {
			return fmt.Errorf("empty the tables of %s: %w", owner, err)
		}
	}
	return nil
}

// drain fills a backlog while the owner is stopped, lets it go, and waits for the last event.
func (b *bench) drain(ctx context.Context, of backlog) (drained, error) {
	var d drained
	if err := b.quiet(ctx); err != nil {
		return d, err
	}
	owner := b.system.Service(drainOwner, 0)
	if err := owner.Pause(); err != nil {
		return d, err
	}
	defer func() { _ = owner.Resume() }() // a second time it does nothing
	if err := b.empty(ctx); err != nil {
		return d, err
	}
	before, err := b.recorded(ctx)
	if err != nil {
		return d, err
	}
	last, err := b.fill(ctx, of)
	if err != nil {
		return d, err
	}
	if err := b.checkpoint(ctx); err != nil {
		return d, err
	}
	sleep(ctx, statsDelay)
	use, err := b.readWAL(ctx)
	if err != nil {
		return d, err
	}
	if err := b.resetStatements(ctx); err != nil {
		return d, err
	}
	watch := b.watchProcesses()

	begin := time.Now()
	if err := owner.Resume(); err != nil {
		return d, err
	}
	if err := b.waitRecorded(ctx, last, before+of.events); err != nil {
		return d, err
	}
	took := time.Since(begin)
	if err := b.quiet(ctx); err != nil {
		return d, err
	}
	all := time.Since(begin)
	d.cpu, d.rss = watch.stop()
	d.rate, d.allRate = perSecond(of.events, took), perSecond(of.events, all)
	if err := b.printStatements(ctx, of.events); err != nil {
		return d, err
	}
	sleep(ctx, statsDelay)
	d.wal, err = use.stop(ctx, of.events)
	return d, err
}

// fill appends a backlog and returns the id of its last event.
func (b *bench) fill(ctx context.Context, of backlog) (uuid.UUID, error) {
	var last uuid.UUID
	for done := 0; done < of.events; done += of.page {
		events := make([]*auditv1.AuditEvent, min(of.page, of.events-done))
		for i := range events {
			events[i] = of.event(done + i)
		}
		err := pgdb.InTx(ctx, b.pools[drainOwner], func(tx pgx.Tx) error { return outbox.Append(ctx, tx, events...) })
		if err != nil {
			return last, fmt.Errorf("fill the outbox: %w", err)
		}
		last = uuid.MustParse(events[len(events)-1].GetAuditId())
	}
	return last, nil
}

// recorded counts the owner's rows in audit_logs.
func (b *bench) recorded(ctx context.Context) (int, error) {
	var n int
	err := b.system.DB("admin").QueryRow(ctx, "SELECT count(*) FROM audit_logs WHERE owner = $1", drainOwner).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count audit_logs: %w", err)
	}
	return n, nil
}

// waitRecorded waits until audit_logs has want rows of the owner. It counts only once the last event is there: counting
// all the time would measure itself.
func (b *bench) waitRecorded(ctx context.Context, last uuid.UUID, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond) // less than a hundredth of a drain
	defer tick.Stop()
	for there := false; !there; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the last event: %w", ctx.Err())
		case <-tick.C:
		}
		err := b.system.DB("admin").QueryRow(ctx, "SELECT EXISTS (SELECT FROM audit_logs WHERE event_id = $1)", last).Scan(&there)
		if err != nil {
			return fmt.Errorf("look for the last event: %w", err)
		}
	}
	return harness.Poll(ctx, func() error {
		n, err := b.recorded(ctx)
		if err == nil && n != want {
			err = fmt.Errorf("%d of %d events are recorded", n, want)
		}
		return err
	})
}

func perSecond(n int, took time.Duration) float64 { return float64(n) / took.Seconds() }

// sleep waits, or until ctx ends, which the next statement notices.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
