// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command admin records the events of all owners in the audit log and answers questions about them: "admin serve", or
// without an argument. "admin healthcheck" asks the running service whether it is ready.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
	"github.com/counterfoil/counterfoil/services/admin/internal/rpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", service, err)
		os.Exit(1)
	}
}

// run runs one subcommand until it is done or ctx ends. Tests call it, too: it keeps nothing in globals.
func run(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer) error {
	// 1 config
	cfg, err := load(args, getenv)
	if err != nil {
		return err
	}
	if cfg.command == "healthcheck" {
		return telemetry.CheckReady(ctx, cfg.DebugAddr)
	}

	// 2 telemetry
	tel, err := cfg.telemetry(ctx, stderr)
	if err != nil {
		return err
	}
	defer func() { _ = tel.Shutdown(context.WithoutCancel(ctx)) }()

	// 3 resources
	db, moverDB, err := cfg.open(ctx, tel)
	if err != nil {
		return err
	}
	defer db.Close()
	defer moverDB.Close()

	// 4 domain
	intake, err := admin.NewIntake(cfg.intake(moverDB, tel))
	if err != nil {
		return err
	}
	defer func() { _ = intake.Close() }()
	operations, err := admin.New(admin.Options{
		DB: db, Inbox: intake.Inbox(), Streams: intake.Streams(), Log: tel.Logger, Meter: tel.Meter(service),
	})
	if err != nil {
		return err
	}

	// 5 background: a bridge for each stream, a consumer for each thing done with its events, retention
	loops := intake.Loops()

	// 6 transport
	verifier, access, err := cfg.access(operations)
	if err != nil {
		return err
	}
	server, err := cfg.server(tel, access)
	if err != nil {
		return err
	}
	rpc.Register(server, operations, cfg.tokens)
	debug, err := telemetry.NewDebugServer(cfg.debug(tel, db, verifier, intake))
	if err != nil {
		return err
	}

	// 7 run until told to stop
	group, ctx := errgroup.WithContext(ctx)
	for _, loop := range append(loops, server.Run, debug.Run) {
		group.Go(func() error { return loop(ctx) })
	}
	return group.Wait()
}
