// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package pgdb

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/devserver"
)

// server is a Postgres of this package's own: its tests change server settings and cut its connections.
var server = sync.OnceValues(func() (*devserver.Postgres, error) {
	p, stop, err := devserver.StartThrowaway(context.Background())
	stopServer = stop
	return p, err
})

var (
	stopServer func() error
	databases  atomic.Int64
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if stopServer != nil {
		if err := stopServer(); err != nil {
			fmt.Fprintln(os.Stderr, "stop Postgres:", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// database makes an empty database and returns its configuration.
func database(t *testing.T) Config {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Postgres; -short leaves it out")
	}
	p, err := server()
	if err != nil {
		t.Fatalf("start Postgres: %v", err)
	}
	name := fmt.Sprintf("t%d", databases.Add(1))
	admin, err := pgx.Connect(t.Context(), p.URL("postgres", devserver.Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.Background())
	if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return Config{URL: config.Secret(p.URL(name, devserver.Superuser)), ApplicationName: strings.ReplaceAll(t.Name(), "/", ".")}
}

// open returns a pool on a fresh database.
func open(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return pool(t, database(t))
}

func pool(t *testing.T, c Config) *pgxpool.Pool {
	t.Helper()
	db, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { // Close waits for connections that a failed test may still hold
			defer close(closed)
			db.Close()
		}()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Errorf("%d connections were never given back", db.Stat().AcquiredConns())
		}
	})
	return db
}

func exec(t *testing.T, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func one[T any](t *testing.T, db *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// eventually waits until check returns nil.
func eventually(t *testing.T, patience time.Duration, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("still after %s: %v", patience, err)
		case <-tick.C:
		}
	}
}
