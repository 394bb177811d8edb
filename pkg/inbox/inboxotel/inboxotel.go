// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package inboxotel shows an inbox in OpenTelemetry: metrics of bridges, consumers, database and broker, and
// spans of handlers that link to the calls that made the events.
//
// A value that cannot be read is absent, never zero: lag 0 is not the same as a broker that does not answer.
package inboxotel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// readTimeout bounds what one collection waits for database and broker together.
const readTimeout = 5 * time.Second

// MetricsOptions says what to observe. Nil and empty fields are left out.
type MetricsOptions struct {
	// Meter makes the instruments. Required.
	Meter metric.Meter
	// Bridges are the bridges of this process. Their sources are asked for their position at each collection.
	Bridges []*inbox.Bridge
	// Consumers are the consumers of this process.
	Consumers []*inbox.Consumer
	// Inbox is asked for depths and ages at each collection.
	Inbox *inbox.Postgres
}

// RegisterMetrics registers all instruments. Unregister the result to stop. All counters count from
// the start of the process. With Prometheus' exporter the names are those below with "_" for ".",
// and "_total" or "_seconds" behind.
func RegisterMetrics(o MetricsOptions) (metric.Registration, error) {
	if o.Meter == nil {
		return nil, errors.New("inboxotel: MetricsOptions.Meter is required")
	}
	r := &registry{meter: o.Meter}
	m := metrics{
		entries:  r.counter("inbox.entries", "Stream entries taken off an owner's stream, by what they were"),
		poison:   r.counter("inbox.poison", "Entries that were not taken over as events, by reason"),
		repairs:  r.counter("inbox.group_repairs", "Consumer groups that were lost and made again"),
		trimmed:  r.counter("inbox.trimmed", "Entries trimmed from the stream after every group had them"),
		troubles: r.counter("inbox.troubles", "Passes that trouble of broker or database ended"),
		rows:     r.counter("inbox.rows", "Inbox rows by what a consumer did with them"),

		lag:       r.gauge("inbox.stream.lag", "{entry}", "Entries that no bridge has read, from the group's own position"),
		pending:   r.gauge("inbox.stream.pending", "{entry}", "Entries read and not acknowledged"),
		readers:   r.gauge("inbox.stream.consumers", "{name}", "Names in the consumer group"),
		stuck:     r.gauge("inbox.stream.stuck_groups", "{group}", "Groups that hold back trimming for too long"),
		unreadAge: r.age("inbox.stream.oldest_unread_age", "Age of the oldest entry that no bridge has read"),

		depth:      r.gauge("inbox.depth", "{row}", "Unfinished inbox rows by state"),
		dead:       r.gauge("inbox.dead", "{row}", "Inbox rows that were given up, by error code"),
		leaseAge:   r.age("inbox.oldest_lease_age", "How long the oldest running row has been worked on, renewals included"),
		retryAge:   r.age("inbox.oldest_retry_age", "How long the oldest row with a failed attempt has been waiting"),
		pendingAge: r.age("inbox.oldest_pending_age", "How long the oldest row without an attempt has been waiting"),
		openPoison: r.gauge("inbox.poison_open", "{entry}", "Distinct poison that waits for an operator"),
	}
	if r.err != nil {
		return nil, fmt.Errorf("make instruments: %w", r.err)
	}
	return o.Meter.RegisterCallback(func(ctx context.Context, obs metric.Observer) error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		for _, c := range o.Consumers {
			m.consumer(obs, c)
		}
		var errs []error
		for _, b := range o.Bridges {
			errs = append(errs, m.bridge(ctx, obs, b))
		}
		if o.Inbox != nil {
			errs = append(errs, m.inbox(ctx, obs, o.Inbox))
		}
		return errors.Join(errs...)
	}, r.all...)
}

// registry makes instruments and keeps the first error.
type registry struct {
	meter metric.Meter
	all   []metric.Observable
	err   error
}

func (r *registry) counter(name, description string) metric.Int64ObservableCounter {
	i, err := r.meter.Int64ObservableCounter(name, metric.WithDescription(description))
	r.keep(i, err)
	return i
}

func (r *registry) gauge(name, unit, description string) metric.Int64ObservableGauge {
	i, err := r.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	r.keep(i, err)
	return i
}

func (r *registry) age(name, description string) metric.Float64ObservableGauge {
	i, err := r.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(description))
	r.keep(i, err)
	return i
}

