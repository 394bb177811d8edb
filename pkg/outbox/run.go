// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The defaults of a page, and of the wait between two looks.
const (
	defaultRows  = 500
	defaultBytes = 8 << 20
	defaultPoll  = time.Second
)

// defaulted returns v, or standard if v is the zero value.
func defaulted[T comparable](v, standard T) T {
	var zero T
	if v == zero {
		return standard
	}
	return v
}

// count returns a callback that adds the affected rows to n.
func count(n *int64) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		*n += tag.RowsAffected()
		return nil
	}
}

// roundTrip sends queued statements as one READ COMMITTED transaction in one
// round trip. Its commit does not wait for the disk: it is for what may be
// repeated. What callbacks collected is valid only if the error is nil.
func roundTrip(ctx context.Context, db *pgxpool.Pool, queue func(*pgx.Batch)) error {
	conn, err := db.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	batch := &pgx.Batch{}
	batch.Queue(sqlBegin)
	batch.Queue(sqlAsync)
	queue(batch)
	batch.Queue(sqlCommit)
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		rollback(ctx, conn)
		return err
	}
	return nil
}

// rollback gives the connection back clean; the pool closes it if that fails.
func rollback(ctx context.Context, conn *pgxpool.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, sqlRollback) // the pool looks at the connection's state, not at this error
}

// wait returns when d has passed, wake has a value, or ctx ends.
func wait(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

// linger returns a context that outlives ctx by grace: work in hand is finished
// or given back before it ends.
func linger(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		wait(out, grace, nil)
		cancel()
	})
	return out, func() {
		stop()
		cancel()
	}
}
