// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/migrations"
	"github.com/counterfoil/counterfoil/test/harness"
)

// writers is how many transactions the business part runs at once.
const writers = 16

// bench is the running system and the ways into it.
type bench struct {
	o      options
	w      io.Writer
	system *harness.System
	pools  map[string]*pgxpool.Pool // by owner, with the rights of its service
	floor  *floor                   // nil: no comparison
	macKey string                   // that drainOwner signs with
}

// open starts everything.
func open(ctx context.Context, o options, w io.Writer) (*bench, error) {
	b := &bench{o: o, w: w, pools: map[string]*pgxpool.Pool{}, macKey: "bench:" + strings.Repeat("5eed", 16)}
	// When a transaction committed, to the microsecond, and whoever asks: see latency.go.
	// wal_compression is as in deploy/compose/compose.yaml.
	settings := map[string]string{"track_commit_timestamp": "on", "wal_compression": "lz4"}
	if o.statements {
		maps.Copy(settings, statementSettings())
	}
	var err error
	b.system, err = harness.Start(ctx, harness.Options{Postgres: settings, Log: b.say, ServiceEnv: map[string]map[string]string{
		drainOwner: {"MAC_KEYS": b.macKey}, "admin": {"MAC_KEYS_AUTH": b.macKey},
	}})
	if err != nil {
		return nil, err
	}
	for _, owner := range []string{"auth", "app"} {
		if b.pools[owner], err = b.openAs(ctx, owner); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	// The events of drain and latency tell of rows that are not there.
	if err := testdb.WithoutGuard(ctx, b.system.DB(drainOwner)); err != nil {
		return nil, errors.Join(fmt.Errorf("take the guard away: %w", err), b.close())
	}
	if o.floor != "" {
		if b.floor, err = b.openFloor(ctx); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	return b, nil
}

// openAs opens a pool that has the rights of the owner's service and no more.
func (b *bench) openAs(ctx context.Context, owner string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(b.system.Postgres(owner).URL(owner, devserver.Superuser))
	if err != nil {
		return nil, fmt.Errorf("parse url: %w", err)
	}
	config.MaxConns = writers
	config.ConnConfig.RuntimeParams["role"] = migrations.ServiceRole(owner)
	config.ConnConfig.RuntimeParams["application_name"] = "bench"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database of %s: %w", owner, err)
	}
	return pool, nil
}

func (b *bench) close() error {
	for _, pool := range b.pools {
		pool.Close()
	}
	if b.floor != nil {
		b.floor.close()
	}
	return b.system.Close()
}

// say prints what is being done.
func (b *bench) say(format string, args ...any) { _, _ = fmt.Fprintf(b.w, format+"\n", args...) }

// superuserURL is a connection string without parameters, for a program that adds its own.
func (b *bench) superuserURL(database string) string {
	u, err := url.Parse(b.system.Postgres("admin").URL(database, devserver.Superuser))
	if err != nil {
		return ""
	}
	u.RawQuery = ""
	return u.String()
}

// quiet waits until everything that was appended is recorded and handled by every consumer.
func (b *bench) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return harness.Poll(ctx, func() error { return b.busy(ctx) })
}

// busy tells what is still to be done, or nil.
func (b *bench) busy(ctx context.Context) error {
	sent := 0
	for _, owner := range []string{"auth", "app"} {
		var open, delivered int
		err := b.system.DB(owner).QueryRow(ctx, `
			SELECT count(*) FILTER (WHERE ledger_seq IS NULL OR status IN ('PENDING', 'DEFERRED', 'RETRYABLE_FAILURE')),
			       count(*) FILTER (WHERE status = 'DELIVERED')
			FROM audit_outbox`).Scan(&open, &delivered)
		if err != nil {
			return fmt.Errorf("count outbox of %s: %w", owner, err)
		}
		if open > 0 {
			return fmt.Errorf("%s: %d events to deliver", owner, open)
		}
		sent += delivered
	}
	var taken, unfinished int
	err := b.system.DB("admin").QueryRow(ctx, `
		SELECT (SELECT count(*) FROM ledger_entries), (SELECT count(*) FROM consumer_inbox WHERE finished_at IS NULL)`).
		Scan(&taken, &unfinished)
	if err != nil {
		return fmt.Errorf("count inbox: %w", err)
	}
	if taken < sent || unfinished > 0 {
		return fmt.Errorf("%d of %d events are taken over, %d inbox rows to handle", taken, sent, unfinished)
	}
	return nil
}

// checkpoint writes everything out, so that the next measurement pays for its own pages only.
func (b *bench) checkpoint(ctx context.Context) error {
	if _, err := b.system.DB("admin").Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// fullPageWrites switches full-page images, which a checkpoint makes necessary, on or off.
func (b *bench) fullPageWrites(ctx context.Context, value string) error {
	for _, sql := range []string{"ALTER SYSTEM SET full_page_writes = " + value, "SELECT pg_reload_conf()"} {
		if _, err := b.system.DB("admin").Exec(ctx, sql); err != nil {
			return fmt.Errorf("set full_page_writes: %w", err)
		}
	}
	return harness.Poll(ctx, func() error {
		var now string
		if err := b.system.DB("admin").QueryRow(ctx, "SHOW full_page_writes").Scan(&now); err != nil {
			return err
		}
		if now != value {
			return fmt.Errorf("full_page_writes is still %s", now)
		}
		return nil
	})
}
