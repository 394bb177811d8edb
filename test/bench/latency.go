// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// projects is over how many rows the calls go: enough that two rarely want the same one.
const projects = 50

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
func (b *bench) latency(ctx context.Context, rate, seconds int) (latencyResult, error) {
	l := latencyResult{Rate: rate}
	if err := b.quiet(ctx); err != nil {
		return l, err
	}
	call, err := b.updateProjects(ctx)
	if err != nil {
		return l, err
	}
	if err := b.quiet(ctx); err != nil {
		return l, err
	}
	var from int64
	if err := b.system.DB("app").QueryRow(ctx, "SELECT coalesce(max(append_no), 0) FROM audit_outbox").Scan(&from); err != nil {
		return l, fmt.Errorf("find the end of the outbox: %w", err)
	}
	load := openLoop(ctx, rate, time.Duration(seconds)*time.Second, call)
	if load.err != nil {
		return l, fmt.Errorf("%d calls failed, the first: %w", load.failed, load.err)
	}
	if err := b.quiet(ctx); err != nil {
		return l, err
	}
	times, err := b.commitToRecorded(ctx, from)
	if err != nil {
		return l, err
	}
	if len(times) != len(load.answered) {
		return l, fmt.Errorf("%d calls were answered and %d events recorded", len(load.answered), len(times))
	}
	l.fill(times)
	l.Events = len(times)
	l.CallP50, l.CallP99 = milliseconds(percentile(load.answered, 50)), milliseconds(percentile(load.answered, 99))
	l.LateP99 = milliseconds(percentile(load.late, 99))
	return l, nil
}

// updateProjects makes projects and returns a call that changes one of them.
func (b *bench) updateProjects(ctx context.Context) (func(context.Context, int) error, error) {
	token, err := b.system.Login(ctx, b.system.Operator)
	if err != nil {
		return nil, err
	}
	conn, err := b.system.Conn("app")
	if err != nil {
		return nil, err
	}
	client := appv1.NewProjectServiceClient(conn)
	mask := &fieldmaskpb.FieldMask{Paths: []string{"display_name"}}
	names := make([]string, projects)
	for i := range names {
		made, err := client.CreateProject(harness.WithToken(ctx, token), &appv1.CreateProjectRequest{
			Project: &appv1.Project{Slug: "p-" + uuid.NewString(), DisplayName: "Project"}, RequestId: uuid.NewString(),
		})
		if err != nil {
			return nil, fmt.Errorf("create project: %w", err)
		}
		names[i] = made.GetProject().GetName()
	}
	return func(ctx context.Context, n int) error {
		_, err := client.UpdateProject(harness.WithToken(ctx, token), &appv1.UpdateProjectRequest{
			Project:    &appv1.Project{Name: names[n%projects], DisplayName: fmt.Sprintf("Project, change %d", n)},
			UpdateMask: mask, RequestId: uuid.NewString(),
		})
		return err
	}, nil
}

// loaded is what an open loop saw. Times count from when a call was to leave, not from when it did.
type loaded struct {
	answered []time.Duration
	late     []time.Duration // how late a call left
	failed   int
	err      error // of the first call that failed
}

// openLoop lets calls leave at fixed times for as long as span, each in a goroutine of its own: a slow system does not
// slow the load down.
func openLoop(ctx context.Context, rate int, span time.Duration, call func(context.Context, int) error) loaded {
	var (
		mu  sync.Mutex
		out loaded
		all sync.WaitGroup
	)
	begin := time.Now()
	for n := 0; ; n++ {
		at := time.Duration(n) * time.Second / time.Duration(rate)
		if at >= span || ctx.Err() != nil {
			break
		}
		if wait := time.Until(begin.Add(at)); wait > 0 {
			sleep(ctx, wait)
		}
		late := time.Since(begin.Add(at))
		all.Go(func() {
			err := call(ctx, n)
			took := time.Since(begin.Add(at))
			mu.Lock()
			defer mu.Unlock()
			out.late = append(out.late, late)
			if err != nil {
				out.failed++
				if out.err == nil {
					out.err = err
				}
				return
			}
			out.answered = append(out.answered, took)
		})
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		out.err = errors.Join(out.err, err)
	}
	return out
}

// commitToRecorded returns, for each event after a place in the outbox, the time from the commit of its business transaction
// to the commit of its audit_logs row. Postgres notes both, by one clock, when it writes the commit record.
func (b *bench) commitToRecorded(ctx context.Context, from int64) ([]time.Duration, error) {
	committed, err := commitTimes(ctx, b, "app", `
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
