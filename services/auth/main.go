// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command auth is the service that owns accounts, sessions and the login policy, and signs access tokens.
//
//	auth serve        (or no argument) runs the service
//	auth bootstrap    makes the first operator and the login policy, once
//	auth healthcheck  asks the running service whether it is ready, and exits with 1 if not
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
)

// service is the name that logger, metrics, tracer and application_name derive from.
const service = "auth"

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
	if cfg.command != "serve" {
		return cfg.once(ctx, stderr)
	}

	// 2 telemetry
	tel, err := telemetry.Setup(ctx, cfg.telemetry(stderr))
	if err != nil {
		return err
	}
	defer func() { _ = tel.Shutdown(context.WithoutCancel(ctx)) }()
	tel.Logger.InfoContext(ctx, "configuration", "config", config.Redacted(&cfg))

	// 3 resources
	db, moverDB, err := cfg.openDatabases(ctx, tel)
	if err != nil {
		return err
	}
	defer func() { moverDB.Close(); db.Close() }()
	keys, err := cfg.openKeys()
	if err != nil {
		return err
	}

	// 4 domain
	delivery, err := auth.NewDelivery(cfg.delivery(moverDB, tel))
	if err != nil {
		return err
	}
	defer func() { _ = delivery.Close() }()
	accounts, err := auth.New(cfg.accounts(db, keys, delivery, tel))
	if err != nil {
		return err
	}

	// 5 background: the dispatcher that carries the events on, and housekeeping
	loops := []func(context.Context) error{delivery.Run, auth.Housekeeper{DB: db, Logger: tel.Logger}.Run}

	// 6 transport
	server, err := cfg.serve(tel, db, accounts, keys, delivery)
	if err != nil {
		return err
	}
	debug, err := telemetry.NewDebugServer(cfg.debug(tel, db, delivery))
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
