// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command testrun runs `go test` on real servers: it finds or installs Postgres and Redis, starts one Postgres for all
// packages, hands its address to the tests in COUNTERFOIL_TEST_POSTGRES, and sees to it that nothing is left running at the
// end. Its arguments are those of `go test`.
//
//	testrun ./...
//	testrun -run 'TestClaim' ./pkg/outbox
//
// Tests run with the race detector if there is a C compiler or one can be installed; otherwise without, and it says so. With
// CI=true a missing compiler or a skipped test is a failure. A process that a test left behind always is.
//
// It does not promise durability: the tests' Postgres runs with fsync off. Tests that need a server with other settings, or
// one to kill, start their own through internal/devserver.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/counterfoil/counterfoil/internal/devserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(1)
	}
}

// run is one whole run; an error means that not everything is as it should be.
func run(ctx context.Context, args []string, getenv func(string) string, out io.Writer) error {
	begin := time.Now()
	ci := getenv("CI") == "true"
	if err := adoptOrphans(); err != nil {
		return err
	}
	race, err := raceDetector(ctx, ci, out)
	if err != nil {
		return err
	}
	if _, err := devserver.FindRedis(ctx); err != nil { // once, before many tests ask for it
		return err
	}
	stop := func() error { return nil }
	url := getenv(devserver.EnvTestPostgres)
	if url == "" {
		var p *devserver.Postgres
		if p, stop, err = devserver.StartThrowaway(ctx); err != nil {
			return err
		}
		url = p.URL("postgres", devserver.Superuser)
	}

	rep := newReport(out)
	testErr := goTest(ctx, goTestArgs(race, args), race, url, rep)
	stopErr := stop()
	left := sweep(os.Getpid(), 5*time.Second)
	rep.summary(race, time.Since(begin))
	switch {
	case errors.Join(testErr, stopErr) != nil:
		return errors.Join(testErr, stopErr)
	case len(left) > 0:
		return fmt.Errorf("tests left processes running (killed now): %s", strings.Join(left, ", "))
	case ci && len(rep.skipped) > 0:
		return fmt.Errorf("%d tests were skipped, which CI=true forbids", len(rep.skipped))
	}
	return nil
}

// raceDetector tells whether tests can run with the race detector, which needs a C compiler.
func raceDetector(ctx context.Context, ci bool, out io.Writer) (bool, error) {
	_, err := devserver.FindGCC(ctx)
	if err == nil {
		return true, nil
	}
	if ci {
		return false, fmt.Errorf("CI=true demands the race detector: %w", err)
	}
	_, err = fmt.Fprintf(out, "testrun: WITHOUT the race detector: %v\n", err)
	return false, err
}

// goTestArgs puts our defaults before the caller's arguments, which win.
func goTestArgs(race bool, args []string) []string {
	all := []string{"test", "-json", "-timeout", "11m"}
	if race {
		all = append(all, "-race")
	}
	if len(args) == 0 {
		args = []string{"./..."}
	}
	return append(all, args...)
}
