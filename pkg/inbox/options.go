// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/pkg/envelope"
)

// BridgeOptions says what a bridge reads and where it writes. Durations may be scaled for tests with Scaled.
type BridgeOptions struct {
	// DB is the receiver's database. Required.
	DB *pgxpool.Pool
	// Source is the owner's stream. Required.
	Source Source
	// Owner is the only owner that this stream may speak for. Required.
	Owner string
	// Keys verifies the owner's entries. Required.
	Keys *envelope.Keyring
	// Catalog says what is understood and who wants it. Required.
	Catalog Catalog

	// Stream names the stream in poison and positions. Default: envelope.StreamKey(Owner).
	Stream string
	// Acked is called after a page was committed and acknowledged: the place of receipts. An error is
	// logged and does not stop the bridge. Default: none.
	Acked func(ctx context.Context, t Takeover) error
	// Checkpoint is called in the takeover's transaction for each authentic checkpoint entry. It may
	// be called again for one entry. Default: checkpoints are counted and acknowledged.
	Checkpoint func(ctx context.Context, tx Statements, e envelope.Entry) error

	// PageRows and PageBytes bound a page. The bytes of a page are known only when it is read, so the
	// count asked for follows the mean size of the page before; at twice PageBytes the read is given up,
	// and repeated in smaller pages. Defaults: 500 rows, 4 MiB.
	PageRows  int
	PageBytes int
	// Block is how long a read waits on an empty stream. Default: 1 s.
	Block time.Duration
	// ReclaimEvery is how often other consumers' idle entries are looked for. Default: 15 s.
	ReclaimEvery time.Duration
	// TidyEvery is how often the stream is trimmed and its group cleaned. Default: 10 s.
	TidyEvery time.Duration
	// RepairEvery is the least time between two attempts to make a lost group. Default: 1 s.
	RepairEvery time.Duration
	// PauseMin and PauseMax bound the backoff after trouble with broker or database. Defaults: 0.2 s, 30 s.
	PauseMin time.Duration
	PauseMax time.Duration
	// LockTimeout and IdleTimeout are set on each transaction (lock_timeout,
	// idle_in_transaction_session_timeout), so that a stopped process frees its locks. Defaults: 5 s, 20 s.
	LockTimeout time.Duration
	IdleTimeout time.Duration
	// LogEvery is the least time between two log lines of one kind of trouble. Default: 1 s.
	LogEvery time.Duration

	// Logger takes what nobody could return. Default: discarded.
	Logger *slog.Logger
	// Now and Jitter (a number in [0, 1)) come in as functions. Defaults: time.Now, math/rand.
	Now    func() time.Time
	Jitter func() float64
}

// Takeover is what one page brought, counted by entry.
type Takeover struct {
	Owner       string
	Stream      string
	LastEntryID string
	Received    int64 // new events
	Renumbered  int64 // known events, same bytes, under another number
	Duplicates  int64 // known number, event and bytes
	Parked      int64
	Forged      int64
	Conflicts   int64
	Checkpoints int64
	Deleted     int64 // deleted from the stream before they were taken over
	Refused     int64 // refused by the database alone, and still pending
	// PoisonReasons counts parked, forged and conflicting entries by reason.
	PoisonReasons map[string]int64
}

// Scaled returns o with its defaults filled and every duration divided by factor, for tests that
// speak of simulated minutes. A factor of 1 or less only fills defaults.
func (o BridgeOptions) Scaled(factor float64) BridgeOptions {
	o = o.filled()
	scale(factor, &o.Block, &o.ReclaimEvery, &o.TidyEvery, &o.RepairEvery, &o.PauseMin, &o.PauseMax, &o.LockTimeout, &o.IdleTimeout, &o.LogEvery)
	return o
}

