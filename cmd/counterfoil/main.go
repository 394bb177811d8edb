// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command counterfoil is the operator's and developer's way to talk to the three services: accounts and policy at Auth,
// projects at App, the audit log and the delivery of events at Admin.
//
//	counterfoil login ada@example.com
//	counterfoil audit list --since 1h
//	counterfoil trace 01980000-0000-7000-8000-000000000001
//
// It speaks gRPC and nothing else: it can do no more than the API allows the account that is logged in. Tables are for
// people and may change; scripts use -o json and the exit codes, which `counterfoil --help` lists. See README.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv)
	stop()
	os.Exit(code)
}
