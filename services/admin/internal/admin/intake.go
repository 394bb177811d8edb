// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxotel"
	"github.com/counterfoil/counterfoil/pkg/inbox/redisstream"
)

// meterName names the meter and tracer of what runs in the background.
const meterName = "admin/intake"

// evictsGauge is the metric of the broker's maxmemory-policy.
const evictsGauge = "broker_evicts"

// Retention of finished inbox rows: small batches, seldom, so that delivery never waits for them (BC-08).
const (
	pruneEvery = time.Minute
	pruneBatch = 1000
)

// IntakeOptions says where events come from and where they go. All fields but TimeScale are required.
type IntakeOptions struct {
	DB        *pgxpool.Pool // of pgdb.MoverConfig
	Redis     *redis.Options
	Keys      map[string]*envelope.Keyring // by owner
	Instance  string                       // this replica's name as a reader, kept over restarts
	Retention time.Duration                // of PROCESSED inbox rows
	Telemetry *telemetry.Telemetry
	TimeScale float64 // divides every lease, backoff and poll, for tests; default 1
}

// Intake is all that runs in the background: a bridge for each owner's stream, which takes events over; a consumer for
// each thing that is done with them; and the retention of what is finished. A bridge wakes the consumers.
type Intake struct {
	inbox     *inbox.Postgres
	sources   map[string]*redisstream.Source
	bridges   []*inbox.Bridge
	consumers []*inbox.Consumer
	options   IntakeOptions
}

// NewIntake wires it up. It connects to nothing. Close it after its loops have ended.
func NewIntake(o IntakeOptions) (*Intake, error) {
	o.TimeScale = max(o.TimeScale, 1)
	in := &Intake{options: o, sources: map[string]*redisstream.Source{}}
	var subscriptions []inbox.Subscription
	for _, c := range []inbox.ConsumerOptions{
		{Name: AuditLogConsumer, Handler: Project, Workers: 2},
		{Name: SecurityConsumer, Handler: Watch(uuid.NewV7), Wants: WatchesSecurity},
	} {
		c.DB, c.Logger, c.LeaseOwner = o.DB, o.Telemetry.Logger, o.Instance
		measured, err := inboxotel.MeasureAge(o.Telemetry.Meter(meterName), c.Name, time.Now, c.Handler)
		if err != nil {
			return nil, fmt.Errorf("measure consumer %s: %w", c.Name, err)
		}
		c.Handler = inboxotel.TraceHandler(o.Telemetry.Tracer(meterName), c.Name, measured)
		consumer, err := inbox.NewConsumer(c.Scaled(o.TimeScale))
		if err != nil {
			return nil, fmt.Errorf("make consumer %s: %w", c.Name, err)
		}
		in.consumers = append(in.consumers, consumer)
		subscriptions = append(subscriptions, consumer.Subscription())
	}
	catalog := Catalog(subscriptions...)
	var err error
	if in.inbox, err = inbox.NewPostgres(o.DB, catalog); err != nil {
		return nil, fmt.Errorf("make inbox: %w", err)
	}
	for _, owner := range Owners() {
		if err := in.addBridge(owner, catalog); err != nil {
			return nil, errors.Join(err, in.Close())
		}
	}
	if err := in.observe(o.Telemetry); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return in, nil
}

func (in *Intake) addBridge(owner string, catalog inbox.Catalog) error {
	o := in.options
	source, err := redisstream.New(redisstream.Options{
		Redis: o.Redis, Stream: envelope.StreamKey(owner), Consumer: o.Instance,
	}.Scaled(o.TimeScale))
	if err != nil {
		return fmt.Errorf("make source of %s: %w", owner, err)
	}
	in.sources[owner] = source
	bridge, err := inbox.NewBridge(inbox.BridgeOptions{
		DB: o.DB, Source: source, Owner: owner, Keys: o.Keys[owner], Catalog: catalog, Logger: o.Telemetry.Logger,
	}.Scaled(o.TimeScale))
	if err != nil {
		return fmt.Errorf("make bridge of %s: %w", owner, err)
	}
	in.bridges = append(in.bridges, bridge)
	return nil
}

