// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/migrations"
	"github.com/counterfoil/counterfoil/pkg/outbox"
)

// turn is how long each kind of transaction runs before the next kind has its turn.
const turn = 2 * time.Second

// businessTable has the columns, indexes and guard of projects. The guard is off but in its own turns: a change of an audited
// table without its event is what the plain transaction has to make.
const businessTable = `
CREATE TABLE bench_projects (LIKE projects INCLUDING ALL);
SELECT audit_guard('bench_projects', 'bench_project');
CREATE TABLE bench_rows (id uuid PRIMARY KEY, payload bytea NOT NULL);
GRANT SELECT, INSERT ON bench_projects, bench_rows TO %s;` + guardOff

// guardOff and guardOn are for the table's owner.
const (
	guardOff = `
ALTER TABLE bench_projects DISABLE TRIGGER USER;
ALTER TABLE audit_outbox DISABLE TRIGGER audit_outbox_require_change`
	guardOn = `
ALTER TABLE bench_projects ENABLE TRIGGER USER;
ALTER TABLE audit_outbox ENABLE TRIGGER audit_outbox_require_change`
)

// rowBytes is about the size of an event.
const rowBytes = 400

const insertProject = `
INSERT INTO bench_projects (id, version, slug, display_name, creator_id, create_time, update_time)
VALUES ($1, 1, $2, 'Project', $3, now(), now())`

// business measures one transaction without an event, with Append and with AppendBatch, with AppendBatch under the guard, and
// with a second row of an event's size in place of the event, which bounds them: less than such a row no outbox can write. App
// is stopped meanwhile.
func (b *bench) business(ctx context.Context, r *results) error {
	if err := b.quiet(ctx); err != nil {
		return err
	}
	if _, err := b.system.DB("app").Exec(ctx, fmt.Sprintf(businessTable, migrations.ServiceRole("app"))); err != nil {
		return fmt.Errorf("make the table: %w", err)
	}
	if err := b.system.Service("app", 0).Stop(ctx); err != nil {
		return err
	}
	kinds := []struct {
		name    string
		do      func(context.Context, pgx.Tx) error
		guarded bool
	}{
		{"plain", plain, false},
		{"row", withRow, false},
		{"append", withAppend, false},
		{"batch", withAppendBatch, false},
		{"guarded", withAppendBatch, true},
	}
	perKind, times, cpu := map[string][]float64{}, map[string][]time.Duration{}, map[string][]float64{}
	for i := range 2*b.o.rounds + 1 {
		for _, kind := range kinds {
			if kind.guarded {
				if err := b.guard(ctx, guardOn); err != nil {
					return err
				}
			}
			before := b.businessCPU()
			took, err := b.turn(ctx, kind.do)
			if err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			used := b.businessCPU() - before
			if kind.guarded {
				if err := b.guard(ctx, guardOff); err != nil {
					return err
				}
			}
			if i == 0 {
				continue // connections, plans and the table's first pages
			}
			perKind[kind.name] = append(perKind[kind.name], perSecond(len(took), turn))
			times[kind.name] = append(times[kind.name], took...)
			cpu[kind.name] = append(cpu[kind.name], float64(used.Microseconds())/float64(len(took)))
		}
	}
	r.Business = newBusinessResult(perKind, times, cpu)
	b.say("business: %s", r.Business)
	return b.system.Service("app", 0).Start(ctx)
}

func (b *bench) guard(ctx context.Context, sql string) error {
	if _, err := b.system.DB("app").Exec(ctx, sql); err != nil {
		return fmt.Errorf("switch the guard: %w", err)
	}
	return nil
}

// businessCPU is what this process, which stands for the service, and Postgres have used.
func (b *bench) businessCPU() time.Duration {
	return cpuTime(os.Getpid()) + cpuTime(b.system.Postgres("app").PID())
}

// turn runs one kind of transaction at all writers and returns how long each took.
func (b *bench) turn(ctx context.Context, do func(context.Context, pgx.Tx) error) ([]time.Duration, error) {
	var (
		mu    sync.Mutex
		times []time.Duration
		first error
		all   sync.WaitGroup
	)
	end := time.Now().Add(turn)
	for range writers {
		all.Go(func() {
			var mine []time.Duration
			var err error
			for begin := time.Now(); begin.Before(end) && err == nil; begin = time.Now() {
				err = pgdb.InTx(ctx, b.pools["app"], func(tx pgx.Tx) error { return do(ctx, tx) })
				mine = append(mine, time.Since(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			times = append(times, mine...)
			first = errors.Join(first, err)
		})
	}
	all.Wait()
	return times, first
}

// row is what one transaction inserts.
func row() (id, creator uuid.UUID, slug string) {
	id = uuid.Must(uuid.NewV7())
	return id, uuid.New(), "p-" + id.String()
}

func plain(ctx context.Context, tx pgx.Tx) error {
	id, creator, slug := row()
	_, err := tx.Exec(ctx, insertProject, id, slug, creator)
	return err
}

func withRow(ctx context.Context, tx pgx.Tx) error {
	id, creator, slug := row()
	var batch pgx.Batch
	batch.Queue(insertProject, id, slug, creator)
	batch.Queue("INSERT INTO bench_rows (id, payload) VALUES ($1, $2)", uuid.Must(uuid.NewV7()), make([]byte, rowBytes))
	return tx.SendBatch(ctx, &batch).Close()
}

func withAppend(ctx context.Context, tx pgx.Tx) error {
	id, creator, slug := row()
	if _, err := tx.Exec(ctx, insertProject, id, slug, creator); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, projectCreated(id, creator, slug))
}

func withAppendBatch(ctx context.Context, tx pgx.Tx) error {
	id, creator, slug := row()
	var batch pgx.Batch
	batch.Queue(insertProject, id, slug, creator)
	return outbox.AppendBatch(ctx, tx, &batch, projectCreated(id, creator, slug))
}
