// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package pgdb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// attempts bounds how often a function runs because of serialization failures, deadlocks and lost idle connections.
	attempts = 6
	// staleAttempts bounds how often it runs because of stale plans: each retry closes a connection that holds one, so
	// the bound only has to exceed the size of any sensible pool.
	staleAttempts = 200
	retryBase     = 5 * time.Millisecond
	retryCap      = 200 * time.Millisecond
	rollbackWait  = 2 * time.Second
	commitWait    = 10 * time.Second
)

// Beginner starts transactions: a *pgxpool.Pool or a *pgx.Conn.
type Beginner interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}

// InTx runs fn in one READ COMMITTED transaction, whatever default_transaction_isolation says (BC-10), and commits it if
// fn returns nil.
//
// fn can run more than once: after a serialization failure (40001), a deadlock (40P01) or a plan that a migration made
// stale, everything is rolled back and fn runs again, a bounded number of times with jitter. It must therefore hold
// only database work on tx and assignments that a second run overwrites: no RPC, no broker, no append to outer slices.
//
// A nil result means committed. An error means rolled back, with one exception that CommitUnknown recognises: the reply
// to COMMIT was lost. If ctx ends while fn runs, or before COMMIT is sent, the transaction is rolled back under a short
// context of its own, so that no session is left idle in a transaction (BC-11). A COMMIT that was sent is awaited up to
// 10 s, even if ctx ends, because its outcome matters to the caller. If fn panics, the transaction is rolled back and
// the panic goes on.
func InTx(ctx context.Context, db Beginner, fn func(tx pgx.Tx) error) error {
	return retry(ctx, func() error { return once(ctx, db, fn) })
}

// Retry runs fn, a single statement outside a transaction, under the same rules for running again as InTx. It is for
// reads: a write that may have happened must not be repeated blindly.
func Retry(ctx context.Context, fn func() error) error {
	return retry(ctx, fn)
}

func retry(ctx context.Context, fn func() error) error {
	for tried, stale := 1, 1; ; {
		err := fn()
		switch {
		case err == nil, CommitUnknown(err), ctx.Err() != nil:
			return err
		case isStalePlan(err):
			if stale++; stale > staleAttempts {
				return fmt.Errorf("after %d attempts: %w", staleAttempts, err)
			}
			continue // the connection is closed: no need to wait
		case !transient(err):
			return err
		}
		if tried++; tried > attempts {
			return fmt.Errorf("after %d attempts: %w", attempts, err)
		}
		if !pause(ctx, tried) {
			return err
		}
	}
}

// pause waits with exponential backoff and full jitter; false means that ctx ended.
func pause(ctx context.Context, tried int) bool {
	ceiling := min(retryBase<<tried, retryCap)
	timer := time.NewTimer(rand.N(ceiling)) //nolint:gosec // jitter needs no secrecy
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// transient says that the same function may succeed if it runs again now. BEGIN on a connection that had died in the pool
// is repeated too, since it did nothing; a server that refuses new connections is not asked again.
func transient(err error) bool {
	var (
		begin   *beginError
		connect *pgconn.ConnectError
	)
	if errors.As(err, &begin) && !errors.As(err, &connect) {
		return Trouble(err)
	}
	code := Code(err)
	return code == serializationFailure || code == deadlockDetected
}

func once(ctx context.Context, db Beginner, fn func(tx pgx.Tx) error) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return &beginError{err}
	}
	finished := false
	defer func() { // also on a panic and on runtime.Goexit
		if !finished {
			rollback(ctx, tx)
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before commit: %w", err)
	}
	finished = true
	return commit(ctx, tx)
}

func commit(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitWait)
	defer cancel()
	err := tx.Commit(ctx)
	if err == nil {
		return nil
	}
	// An answer of the server, or a COMMIT that was never sent, is a known outcome.
	answered := Code(err) != "" && !connectionCode(Code(err))
	unsent := errors.Is(err, pgx.ErrTxClosed) || pgconn.SafeToRetry(err)
	if answered || unsent || errors.Is(err, pgx.ErrTxCommitRollback) {
		return fmt.Errorf("commit: %w", err)
	}
	return &commitUnknownError{err}
}

// rollback ends tx under a context of its own. Its error is of no use: a connection that cannot roll back is closed by
// the pool, and the server rolls back what a closed connection leaves.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWait)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// beginError marks that no statement of the transaction was sent.
type beginError struct{ err error }

func (e *beginError) Error() string { return "begin: " + e.err.Error() }
func (e *beginError) Unwrap() error { return e.err }

// commitUnknownError marks a COMMIT whose reply was lost.
type commitUnknownError struct{ err error }

func (e *commitUnknownError) Error() string { return "commit, outcome unknown: " + e.err.Error() }
func (e *commitUnknownError) Unwrap() error { return e.err }

// CommitUnknown says that InTx lost the reply to its COMMIT: the transaction is committed or rolled back, and only
// reading tells which. A request id makes the call safe to repeat.
func CommitUnknown(err error) bool {
	var e *commitUnknownError
	return errors.As(err, &e)
}
