// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/counterfoil/counterfoil/internal/dispatch"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/migrations"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/redisstream"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// projects is over how many rows the calls over gRPC go: enough that two rarely want the same one.
const projects = 200

// load is a source of business transactions with one event each.
type load struct {
	owner string // whose outbox the events are in
	call  func(ctx context.Context, n int) error
	stop  func(context.Context) error
}

func (b *bench) startLoad(ctx context.Context) (*load, error) {
	if b.o.load == "grpc" {
		return b.callOverGRPC(ctx)
	}
	return b.appendHere(ctx)
}

// callOverGRPC makes projects and returns the load that changes one of them with each call.
func (b *bench) callOverGRPC(ctx context.Context) (*load, error) {
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
	call := func(ctx context.Context, n int) error {
		_, err := client.UpdateProject(harness.WithToken(ctx, token), &appv1.UpdateProjectRequest{
			Project:    &appv1.Project{Name: names[n%projects], DisplayName: fmt.Sprintf("Project, change %d", n)},
			UpdateMask: mask, RequestId: uuid.NewString(),
		})
		return err
	}
	return &load{owner: "app", call: call, stop: func(context.Context) error { return nil }}, nil
}

const (
	rowsTable = `
CREATE TABLE IF NOT EXISTS bench_rows (id uuid PRIMARY KEY, version bigint NOT NULL, name text NOT NULL);
GRANT SELECT, INSERT ON bench_rows TO %s`
	insertRow = `INSERT INTO bench_rows (id, version, name) VALUES ($1, 1, $2)`
)

// appendHere stops the owner's service and does in this process what it does once a call has been decoded and allowed:
// a row and its event in one transaction, and then the wake-up of the dispatcher, wired as the service wires it.
func (b *bench) appendHere(ctx context.Context) (*load, error) {
	if _, err := b.system.DB(drainOwner).Exec(ctx, fmt.Sprintf(rowsTable, migrations.ServiceRole(drainOwner))); err != nil {
		return nil, fmt.Errorf("make the table: %w", err)
	}
	service := b.system.Service(drainOwner, 0)
	if err := service.Stop(ctx); err != nil {
		return nil, err
	}
	dispatcher, free, err := b.dispatcher(ctx)
	if err != nil {
		return nil, errors.Join(err, service.Start(ctx))
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- dispatcher.Run(running) }()
	call := func(ctx context.Context, n int) error {
		err := pgdb.InTx(ctx, b.pools[drainOwner], func(tx pgx.Tx) error {
			var batch pgx.Batch
			batch.Queue(insertRow, uuid.Must(uuid.NewV7()), "Row")
			return outbox.AppendBatch(ctx, tx, &batch, dayAtAuth(n))
		})
		if err == nil {
			dispatcher.Wake()
		}
		return err
	}
	stop := func(ctx context.Context) error {
		end()
		err := <-ended
		free()
		return errors.Join(err, service.Start(ctx))
	}
	return &load{owner: drainOwner, call: call, stop: stop}, nil
}

// dispatcher returns the owner's dispatcher, and what frees its connections.
func (b *bench) dispatcher(ctx context.Context) (d *outbox.Dispatcher, free func(), err error) {
	db, err := b.openAs(ctx, drainOwner)
	if err != nil {
		return nil, nil, err
	}
	o := *b.system.RedisClient.Options()
	broker := redis.NewClient(redisstream.ClientOptions(o))
	free = func() {
		db.Close()
		_ = broker.Close()
	}
	defer func() {
		if err != nil {
			free()
		}
	}()
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: drainOwner, Stderr: io.Discard, SampleRatio: 1})
	if err != nil {
		return nil, nil, err
	}
	keys, err := envelope.ParseKeyring(b.macKey)
	if err != nil {
		return nil, nil, err
	}
	d, err = dispatch.New(dispatch.Config{Owner: drainOwner, DB: db, Broker: broker, Keys: keys, Telemetry: tel, TimeScale: 1})
	return d, free, err
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
