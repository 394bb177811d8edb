// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// rates are the loads, in calls a second.
func rates() []int { return []int{200, 1000} }

// fresh measures right after the migration, when the tables hold next to nothing and Postgres knows nothing of them. The higher rate comes first, since a plan made for an empty table hurts most then.
func (b *bench) fresh(ctx context.Context, r *results) error {
	for _, rate := range slices.Backward(rates()) {
		l, err := b.latency(ctx, rate, b.o.seconds)
		if err != nil {
			return err
		}
		b.say("latency on empty tables: %s", l)
		r.LatencyFresh = append([]latencyResult{l}, r.LatencyFresh...)
	}
	return nil
}

// latencies measures on tables that have been used.
func (b *bench) latencies(ctx context.Context, r *results) error {
	for _, rate := range rates() {
		l, err := b.latency(ctx, rate, b.o.seconds)
		if err != nil {
			return err
		}
		b.say("latency: %s", l)
		r.Latency = append(r.Latency, l)
	}
	return nil
}

// latency makes calls at a rate and looks up when each of their events was committed and when it was recorded.
func (b *bench) latency(ctx context.Context, rate, seconds int) (l latencyResult, err error) {
	l.Rate, l.Load = rate, b.o.load
	if err := b.quiet(ctx); err != nil {
		return l, err
	}
	load, err := b.startLoad(ctx)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, load.stop(ctx)) }()
	if err := b.quiet(ctx); err != nil {
		return l, err
	}
	var from int64
	if err := b.system.DB(load.owner).QueryRow(ctx, "SELECT coalesce(max(append_no), 0) FROM audit_outbox").Scan(&from); err != nil {
		return l, fmt.Errorf("find the end of the outbox: %w", err)
	}
	if err := b.resetStatements(ctx); err != nil {
		return l, err
	}
	watch := b.watchProcesses()
	seen := openLoop(ctx, rate, time.Duration(seconds)*time.Second, load.call)
	if seen.err != nil {
		return l, fmt.Errorf("%d calls failed, the first: %w", seen.failed, seen.err)
	}
	if err := b.quiet(ctx); err != nil {
		return l, err
	}
	cpu, _ := watch.stop()
	if err := b.printStatements(ctx, rate*seconds); err != nil {
		return l, err
	}
	times, err := b.commitToRecorded(ctx, load.owner, from)
	if err != nil {
		return l, err
	}
	if len(times) != len(seen.answered) {
		return l, fmt.Errorf("%d calls were answered and %d events recorded", len(seen.answered), len(times))
	}
	l.fill(times)
	l.Events = len(times)
	l.CPU = map[string]float64{}
	for name, used := range cpu {
		l.CPU[name] = 1e6 * used / float64(len(times))
	}
	l.CallP50, l.CallP99 = milliseconds(percentile(seen.answered, 50)), milliseconds(percentile(seen.answered, 99))
	l.LateP99 = milliseconds(percentile(seen.late, 99))
	return l, nil
}

// commitToRecorded returns, for each event after a place in the outbox, the time from the commit of its business transaction
// to the commit of its audit_logs row. Postgres notes both, by one clock, when it writes the commit record.
func (b *bench) commitToRecorded(ctx context.Context, owner string, from int64) ([]time.Duration, error) {
	committed, err := commitTimes(ctx, b, owner, `
		SELECT event_id, pg_xact_commit_timestamp(tx::xid) FROM audit_outbox WHERE append_no > $1`, from)
	if err != nil {
		return nil, err
	}
	ids := make([]uuid.UUID, 0, len(committed))
	for id := range committed {
		ids = append(ids, id)
	}
	recorded, err := commitTimes(ctx, b, "admin", `
		SELECT event_id, pg_xact_commit_timestamp(xmin) FROM audit_logs WHERE event_id = ANY ($1::uuid[])`, ids)
	if err != nil {
		return nil, err
	}
	times := make([]time.Duration, 0, len(recorded))
	for id, at := range recorded {
		times = append(times, at.Sub(committed[id]))
	}
	return times, nil
}

func commitTimes(ctx context.Context, b *bench, owner, sql string, arg any) (map[uuid.UUID]time.Time, error) {
	rows, err := b.system.DB(owner).Query(ctx, sql, arg)
	if err != nil {
		return nil, fmt.Errorf("read commit times of %s: %w", owner, err)
	}
	defer rows.Close()
	found := map[uuid.UUID]time.Time{}
	for rows.Next() {
		var id uuid.UUID
		var at time.Time
		if err := rows.Scan(&id, &at); err != nil {
			return nil, fmt.Errorf("read commit times of %s: %w", owner, err)
		}
		found[id] = at
	}
	return found, rows.Err()
}
