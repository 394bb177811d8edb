// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command demo runs the whole system and shows what it does: people work, Admin and Redis are killed under them and come
// back, and every action that was committed is in the audit log, once and byte for byte.
//
// Without flags it needs no Docker: it starts private servers and the built services below .dev/ and leaves nothing
// running, however it ends. With -compose it plays the same day against the system that `make up` started, and kills and
// starts its containers.
//
// Everything printed is read from the system or measured. The last line is "demo: ok actions=N recorded=N missing=0
// duplicates=0", with exit code 0, or begins with "demo: FAILED", with exit code 1.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/counterfoil/counterfoil/test/demo/report"
)

func main() {
	compose := flag.Bool("compose", false, "play against the containers of `make up`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, orphaned := context.WithCancelCause(ctx)
	go watchParent(ctx, orphaned)
	err := run(ctx, *compose, 1, os.Stdout)
	stop()
	os.Exit(verdict(os.Stdout, err))
}

// verdict prints the last line of a run that failed, and returns the exit code.
func verdict(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	report.Printf(w, "demo: FAILED %s\n", strings.Join(strings.Split(err.Error(), "\n"), "; "))
	return 1
}

// errOrphaned ends a run whose starter is gone: `go run` does not pass on what ends it.
var errOrphaned = errors.New("the program that started the demo has ended")

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