func (r *registry) keep(i metric.Observable, err error) {
	if r.err == nil {
		r.err = err
	}
	r.all = append(r.all, i)
}

// metrics are the instruments.
type metrics struct {
	entries, poison, repairs, trimmed, troubles, rows     metric.Int64ObservableCounter
	lag, pending, readers, stuck, depth, dead, openPoison metric.Int64ObservableGauge
	unreadAge, leaseAge, retryAge, pendingAge             metric.Float64ObservableGauge
}

func (m metrics) consumer(obs metric.Observer, c *inbox.Consumer) {
	s := c.Stats()
	for outcome, n := range map[string]int64{
		"claimed": s.Claimed, "processed": s.Processed, "failed": s.Failed, "died": s.Died, "given_back": s.GivenBack, "lost_fence": s.LostFences,
	} {
		obs.ObserveInt64(m.rows, n, with("consumer", c.Name(), "outcome", outcome))
	}
	obs.ObserveInt64(m.troubles, s.Troubles, with("consumer", c.Name()))
}

func (m metrics) bridge(ctx context.Context, obs metric.Observer, b *inbox.Bridge) error {
	s, owner := b.Stats(), b.Owner()
	for outcome, n := range map[string]int64{
		"received": s.Received, "renumbered": s.Renumbered, "duplicate": s.Duplicates, "parked": s.Parked, "forged": s.Forged,
		"conflict": s.Conflicts, "checkpoint": s.Checkpoints, "deleted": s.Deleted, "refused": s.Refused,
	} {
		obs.ObserveInt64(m.entries, n, with("owner", owner, "outcome", outcome))
	}
	for reason, n := range s.PoisonReasons {
		obs.ObserveInt64(m.poison, n, with("owner", owner, "reason", reason))
	}
	obs.ObserveInt64(m.repairs, s.Repairs, with("owner", owner))
	obs.ObserveInt64(m.trimmed, s.Trimmed, with("owner", owner))
	obs.ObserveInt64(m.troubles, s.Troubles, with("owner", owner))
	obs.ObserveInt64(m.stuck, int64(len(s.Stuck)), with("owner", owner))
	p, err := b.Position(ctx)
	if err != nil {
		return fmt.Errorf("position of %s: %w", b.Stream(), err)
	}
	obs.ObserveInt64(m.lag, p.Lag, with("owner", owner))
	obs.ObserveInt64(m.pending, p.Pending, with("owner", owner))
	obs.ObserveInt64(m.readers, p.Consumers, with("owner", owner))
	obs.ObserveFloat64(m.unreadAge, p.OldestUnread.Seconds(), with("owner", owner))
	return nil
}

func (m metrics) inbox(ctx context.Context, obs metric.Observer, p *inbox.Postgres) error {
	s, err := p.Status(ctx)
	if err != nil {
		return err
	}
	for _, c := range s.Consumers {
		obs.ObserveInt64(m.depth, c.Pending, with("consumer", c.Consumer, "state", "pending"))
		obs.ObserveInt64(m.depth, c.Processing, with("consumer", c.Consumer, "state", "processing"))
		if len(c.DeadByCode) == 0 {
			obs.ObserveInt64(m.dead, 0, with("consumer", c.Consumer, "code", ""))
		}
		for code, n := range c.DeadByCode {
			obs.ObserveInt64(m.dead, n, with("consumer", c.Consumer, "code", code))
		}
		obs.ObserveFloat64(m.leaseAge, c.OldestLeaseAge.Seconds(), with("consumer", c.Consumer))
		obs.ObserveFloat64(m.retryAge, c.OldestRetryAge.Seconds(), with("consumer", c.Consumer))
		obs.ObserveFloat64(m.pendingAge, c.OldestPendingAge.Seconds(), with("consumer", c.Consumer))
	}
	for _, n := range s.Poison {
		obs.ObserveInt64(m.openPoison, n.Count, with("kind", string(n.Kind), "reason", n.Reason))
	}
	return nil
}

// with makes attributes of names and values in turn.
func with(pairs ...string) metric.MeasurementOption {
	attrs := make([]attribute.KeyValue, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		attrs = append(attrs, attribute.String(pairs[i], pairs[i+1]))
	}
	return metric.WithAttributes(attrs...)
}
