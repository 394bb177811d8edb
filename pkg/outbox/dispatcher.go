// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// DispatcherOptions configures a Dispatcher. Store and Publisher are required;
// every other zero value works. Leases, delays and backoffs are measured by the
// store's clock, polls and the circuit by this process's.
type DispatcherOptions struct {
	// Store is where the entries are. Required.
	Store Store
	// Publisher is where they go. Required.
	Publisher Publisher
	// Sealer numbers events before each claim, also while the circuit is open. Default none.
	Sealer *Sealer
	// Name names this dispatcher in claim_owner, for people. Default host:pid.
	Name string
	// PageRows and PageBytes bound a page. Default 500 and 8 MiB.
	PageRows  int
	PageBytes int64
	// Lease is how long a claim lasts without renewal. Default 30 s.
	Lease time.Duration
	// Renew is how often a page in flight is renewed; less than half of Lease. Default 10 s.
	Renew time.Duration
	// Poll is the longest wait between two looks when nobody calls Wake; the
	// real one is 75 to 100 % of it. Default 1 s.
	Poll time.Duration
	// AloneAfter is how many claims without an outcome make an entry go alone. Default 3.
	AloneAfter int
	// MaxClaims is how many claims alone without an outcome dead-letter an entry. Default 20.
	MaxClaims int
	// RetryUnit and RetryMax shape the backoff of an entry's own failures: 2ⁿ units, at most RetryMax. Default 1 s and 5 min.
	RetryUnit, RetryMax time.Duration
	// CircuitMin and CircuitMax shape the backoff of broker trouble: doubling from one to the other, full jitter. Default 0.2 s and 30 s.
	CircuitMin, CircuitMax time.Duration
	// StopGrace is how long Run takes at most, after its context ended, to
	// finish or give back what it holds. Default 1 s.
	StopGrace time.Duration
	// Logger gets changes of state: database trouble, the circuit, lost claims. Default none.
	Logger *slog.Logger
	// Now is this process's clock. Default time.Now.
	Now func() time.Time
	// Rand returns a number in [0, 1), for jitter. Default math/rand/v2.
	Rand func() float64
	// NewToken returns a fresh random claim token. Default uuid.New.
	NewToken func() uuid.UUID
}

// Scaled returns o with defaults filled in and every duration divided by
// factor, so that a test can live through minutes in seconds. A factor of 1 or
// less only fills defaults.
func (o DispatcherOptions) Scaled(factor float64) DispatcherOptions {
	o = o.withDefaults()
	factor = max(factor, 1)
	for _, d := range []*time.Duration{
		&o.Lease, &o.Renew, &o.Poll, &o.RetryUnit, &o.RetryMax, &o.CircuitMin, &o.CircuitMax, &o.StopGrace,
	} {
		*d = max(time.Millisecond, time.Duration(float64(*d)/factor))
	}
	return o
}

func (o DispatcherOptions) withDefaults() DispatcherOptions {
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	o.PageRows = defaulted(o.PageRows, defaultRows)
	o.PageBytes = defaulted(o.PageBytes, defaultBytes)
	o.Lease = defaulted(o.Lease, 30*time.Second)
	o.Renew = defaulted(o.Renew, 10*time.Second)
	o.Poll = defaulted(o.Poll, defaultPoll)
	o.AloneAfter = defaulted(o.AloneAfter, 3)
	o.MaxClaims = defaulted(o.MaxClaims, 20)
	o.RetryUnit = defaulted(o.RetryUnit, time.Second)
	o.RetryMax = defaulted(o.RetryMax, 5*time.Minute)
	o.CircuitMin = defaulted(o.CircuitMin, 200*time.Millisecond)
	o.CircuitMax = defaulted(o.CircuitMax, 30*time.Second)
	o.StopGrace = defaulted(o.StopGrace, time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	if o.NewToken == nil {
		o.NewToken = uuid.New
	}
	return o
}

// validate checks options that have their defaults (T7).
func (o DispatcherOptions) validate() error {
	switch {
	case o.Store == nil:
		return errors.New("a Store is required")
	case o.Publisher == nil:
		return errors.New("a Publisher is required")
	case o.PageRows < 1 || o.PageBytes < 1:
		return errors.New("values of PageRows and PageBytes must be positive")
	case o.Lease <= 0 || o.Renew <= 0 || o.Lease < 2*o.Renew:
		return fmt.Errorf("a Lease of %v must be at least twice Renew, %v, and both positive", o.Lease, o.Renew)
	case o.Poll <= 0 || o.StopGrace <= 0:
		return errors.New("values of Poll and StopGrace must be positive")
	case o.AloneAfter < 1 || o.MaxClaims < 1:
		return errors.New("values of AloneAfter and MaxClaims must be positive")
	case o.RetryUnit <= 0 || o.RetryMax < o.RetryUnit:
		return errors.New("value of RetryUnit must be positive and at most RetryMax")
	case o.CircuitMin <= 0 || o.CircuitMax < o.CircuitMin:
		return errors.New("value of CircuitMin must be positive and at most CircuitMax")
	}
	return nil
}

// Dispatcher moves entries from the store to the publisher.
type Dispatcher struct {
	o       DispatcherOptions
	wake    chan struct{}
	running atomic.Bool
	circuit *circuit
	stats   stats

	mu           sync.Mutex
	lastAccepted time.Time // by the store's clock
	olderAt      time.Time // when numbered entries are looked for again
}

// NewDispatcher returns a Dispatcher. It does no I/O; the error lists what is wrong with the options.
func NewDispatcher(o DispatcherOptions) (*Dispatcher, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("outbox: DispatcherOptions: %w", err)
	}
	return &Dispatcher{
		o: o, wake: make(chan struct{}, 1),
		circuit: &circuit{least: o.CircuitMin, most: o.CircuitMax, rand: o.Rand},
	}, nil
}

