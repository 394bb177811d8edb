// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package pgdb opens Postgres pools, runs transactions, and tells a statement's failure from the database's own trouble.
//
// It promises that a transaction is either committed or rolled back when InTx returns, or says that the outcome is not
// known; and that a pool recovers by itself from restarts, failovers and migrations. It does not hide an outage: a
// statement that meets one fails, and Trouble says so. It knows no table.
package pgdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"github.com/counterfoil/counterfoil/internal/config"
)

const (
	defaultMaxConns       = 10
	defaultConnectTimeout = 5 * time.Second
	maxConnLifetime       = time.Hour
)

// Config says how to reach one database. The zero value of each field but URL works.
type Config struct {
	// URL is a connection string or URL; it usually holds a password. Several hosts with target_session_attrs=read-write
	// let the pool follow a failover.
	URL config.Secret
	// ApplicationName is shown in pg_stat_activity; default: what URL says.
	ApplicationName string
	// MaxConns bounds the pool; default 10.
	MaxConns int32
	// MinConns are kept open; default 0.
	MinConns int32
	// ConnectTimeout bounds one attempt to connect; default 5 s.
	ConnectTimeout time.Duration
	// RuntimeParams are sent at connection start, beside TimeZone=UTC. Time-outs belong to the role, not here.
	RuntimeParams map[string]string
	// TracerProvider makes a span per statement, without its parameters; nil makes none.
	TracerProvider trace.TracerProvider
}

// MoverConfig returns c for the loops that poll queue tables: with "-mover" after the application name, and without
// spans, because an idle loop would make one per poll.
func MoverConfig(c Config) Config {
	c.TracerProvider = nil
	if c.ApplicationName != "" {
		c.ApplicationName += "-mover"
	}
	return c
}

// Open makes a pool; the caller closes it. It fails on a configuration that can never work, and not because the server
// is away: a service starts, is not ready, and becomes ready when the database does. Ping is the readiness check.
//
// A connection on which the server answers 25006 (it is a read-only standby now) or 0A000 "cached plan must not change
// result type" (a migration changed a column) is closed instead of being returned to the pool, whoever ran the
// statement (BC-12, BC-13). A deliberately read-only transaction that tries to write therefore loses its connection.
func Open(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(c.URL.Reveal())
	if err != nil {
		// The cause quotes the string, and its redaction cannot know every malformed password.
		return nil, errors.New("database URL: not a valid Postgres connection string (not shown: it may hold a password)")
	}
	pc.MaxConns = defaultMaxConns
	if c.MaxConns > 0 {
		pc.MaxConns = c.MaxConns
	}
	pc.MinConns = min(c.MinConns, pc.MaxConns)
	pc.MaxConnLifetime = maxConnLifetime
	pc.MaxConnLifetimeJitter = maxConnLifetime / 10
	cc := pc.ConnConfig
	cc.ConnectTimeout = defaultConnectTimeout
	if c.ConnectTimeout > 0 {
		cc.ConnectTimeout = c.ConnectTimeout
	}
	cc.RuntimeParams["timezone"] = "UTC"
	if c.ApplicationName != "" {
		cc.RuntimeParams["application_name"] = c.ApplicationName
	}
	maps.Copy(cc.RuntimeParams, c.RuntimeParams)
	keep := cc.OnPgError
	cc.OnPgError = func(conn *pgconn.PgConn, e *pgconn.PgError) bool {
		return keep(conn, e) && e.Code != readOnlyTransaction && !stalePlan(e)
	}
	if c.TracerProvider != nil {
		cc.Tracer = otelpgx.NewTracer(otelpgx.WithTracerProvider(c.TracerProvider), otelpgx.WithDisableAcquireTracer())
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("open database pool: %w", err)
	}
	return pool, nil
}

// Ping asks the database for an answer: nil, or why there was none.
func Ping(ctx context.Context, db *pgxpool.Pool) error {
	if err := db.Ping(ctx); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	return nil
}
