// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command bench measures the whole path on real servers with fsync on and the shipped services as processes: how fast a
// backlog goes from an owner's outbox to audit_logs, how long a committed action takes to be recorded under a steady
// load, and what an event costs the business transaction that records it.
//
// Absolute rates do not travel from one machine to another; ratios measured in one sitting do. With -floor it therefore
// runs a program that does the least work the path needs, turn by turn with the path itself and on the same servers.
// It prints tables and writes bench.json. It judges nothing: it fails only when it cannot measure.
//
// What is measured how:
//   - drain: the service auth is stopped (SIGSTOP), 100 000 events of a working day are appended in the name of its
//     role, the clock starts when it continues and ends when audit_logs holds them all. Both consumers take every one.
//   - latency: business transactions with AppendBatch begin at fixed times, whether or not earlier ones have ended (an
//     open loop), and wake the owner's dispatcher, which runs in this process as it does in the service; on two cores,
//     1000 calls of a gRPC API in a second would leave little to measure (-load grpc does that). What is taken is the
//     time from the owner's commit to the commit of the audit_logs row, both by track_commit_timestamp on one server, so
//     no other clock takes part.
//   - business: one INSERT in a transaction of its own, at 16 writers, with no event, with outbox.Append and with
//     outbox.AppendBatch, this with the guard of audited tables and without it, in short turns. Delivery is stopped
//     meanwhile: the drain measures that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options is what the flags say.
type options struct {
	floor   string
	out     string
	events  int
	rounds  int
	seconds int
	parts   []string

	load       string
	statements bool
}

func main() {
	var o options
	var parts string
	flag.StringVar(&o.floor, "floor", "", "folder of a Go program whose -drain sets the floor; none: no comparison")
	flag.StringVar(&o.out, "o", "bench.json", "file for the results")
	flag.IntVar(&o.events, "events", 100_000, "events of a backlog")
	flag.IntVar(&o.rounds, "rounds", 3, "turns of each measurement of which the median counts")
	flag.IntVar(&o.seconds, "seconds", 15, "seconds of each latency run")
	flag.StringVar(&parts, "parts", "fresh,idle,drain,large,latency,business", "what to measure")
	flag.StringVar(&o.load, "load", "append", "the load of latency runs: append, or grpc for calls of App's API, which need most of two cores themselves")
	flag.BoolVar(&o.statements, "statements", false, "show which statements take the servers' time in a drain; counting them takes some, too")
	flag.Parse()
	o.parts = strings.Split(parts, ",")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, orphaned := context.WithCancelCause(ctx)
	go watchParent(ctx, orphaned)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", errors.Join(err, context.Cause(ctx)))
		os.Exit(1)
	}
}

// errOrphaned ends a run whose starter is gone: `go run` does not pass on what ends it.
var errOrphaned = errors.New("the program that started the benchmark has ended")

// watchParent ends the run when the process that started this one ends.
func watchParent(ctx context.Context, end context.CancelCauseFunc) {
	parent := os.Getppid()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if os.Getppid() != parent {
				end(errOrphaned)
				return
			}
		}
	}
}

// run measures what is asked for, in an order in which no part disturbs the next.
func run(ctx context.Context, o options, w io.Writer) (err error) {
	b, err := open(ctx, o, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	r := &results{Machine: machine()}
	for _, part := range []struct {
		name string
		do   func(context.Context, *results) error
	}{
		{"fresh", b.fresh}, {"idle", b.idle}, {"drain", b.drains}, {"large", b.large}, {"latency", b.latencies}, {"business", b.business},
	} {
		if !slices.Contains(o.parts, part.name) {
			continue
		}
		if err := part.do(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	r.print(w)
	return r.write(o.out)
}