// Loops returns what is to be run until told to stop.
func (in *Intake) Loops() []func(context.Context) error {
	loops := []func(context.Context) error{in.prune}
	for _, b := range in.bridges {
		loops = append(loops, b.Run)
	}
	for _, c := range in.consumers {
		loops = append(loops, c.Run)
	}
	return loops
}

// Inbox is what the bridges fill and the consumers empty.
func (in *Intake) Inbox() *inbox.Postgres { return in.inbox }

// Streams returns the owners' streams, to ask for reading positions.
func (in *Intake) Streams() map[string]Stream {
	streams := make(map[string]Stream, len(in.sources))
	for owner, source := range in.sources {
		streams[owner] = source
	}
	return streams
}

// Close frees the connections to the broker.
func (in *Intake) Close() error {
	var failed error
	for _, source := range in.sources {
		failed = errors.Join(failed, source.Close())
	}
	return failed
}

// prune deletes finished inbox rows that are past their age, a batch at a time. Trouble is waited out.
func (in *Intake) prune(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		n, err := in.inbox.Prune(ctx, in.options.Retention, pruneBatch)
		if err != nil && ctx.Err() == nil {
			in.options.Telemetry.Logger.WarnContext(ctx, "finished inbox rows were not pruned", slog.Any("error", err))
		}
		wait := pruneEvery
		if n == pruneBatch {
			wait = time.Second // more is waiting: go on, but leave room for delivery
		}
		timer.Reset(time.Duration(float64(wait) / in.options.TimeScale))
	}
}

// Broker is the readiness check of the streams. Its failure degrades the service and does not end it: what is recorded
// can still be read.
func (in *Intake) Broker(ctx context.Context) error {
	var failed error
	for owner, source := range in.sources {
		if _, err := source.Position(ctx); err != nil {
			failed = errors.Join(failed, fmt.Errorf("stream of %s: %w", owner, err))
		}
	}
	return failed
}

// Eviction is the readiness check of the broker's settings: a server that may drop streams loses events that were delivered
// (BC-44). Nothing here can undo that, so it is said loudly while nothing is lost yet.
func (in *Intake) Eviction(ctx context.Context) error {
	policy, err := in.evictionPolicy(ctx)
	if err == nil && policy != redisstream.NoEviction {
		err = fmt.Errorf("the broker's maxmemory-policy is %s, which may drop streams: it must be %s", policy, redisstream.NoEviction)
	}
	return err
}

// evictionPolicy asks by any of the sources: they have one server.
func (in *Intake) evictionPolicy(ctx context.Context) (string, error) {
	return in.sources[Owners()[0]].EvictionPolicy(ctx)
}

// Flow is the readiness check of what is taken over: dead entries, and leases, retries and entries that are too old.
// A stream that is read to its end says nothing about them (U88).
func (in *Intake) Flow(ctx context.Context) error {
	status, err := in.inbox.Status(ctx)
	if err != nil {
		return fmt.Errorf("read inbox status: %w", err)
	}
	var failed error
	for _, what := range Degraded(status, in.options.TimeScale) {
		failed = errors.Join(failed, errors.New(what))
	}
	return failed
}

// observe registers the metrics of bridges, consumers, inbox and streams.
func (in *Intake) observe(tel *telemetry.Telemetry) error {
	if err := tel.Gauges(func(ctx context.Context, observe telemetry.Observe) error {
		policy, err := in.evictionPolicy(ctx)
		evicts := 0.0
		if policy != redisstream.NoEviction {
			evicts = 1
		}
		observe(evictsGauge, evicts)
		return err
	}, telemetry.Gauge{Name: evictsGauge, Description: "1 if the broker's maxmemory-policy lets it drop streams, else 0."}); err != nil {
		return err
	}
	_, err := inboxotel.RegisterMetrics(inboxotel.MetricsOptions{
		Meter: tel.Meter(meterName), Bridges: in.bridges, Consumers: in.consumers, Inbox: in.inbox,
	})
	if err != nil {
		return fmt.Errorf("register inbox metrics: %w", err)
	}
	return nil
}
