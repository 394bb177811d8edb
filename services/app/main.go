// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command app is the service that owns projects and their members: "app serve", or without an argument. "app
// healthcheck" asks the running service whether it is ready.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/rpc"
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
	broker := redis.NewClient(cfg.redis)
	defer func() { _ = broker.Close() }()

	// 4 domain: what it commits, the dispatcher carries on
	dispatcher, err := cfg.dispatcher(moverDB, broker, tel)
	if err != nil {
		return err
	}
	projects := app.New(app.Config{DB: db, Logger: tel.Logger, Wake: dispatcher.Wake})

	// 5 background
	pruner := idempotency.Pruner{DB: db, Logger: tel.Logger}

	// 6 transport
	verifier, access, err := cfg.access(projects)
	if err != nil {
		return err
	}
	server, err := cfg.server(tel, access)
	if err != nil {
		return err
	}
	if err := rpc.Register(server, cfg.api(db, projects, dispatcher)); err != nil {
		return err
	}
	debug, err := telemetry.NewDebugServer(cfg.debug(tel, db, verifier, broker))
	if err != nil {
		return err
	}

	// 7 run until told to stop
	group, ctx := errgroup.WithContext(ctx)
	for _, loop := range []func(context.Context) error{dispatcher.Run, pruner.Run, server.Run, debug.Run} {
		group.Go(func() error { return loop(ctx) })
	}
	return group.Wait()
}
