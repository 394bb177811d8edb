// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxotel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/counterfoil/counterfoil/pkg/outbox"
)

// Reader is what the gauges read; *outbox.Postgres is one.
type Reader interface {
	// Backlog counts what is open; it is cheap.
	Backlog(ctx context.Context) (outbox.Snapshot, error)
	// Status counts everything; it reads the whole table.
	Status(ctx context.Context) (outbox.Snapshot, error)
}

// MetricsOptions configures Register. Reader or Dispatcher, or both, must be there.
type MetricsOptions struct {
	Reader     Reader
	Dispatcher interface{ Stats() outbox.Stats }
	// Fresh is how old a read of the backlog may be. Default 5 s.
	Fresh time.Duration
	// FullEvery is how old a read of all statuses may be. Default 1 min.
	FullEvery time.Duration
	// Timeout bounds a read. Default 2 s.
	Timeout time.Duration
	// Now is this process's clock. Default time.Now.
	Now func() time.Time
}

// Register makes the gauges and counters of one outbox. The returned function
// removes them. When a read fails, its gauges are absent from that collection and
// counterfoil_outbox_read_failures_total grows.
func Register(provider metric.MeterProvider, o MetricsOptions) (unregister func() error, err error) {
	if o.Reader == nil && o.Dispatcher == nil {
		return nil, errors.New("outboxotel: Reader or Dispatcher is required")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	for d, standard := range map[*time.Duration]time.Duration{
		&o.Fresh: 5 * time.Second, &o.FullEvery: time.Minute, &o.Timeout: 2 * time.Second,
	} {
		if *d == 0 {
			*d = standard
		}
	}
	m := &metrics{o: o}
	b := builder{meter: provider.Meter(scope)}
	m.make(&b)
	if b.err != nil {
		return nil, fmt.Errorf("outbox metrics: %w", b.err)
	}
	registration, err := b.meter.RegisterCallback(m.observe, b.all...)
	if err != nil {
		return nil, fmt.Errorf("outbox metrics: %w", err)
	}
	return registration.Unregister, nil
}

// builder makes instruments and keeps the first error.
type builder struct {
	meter metric.Meter
	all   []metric.Observable
	err   error
}

func (b *builder) gauge(name, unit, description string) metric.Float64Observable {
	g, err := b.meter.Float64ObservableGauge("counterfoil_outbox_"+name, metric.WithUnit(unit), metric.WithDescription(description))
	return b.add(g, err)
}

func (b *builder) counter(name, description string) metric.Float64Observable {
	c, err := b.meter.Float64ObservableCounter("counterfoil_outbox_"+name, metric.WithDescription(description))
	return b.add(c, err)
}

func (b *builder) add(o metric.Float64Observable, err error) metric.Float64Observable {
	b.err = errors.Join(b.err, err)
	b.all = append(b.all, o)
	return o
}

type metrics struct {
	o MetricsOptions

	depth, oldest, unsealed, held, head, dead                              metric.Float64Observable
	outcomes, lost, released, sealed, storeErrors, publishes, readFailures metric.Float64Observable
	failures, open, lastSuccess                                            metric.Float64Observable

	mu            sync.Mutex
	backlog, full cached
	failed        float64
}

// cached is a read and when it was made.
type cached struct {
	at   time.Time
	snap outbox.Snapshot
	err  error
}

func (m *metrics) make(b *builder) {
	m.depth = b.gauge("entries", "{entry}", "Entries by status.")
	m.oldest = b.gauge("oldest_undelivered_seconds", "s", "Age of the oldest entry that is not delivered.")
	m.unsealed = b.gauge("unsealed_entries", "{entry}", "Committed entries without a number.")
	m.held = b.gauge("claims_held", "{entry}", "Live claims.")
	m.head = b.gauge("ledger_head", "{entry}", "Highest number given.")
	m.dead = b.gauge("dead_entries", "{entry}", "FAILED and DEAD_LETTERED entries by code.")
	m.outcomes = b.counter("outcomes_total", "Settled outcomes by status.")
	m.lost = b.counter("lost_claims_total", "Entries whose claim was gone when they were to be settled.")
	m.released = b.counter("released_claims_total", "Entries given back without an outcome.")
	m.sealed = b.counter("sealed_total", "Events numbered.")
	m.storeErrors = b.counter("store_errors_total", "Failed statements.")
	m.publishes = b.counter("publishes_total", "Pages handed to the publisher.")
	m.readFailures = b.counter("read_failures_total", "Collections that could not read the outbox.")
	m.failures = b.gauge("consecutive_failures", "{page}", "Pages with broker trouble since the last success.")
	m.open = b.gauge("circuit_open", "1", "1 while the broker is in trouble.")
	m.lastSuccess = b.gauge("last_success_timestamp_seconds", "s", "When the broker last accepted an entry.")
}

func (m *metrics) observe(ctx context.Context, obs metric.Observer) error {
	if m.o.Dispatcher != nil {
		m.observeStats(obs, m.o.Dispatcher.Stats())
	}
	if m.o.Reader == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read(ctx, &m.backlog, m.o.Fresh, m.o.Reader.Backlog)
	m.read(ctx, &m.full, m.o.FullEvery, m.o.Reader.Status)
	if m.backlog.err == nil {
		s := m.backlog.snap
		for status, n := range s.Depth {
			obs.ObserveFloat64(m.depth, float64(n), withStatus(status))
		}
		obs.ObserveFloat64(m.oldest, s.OldestUndelivered.Seconds())
		obs.ObserveFloat64(m.unsealed, float64(s.Unsealed))
		obs.ObserveFloat64(m.held, float64(s.ClaimsHeld))
		obs.ObserveFloat64(m.head, float64(s.Head))
	}
	if m.full.err == nil {
		for status, n := range m.full.snap.Depth {
			if !status.Open() {
				obs.ObserveFloat64(m.depth, float64(n), withStatus(status))
			}
		}
		for code, n := range m.full.snap.DeadByReason {
			obs.ObserveFloat64(m.dead, float64(n), metric.WithAttributes(attribute.String("code", code)))
		}
	}
	obs.ObserveFloat64(m.readFailures, m.failed)
	return nil
}

// read refreshes c if it is older than fresh. A failed read is tried again at the next collection.
func (m *metrics) read(ctx context.Context, c *cached, fresh time.Duration, read func(context.Context) (outbox.Snapshot, error)) {
	now := m.o.Now()
	if !c.at.IsZero() && c.err == nil && now.Sub(c.at) < fresh {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	c.snap, c.err = read(ctx)
	c.at = now
	if c.err != nil {
		m.failed++
	}
}

func (m *metrics) observeStats(obs metric.Observer, s outbox.Stats) {
	for status, n := range map[outbox.Status]int64{
		outbox.StatusDelivered: s.Delivered, outbox.StatusDeferred: s.Deferred, outbox.StatusRetryableFailure: s.Retried,
		outbox.StatusFailed: s.Failed, outbox.StatusDeadLettered: s.DeadLettered,
	} {
		obs.ObserveFloat64(m.outcomes, float64(n), withStatus(status))
	}
	for counter, n := range map[metric.Float64Observable]int64{
		m.lost: s.Lost, m.released: s.Released, m.sealed: s.Sealed, m.storeErrors: s.StoreErrors, m.publishes: s.Publishes,
		m.failures: int64(s.ConsecutiveFailures),
	} {
		obs.ObserveFloat64(counter, float64(n))
	}
	open := 0.0
	if s.CircuitOpen {
		open = 1
	}
	obs.ObserveFloat64(m.open, open)
	if !s.LastSuccess.IsZero() {
		obs.ObserveFloat64(m.lastSuccess, float64(s.LastSuccess.UnixMilli())/1000)
	}
}

func withStatus(s outbox.Status) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("status", string(s)))
}