func (o BridgeOptions) filled() BridgeOptions {
	if o.Stream == "" {
		o.Stream = envelope.StreamKey(o.Owner)
	}
	fill(&o.PageRows, 500)
	fill(&o.PageBytes, 4<<20)
	fill(&o.Block, time.Second)
	fill(&o.ReclaimEvery, 15*time.Second)
	fill(&o.TidyEvery, 10*time.Second)
	fill(&o.RepairEvery, time.Second)
	fill(&o.PauseMin, 200*time.Millisecond)
	fill(&o.PauseMax, 30*time.Second)
	fill(&o.LockTimeout, 5*time.Second)
	fill(&o.IdleTimeout, 20*time.Second)
	fill(&o.LogEvery, time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return o
}

func (o BridgeOptions) validate() error {
	switch {
	case o.DB == nil:
		return errors.New("inbox: BridgeOptions.DB is required")
	case o.Source == nil:
		return errors.New("inbox: BridgeOptions.Source is required")
	case o.Owner == "":
		return errors.New("inbox: BridgeOptions.Owner is required")
	case o.Keys == nil:
		return errors.New("inbox: BridgeOptions.Keys is required")
	case o.PageRows < 0 || o.PageRows > 10000:
		return fmt.Errorf("inbox: BridgeOptions.PageRows is %d, want 1 to 10000", o.PageRows)
	}
	err := notNegative("BridgeOptions", map[string]int64{
		"PageBytes": int64(o.PageBytes), "Block": int64(o.Block), "ReclaimEvery": int64(o.ReclaimEvery), "TidyEvery": int64(o.TidyEvery),
		"RepairEvery": int64(o.RepairEvery), "PauseMin": int64(o.PauseMin), "PauseMax": int64(o.PauseMax),
		"LockTimeout": int64(o.LockTimeout), "IdleTimeout": int64(o.IdleTimeout), "LogEvery": int64(o.LogEvery),
	})
	if err != nil {
		return err
	}
	return o.Catalog.validate()
}

// ConsumerOptions says who consumes what and how. Durations may be scaled for tests with Scaled.
type ConsumerOptions struct {
	// DB is the receiver's database. Required.
	DB *pgxpool.Pool
	// Name is the consumer's name, part of every row's key: a-z, 0-9 and "-". Required.
	Name string
	// Handler applies events. Required.
	Handler Handler
	// Wants says which events the consumer subscribes to. Default: all.
	Wants func(owner, eventType string) bool

	// OutsideEffects says that the handler acts outside its transaction. Such an effect can happen
	// again, so IdempotencyKey is then required: the handler passes Event.IdempotencyKey to the other side.
	OutsideEffects bool
	// IdempotencyKey makes the key of one event; the same for every attempt. Default: none.
	IdempotencyKey func(Event) string

	// LeaseOwner names this process in its leases, for people. Default: host name and process id.
	LeaseOwner string
	// Workers is how many batches are worked on at once. Default: 1.
	Workers int
	// PageRows and PageBytes bound a batch. Defaults: 500 rows, 4 MiB.
	PageRows  int
	PageBytes int
	// MaxAttempts is how many starts a row gets. Default: 10.
	MaxAttempts int
	// AloneAfter is how many failed starts make a row run in a batch of its own. Default: 3.
	AloneAfter int
	// Lease is how long a claim lasts without renewal, Renew how often it is renewed. Defaults: 30 s, 10 s.
	Lease time.Duration
	Renew time.Duration
	// Budget is how long one call of the handler may take. It must be less than IdleTimeout. Default: 15 s.
	Budget time.Duration
	// BackoffUnit doubles with each attempt (2^n units) up to BackoffMax. Defaults: 1 s, 17 min.
	BackoffUnit time.Duration
	BackoffMax  time.Duration
	// Poll is how long an idle worker waits without a Wake, give or take a quarter. Default: 1 s.
	Poll time.Duration
	// ScanEvery is how often a busy worker looks at all open rows again, and not only at those above
	// its low-water mark: a retry, an expired lease or a late commit waits this long at most. Default: 1 s.
	ScanEvery time.Duration
	// PauseMin and PauseMax bound the backoff after trouble with the database. Defaults: 0.2 s, 30 s.
	PauseMin time.Duration
	PauseMax time.Duration
	// LockTimeout and IdleTimeout are set on each transaction (lock_timeout,
	// idle_in_transaction_session_timeout). IdleTimeout must be less than Lease, so that a stopped
	// process frees its locks before its rows are claimed again. Defaults: 5 s, 20 s.
	LockTimeout time.Duration
	IdleTimeout time.Duration
	// LogEvery is the least time between two log lines of one kind of trouble. Default: 1 s.
	LogEvery time.Duration

	// Logger takes what nobody could return. Default: discarded.
	Logger *slog.Logger
	// Now and Jitter (a number in [0, 1)) come in as functions. Defaults: time.Now, math/rand.
	Now    func() time.Time
	Jitter func() float64
}

// Scaled returns o with its defaults filled and every duration divided by factor, for tests that
// speak of simulated minutes. A factor of 1 or less only fills defaults.
func (o ConsumerOptions) Scaled(factor float64) ConsumerOptions {
	o = o.filled()
	scale(factor, &o.Lease, &o.Renew, &o.Budget, &o.BackoffUnit, &o.BackoffMax, &o.Poll, &o.ScanEvery,
		&o.PauseMin, &o.PauseMax, &o.LockTimeout, &o.IdleTimeout, &o.LogEvery)
	return o
}

func (o ConsumerOptions) filled() ConsumerOptions {
	if o.LeaseOwner == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.LeaseOwner = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	fill(&o.Workers, 1)
	fill(&o.PageRows, 500)
	fill(&o.PageBytes, 4<<20)
	fill(&o.MaxAttempts, 10)
	fill(&o.AloneAfter, 3)
	fill(&o.Lease, 30*time.Second)
	fill(&o.Renew, 10*time.Second)
	fill(&o.Budget, 15*time.Second)
	fill(&o.BackoffUnit, time.Second)
	fill(&o.BackoffMax, 17*time.Minute)
	fill(&o.Poll, time.Second)
	fill(&o.ScanEvery, time.Second)
	fill(&o.PauseMin, 200*time.Millisecond)
	fill(&o.PauseMax, 30*time.Second)
	fill(&o.LockTimeout, 5*time.Second)
	fill(&o.IdleTimeout, 20*time.Second)
	fill(&o.LogEvery, time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return o
}

func (o ConsumerOptions) validate() error {
	switch {
	case o.DB == nil:
		return errors.New("inbox: ConsumerOptions.DB is required")
	case o.Handler == nil:
		return errors.New("inbox: ConsumerOptions.Handler is required")
	case o.OutsideEffects && o.IdempotencyKey == nil:
		return fmt.Errorf("inbox: consumer %q acts outside its transaction and has no IdempotencyKey: "+
			"after a crash its effect would happen twice", o.Name)
	case o.PageRows < 0 || o.PageRows > 10000:
		return fmt.Errorf("inbox: ConsumerOptions.PageRows is %d, want 1 to 10000", o.PageRows)
	}
	err := notNegative("ConsumerOptions", map[string]int64{
		"Workers": int64(o.Workers), "PageBytes": int64(o.PageBytes), "MaxAttempts": int64(o.MaxAttempts), "AloneAfter": int64(o.AloneAfter),
		"Lease": int64(o.Lease), "Renew": int64(o.Renew), "Budget": int64(o.Budget), "BackoffUnit": int64(o.BackoffUnit),
		"BackoffMax": int64(o.BackoffMax), "Poll": int64(o.Poll), "ScanEvery": int64(o.ScanEvery), "PauseMin": int64(o.PauseMin),
		"PauseMax": int64(o.PauseMax), "LockTimeout": int64(o.LockTimeout), "IdleTimeout": int64(o.IdleTimeout), "LogEvery": int64(o.LogEvery),
	})
	if err != nil {
		return err
	}
	f := o.filled()
	switch {
	case f.Renew*2 > f.Lease:
		return fmt.Errorf("inbox: consumer %q renews every %v: a lease of %v needs at least two renewals", o.Name, f.Renew, f.Lease)
	case f.Budget >= f.IdleTimeout:
		return fmt.Errorf("inbox: consumer %q: the budget of %v must be less than the idle time-out of %v", o.Name, f.Budget, f.IdleTimeout)
	case f.IdleTimeout >= f.Lease:
		return fmt.Errorf("inbox: consumer %q: the idle time-out of %v must be less than the lease of %v", o.Name, f.IdleTimeout, f.Lease)
	}
	return validName(o.Name)
}

// notNegative refuses the first value, by its field's name, that is below zero: zero alone stands for the default.
func notNegative(options string, values map[string]int64) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if values[name] < 0 {
			return fmt.Errorf("inbox: %s.%s must not be negative", options, name)
		}
	}
	return nil
}

// fill sets a zero value to its default.
func fill[T int | time.Duration](v *T, standard T) {
	if *v == 0 {
		*v = standard
	}
}

// scale divides durations, none below a millisecond: Postgres counts time-outs in those.
func scale(factor float64, ds ...*time.Duration) {
	if factor <= 1 {
		return
	}
	for _, d := range ds {
		*d = max(time.Duration(float64(*d)/factor), time.Millisecond)
	}
}
