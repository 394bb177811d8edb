// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
)

// Consumer applies events for one named consumer. Any number may run for one name, here and in
// other processes: a row is worked on by the one whose lease token it carries.
type Consumer struct {
	o     ConsumerOptions
	log   *throttle
	wake  chan struct{}
	once  sync.Mutex
	first *worker // the one that Once uses, and Run's first
	count consumerCounts
}

// ConsumerStats counts since the start of the process.
type ConsumerStats struct {
	Claimed    int64 // rows, each claim counted
	Processed  int64
	Failed     int64 // failed attempts, those that ended in DEAD included
	Died       int64 // rows that became DEAD
	GivenBack  int64 // rows given back with their attempt
	LostFences int64 // rows that a settle or mark no longer held; a renewal passes over them
	Troubles   int64 // passes that database trouble ended
}

type consumerCounts struct {
	claimed, processed, failed, died, givenBack, lostFences, troubles atomic.Int64
}

// NewConsumer checks the options and fills their defaults. It refuses a handler with outside effects
// and no idempotency key. It connects to nothing.
func NewConsumer(o ConsumerOptions) (*Consumer, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o = o.filled()
	c := &Consumer{o: o, log: newThrottle(o.Logger.With(slog.String("consumer", o.Name)), o.LogEvery, o.Now), wake: make(chan struct{}, 1)}
	c.first = newWorker(c)
	return c, nil
}

// Run works until ctx ends. Then it gives back at once what it holds, attempts included, and returns
// nil. Database trouble is waited out and ends nothing. Run at most once at a time.
func (c *Consumer) Run(ctx context.Context) error {
	c.once.Lock()
	defer c.once.Unlock()
	var workers sync.WaitGroup
	for i := range c.o.Workers {
		w := c.first
		if i > 0 {
			w = newWorker(c)
		}
		workers.Go(func() { w.run(ctx) })
	}
	workers.Wait()
	return nil
}

// Once claims one batch, applies it, and returns how many rows became PROCESSED. It does not wait
// for work. The error is trouble with the database, or ctx's; a handler's failure is recorded with
// its row and is not returned. After a crash at any point the rows are claimed again when their
// lease has expired.
func (c *Consumer) Once(ctx context.Context) (int, error) {
	c.once.Lock()
	defer c.once.Unlock()
	defer c.first.beat.close()
	c.first.lookEverywhere()
	done, _, err := c.first.pass(ctx)
	return done, err
}

// Wake makes an idle Run look at once. It never blocks and is safe for concurrent use.
func (c *Consumer) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Name returns the consumer's name.
func (c *Consumer) Name() string { return c.o.Name }

// Subscription is what to give a bridge's [Catalog] for this consumer.
func (c *Consumer) Subscription() Subscription {
	return Subscription{Consumer: c.o.Name, Wants: c.o.Wants, Wake: c.Wake}
}

// Stats returns counters since the start. It is safe for concurrent use.
func (c *Consumer) Stats() ConsumerStats {
	n := &c.count
	return ConsumerStats{
		Claimed: n.claimed.Load(), Processed: n.processed.Load(), Failed: n.failed.Load(), Died: n.died.Load(),
		GivenBack: n.givenBack.Load(), LostFences: n.lostFences.Load(), Troubles: n.troubles.Load(),
	}
}
