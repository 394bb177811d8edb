// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command auth is the service that owns accounts, sessions and the login policy: "auth serve", or without an argument.
// "auth bootstrap" makes the first operator, once; "auth healthcheck" asks the running service whether it is ready.
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

	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/rpc"
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
	if cfg.command != "serve" {
		return cfg.once(ctx, stderr)
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
	keys, err := cfg.openKeys()
	if err != nil {
		return err
	}

	// 4 domain: what it commits, the dispatcher carries on
	dispatcher, err := cfg.dispatcher(moverDB, broker, tel)
	if err != nil {
		return err
	}
	accounts, err := auth.New(cfg.accounts(db, keys, dispatcher, tel))
	if err != nil {
		return err
	}

	// 5 background
	housekeeper := auth.Housekeeper{Auth: accounts}

	// 6 transport
	server, err := cfg.server(tel, keys, rpc.Config{DB: db, Auth: accounts, Wake: dispatcher.Wake})
	if err != nil {
		return err
	}
	debug, err := telemetry.NewDebugServer(cfg.debug(tel, db, broker))
	if err != nil {
		return err
	}

	// 7 run until told to stop
	group, ctx := errgroup.WithContext(ctx)
	for _, loop := range []func(context.Context) error{dispatcher.Run, housekeeper.Run, server.Run, debug.Run} {
		group.Go(func() error { return loop(ctx) })
	}
	return group.Wait()
}
