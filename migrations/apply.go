// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

// State is one migration as a database sees it.
type State struct {
	Version   int64
	File      string
	Applied   bool
	AppliedAt time.Time // zero while not applied
}

// Apply brings the database at url to the newest version. It connects as url says and acts as the owner's role, to
// which a superuser is switched; url may name a transaction pooler. Two connections are used.
//
// Any number of calls may run at once: one works, the others wait for it and then find nothing to do. Each file is one
// transaction together with its version number, so a call that is cancelled or killed leaves whole files behind, and
// the next one goes on from there at once.
func Apply(ctx context.Context, url, owner string) error {
	dir, err := Files(owner)
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("parse database url: %w", err)
	}
	return apply(ctx, config, owner, dir)
}

// apply is Apply with any folder of files.
func apply(ctx context.Context, config *pgx.ConnConfig, owner string, dir fs.FS) error {
	err := withProvider(config, owner, dir, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("migrate %s: %w", owner, err)
	}
	return nil
}

// DownTo takes back every migration above version; 0 empties the database. Released schemas go forward only: this is
// for tests.
func DownTo(ctx context.Context, url, owner string, version int64) error {
	dir, err := Files(owner)
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("parse database url: %w", err)
	}
	err = withProvider(config, owner, dir, func(p *goose.Provider) error {
		_, err := p.DownTo(ctx, version)
		return err
	})
	if err != nil {
		return fmt.Errorf("migrate %s down to %d: %w", owner, version, err)
	}
	return nil
}

// Status lists the migrations that this program knows, in order, and whether the database at url has them. It waits
// for nobody; on an empty database it makes goose's version table and nothing else.
func Status(ctx context.Context, url, owner string) ([]State, error) {
	dir, err := Files(owner)
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	var states []State
	err = withProvider(config, owner, dir, func(p *goose.Provider) error {
		all, err := p.Status(ctx)
		for _, s := range all {
			states = append(states, State{
				Version: s.Source.Version, File: s.Source.Path,
				Applied: s.State == goose.StateApplied, AppliedAt: s.AppliedAt,
			})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read migration status of %s: %w", owner, err)
	}
	return states, nil
}

// withProvider opens the database, calls work and closes it again.
func withProvider(config *pgx.ConnConfig, owner string, dir fs.FS, work func(*goose.Provider) error) (err error) {
	config = config.Copy()
	if config.User != OwnerRole(owner) {
		config.RuntimeParams["role"] = OwnerRole(owner)
	}
	// A prepared statement would stay behind on a pooled backend. And the portal of an extended query stays open to the
	// end of its transaction, with its snapshot: the lock's transaction would keep CREATE INDEX CONCURRENTLY waiting.
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	db := stdlib.OpenDB(*config)
	defer func() { err = errors.Join(err, db.Close()) }()

	p, err := goose.NewProvider(goose.DialectPostgres, db, dir, goose.WithLocker(&txLock{}))
	if err != nil {
		return fmt.Errorf("read migration files: %w", err)
	}
	return work(p)
}

// lockKey is the advisory lock that serialises the migrations of one database.
const lockKey = int64(7164014003)

// lockPoll is the pause between two tries for the lock.
const lockPoll = 100 * time.Millisecond

// txLock is goose's lock as a transaction of its own that holds an advisory lock until it ends.
//
// A session lock taken through a transaction pooler stays on a pooled backend that nobody owns (BC-15). A transaction
// pins its backend, and server and pooler both roll it back as soon as its client is gone, so nothing is left to expire.
// Waiters try and end their transaction again: one that waited inside a statement would hold a snapshot, for which the
// holder's CREATE INDEX CONCURRENTLY would wait for ever (BC-16).
type txLock struct {
	tx *sql.Tx
}

// Lock waits until this process alone migrates the database, or until ctx ends.
func (l *txLock) Lock(ctx context.Context, db *sql.DB) error {
	for {
		tx, err := tryLock(ctx, db)
		if err != nil || tx != nil {
			l.tx = tx
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for another migration: %w", ctx.Err())
		case <-time.After(lockPoll):
		}
	}
}

// tryLock returns the transaction that holds the lock, or nil if another process holds it.
func tryLock(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	// The transaction outlives ctx: the lock is kept until the migration that ctx cancelled has ended too.
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return nil, fmt.Errorf("begin lock transaction: %w", err)
	}
	var got bool
	err = tx.QueryRowContext(ctx, `
		SELECT set_config('idle_in_transaction_session_timeout', '0', true) IS NOT NULL AND pg_try_advisory_xact_lock($1)`,
		lockKey).Scan(&got)
	if err == nil && got {
		return tx, nil
	}
	if rollbackErr := tx.Rollback(); err == nil && rollbackErr != nil {
		err = rollbackErr
	}
	if err != nil {
		return nil, fmt.Errorf("take migration lock: %w", err)
	}
	return nil, nil
}

// Unlock ends the transaction. An error means that the lock had been lost with its connection.
func (l *txLock) Unlock(context.Context, *sql.DB) error {
	if err := l.tx.Rollback(); err != nil {
		return fmt.Errorf("release migration lock: %w", err)
	}
	return nil
}
