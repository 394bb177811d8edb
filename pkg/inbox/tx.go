// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// patience is what a rollback, a mark with its commit, or a give-back may take when the caller's
// context has ended already: the work is short and worth finishing.
const patience = 10 * time.Second

const (
	sqlBegin  = "begin isolation level read committed"
	sqlCommit = "commit"
)

// begin returns the statements that open a transaction. The isolation is named whatever the role's
// default is (40001 is nobody's failure here, BC-10).
func begin(lock, idle time.Duration, synchronous bool) string {
	return sqlBegin + "; " + settings(lock, idle, synchronous)
}

// settings returns the statement that sets a transaction's parameters: the time-outs make a stopped
// process free its locks; plans are made for the arrays at hand, since a plan that was made for an
// empty table stays a sequential scan.
func settings(lock, idle time.Duration, synchronous bool) string {
	commit := "on"
	if !synchronous {
		commit = "off"
	}
	return fmt.Sprintf(`select set_config('lock_timeout', '%d', true), set_config('idle_in_transaction_session_timeout', '%d', true),
set_config('synchronous_commit', '%s', true), set_config('plan_cache_mode', 'force_custom_plan', true)`,
		millis(lock), millis(idle), commit)
}

// byIndex is added where only this package's own statements run: pages are small and every look-up in
// them has its index, but a table that was just made looks as if it were quicker read whole. Plans then
// depend on nothing that changes, and are made once: for a small page that is most of the work.
const byIndex = `, set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true),
set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`

func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }

// inTx runs fn in one transaction. A panic in fn rolls back and goes on.
func inTx(ctx context.Context, db *pgxpool.Pool, beginSQL string, fn func(tx pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{BeginQuery: beginSQL})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer rollback(ctx, tx)
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Statements runs statements in a transaction that somebody else began and will end.
type Statements interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// onConn runs fn on a connection, where fn sends begin and commit along with its first and last
// statements: each round trip of its own costs as much as the statements do. What fn leaves open, by
// an error or a panic, is rolled back.
func onConn(ctx context.Context, db *pgxpool.Pool, fn func(conn *pgxpool.Conn) error) error {
	return db.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		defer func() {
			if conn.Conn().PgConn().TxStatus() == 'I' {
				return
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			defer cancel()
			_, _ = conn.Exec(ctx, "rollback") // the pool looks at the connection's state, not at this error
		}()
		return fn(conn)
	})
}

// oneTrip sends queued statements as one transaction in one round trip. What callbacks collected is
// valid only if the error is nil.
func oneTrip(ctx context.Context, db *pgxpool.Pool, settings string, queue func(*pgx.Batch)) error {
	return onConn(ctx, db, func(conn *pgxpool.Conn) error {
		var batch pgx.Batch
		batch.Queue(sqlBegin)
		batch.Queue(settings)
		queue(&batch)
		batch.Queue(sqlCommit)
		return conn.SendBatch(ctx, &batch).Close()
	})
}

// rollback ends tx if it is still open. If even that fails, pgx closes the connection, which rolls back.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// trouble says that err is the database's own and nobody's attempt: SQLSTATE classes 08, 40, 53, 57
// and 58, the codes 55P03, 25006 and 25P03, and a connection that could not be made or broke.
func trouble(err error) bool {
	if p, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch p.Code {
		case "55P03", "25006", "25P03":
			return true
		}
		switch p.Code[:min(2, len(p.Code))] {
		case "08", "40", "53", "57", "58":
			return true
		}
		return false
	}
	return disconnected(err)
}

// disconnected says that the connection was not there or went away.
func disconnected(err error) bool {
	if p, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(p.Code, "08") || strings.HasPrefix(p.Code, "57P")
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	// A deadline is a net.Error too: a context that ended says nothing about the database.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err)
}

// guardedTx is the transaction that a handler gets: ending it is the package's part.
type guardedTx struct{ pgx.Tx }

var errHandlerEnds = errors.New("inbox: a handler must not commit or roll back its transaction")

// Commit refuses.
func (guardedTx) Commit(context.Context) error { return errHandlerEnds }

// Rollback refuses.
func (guardedTx) Rollback(context.Context) error { return errHandlerEnds }