// Wake makes Run look at once. It never blocks, may be called from anywhere and
// any number of times, and does nothing if Run does not run. Call it after the
// business transaction committed.
func (d *Dispatcher) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Once is one pass: seal, claim a page, publish it, settle it. It returns how
// many entries it claimed. Tests call it; it must not run beside Run. If ctx
// ends meanwhile, the pass gives back what it holds within StopGrace.
func (d *Dispatcher) Once(ctx context.Context) (int, error) {
	work, cancel := linger(ctx, d.o.StopGrace)
	defer cancel()
	d.lookForOlder()
	t, err := d.take(work)
	defer d.keepRenewing(work, t.page)()
	return len(t.page.Messages), errors.Join(err, d.deliver(ctx, work, t))
}

// Run moves entries until ctx ends, and then returns nil within StopGrace,
// having settled or released what it claimed. Trouble of database and broker is
// logged when it begins and ends, and waited out. It returns an error only if it
// runs already. It may be called again after it returned.
//
// While a page is with the broker, Run claims the next one.
func (d *Dispatcher) Run(ctx context.Context) error {
	if !d.running.CompareAndSwap(false, true) {
		return errors.New("outbox: the dispatcher is running already")
	}
	defer d.running.Store(false)
	work, cancel := linger(ctx, d.o.StopGrace)
	defer cancel()

	var f flight
	land := func() {
		if err := f.land(); err != nil {
			d.o.Logger.WarnContext(ctx, "outbox page not settled: it goes out again after its lease", slog.Any("error", err))
		}
	}
	defer land()
	d.lookForOlder()
	trouble := 0 // passes in a row that the database failed
	for ctx.Err() == nil {
		t, err := d.take(work)
		stop := d.keepRenewing(work, t.page) // from now on: the page before may take long to land
		land()
		d.noteDatabase(ctx, &trouble, err)
		switch {
		case err != nil && len(t.page.Messages) == 0:
			wait(ctx, d.databasePause(trouble), nil)
			continue
		case len(t.page.Messages) == 0:
		case ctx.Err() != nil, !t.probe && d.circuit.isOpen():
			stop()
			d.release(work, t.page.Token, t.page.IDs())
		default:
			f.start(func() error {
				defer stop()
				return d.deliver(ctx, work, t)
			})
			if t.probe || t.page.Alone {
				land() // nothing may be in flight beside it
			}
		}
		if !t.again {
			wait(ctx, d.pause(), d.wake)
		}
	}
	return nil
}

// flight is the one page that is with the broker while the next is claimed.
type flight struct{ done chan error }

func (f *flight) start(deliver func() error) {
	f.done = make(chan error, 1)
	go func() { f.done <- deliver() }()
}

// land waits for the page in flight, if there is one.
func (f *flight) land() error {
	if f.done == nil {
		return nil
	}
	err := <-f.done
	f.done = nil
	return err
}

// pause is how long Run sleeps: until the next poll, or the circuit's next probe.
func (d *Dispatcher) pause() time.Duration {
	poll := time.Duration(float64(d.o.Poll) * (0.75 + 0.25*d.o.Rand()))
	if probe, open := d.circuit.untilProbe(d.o.Now()); open {
		return min(poll, max(probe, time.Millisecond))
	}
	return poll
}

// databasePause grows from CircuitMin to five polls.
func (d *Dispatcher) databasePause(failures int) time.Duration {
	return jittered(d.o.CircuitMin, max(d.o.CircuitMin, 5*d.o.Poll), failures, d.o.Rand)
}

func (d *Dispatcher) noteDatabase(ctx context.Context, trouble *int, err error) {
	switch {
	case err != nil && ctx.Err() == nil:
		if *trouble++; *trouble == 1 {
			d.o.Logger.ErrorContext(ctx, "outbox store trouble", slog.Any("error", err))
		}
		d.stats.storeErrors.Add(1)
	case err == nil && *trouble > 0:
		d.o.Logger.InfoContext(ctx, "outbox store trouble is over", slog.Int("failed_passes", *trouble))
		*trouble = 0
	}
}
