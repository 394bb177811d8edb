// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command mutations breaks one promise at a time and sees its named test turn red.
//
// Each file NAME.patch in this folder begins with a header and goes on with a unified
// diff of one hunk against one file:
//
//	promise: what would no longer hold (the row of docs/guarantees.md)
//	package: ./pkg/outbox
//	test: TestSettle/a_lost_claim
//
//	--- a/pkg/outbox/sql.go
//	+++ b/pkg/outbox/sql.go
//	@@ …
//
// The tree itself is never touched: the broken file is put in its place by the
// compiler's -overlay. A patch that no longer applies, does not compile, or whose
// test stays green is a failure. Arguments choose patches by a part of their name.
//
// It does not prove that a test is sharp in general, only that it notices this fault.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/internal/devserver"
)

// atOnce is how many mutations run side by side: compiling takes most of the time.
const atOnce = 2

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, want []string) error {
	chosen, err := choose(filepath.Join("test", "mutations"), want)
	if err != nil {
		return err
	}
	if _, err := devserver.FindRedis(ctx); err != nil {
		return err
	}
	postgres, stop, err := devserver.StartThrowaway(ctx)
	if err != nil {
		return err
	}
	begin := time.Now()
	survived := each(ctx, chosen, postgres.URL("postgres", devserver.Superuser))
	if err := errors.Join(ctx.Err(), stop()); err != nil {
		return err
	}
	fmt.Printf("mutations: %d tried, %d caught in %.0f s\n", len(chosen), len(chosen)-survived, time.Since(begin).Seconds())
	if survived > 0 {
		return fmt.Errorf("%d of %d were not caught as they must be", survived, len(chosen))
	}
	return nil
}

// choose reads the patches whose names contain any of want; all if want is empty.
func choose(dir string, want []string) ([]mutation, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, fmt.Errorf("list patches: %w", err)
	}
	var chosen []mutation
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".patch")
		if len(want) > 0 && !containsAny(name, want) {
			continue
		}
		m, err := read(file)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, m)
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no patch in %s is named like %q: run it from the top of the tree", dir, want)
	}
	return chosen, nil
}

func containsAny(name string, parts []string) bool {
	for _, part := range parts {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// each tries all mutations, prints a line for each, and returns how many were not caught.
func each(ctx context.Context, all []mutation, url string) (survived int) {
	var group errgroup.Group
	var mu sync.Mutex
	group.SetLimit(atOnce)
	for _, m := range all {
		group.Go(func() error {
			begin := time.Now()
			err := m.try(ctx, url)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				survived++
				fmt.Printf("FAIL    %-44s %v\n", m.name, err)
				return nil
			}
			fmt.Printf("caught  %-44s %s in %.1f s\n", m.name, m.test, time.Since(begin).Seconds())
			return nil
		})
	}
	_ = group.Wait() // every outcome is counted and printed above
	return survived
}
