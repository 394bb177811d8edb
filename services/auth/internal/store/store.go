// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package store holds Auth's statements on its own tables, and the values that
// they read and write.
//
// Reads are methods of Queries and run where it was made: on the pool, or on a
// transaction whose locks they then hold. Writes queue themselves on a pgx.Batch,
// so that rows and events leave in one round trip (outbox.AppendBatch); each
// refuses to have changed any number of rows but the one it means. The package
// decides nothing: what may be written is the business of package auth.
//
// Everything about one user is changed under the lock of the user's row, taken
// first (LockUser). Further locks follow in the order sessions, refresh tokens.
package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pgdb"
)

// Querier is what reads need of a pool or of a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// Queries runs the reads. It holds no state, so one may be made for each transaction.
type Queries struct {
	db Querier
}

// New returns the reads on a pool or, for what must hold until a write, on a transaction.
func New(db Querier) Queries { return Queries{db: db} }

// ErrChanged is a write that did not find its row at the version it was read at. It cannot happen under the row's lock.
var ErrChanged = errors.New("row is not at the expected version")

// write queues a statement that must change exactly want rows.
func write(b *pgx.Batch, what string, want int64, sql string, args ...any) {
	queued := b.Queue(sql, args...)
	queued.Fn = func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", what, translate(err))
		case tag.RowsAffected() != want:
			return fmt.Errorf("%s: %d rows instead of %d: %w", what, tag.RowsAffected(), want, ErrChanged)
		}
		return nil
	}
}

// writeAny queues a statement that may change any number of rows.
func writeAny(b *pgx.Batch, what, sql string, args ...any) {
	queued := b.Queue(sql, args...)
	queued.Fn = func(results pgx.BatchResults) error {
		if _, err := results.Exec(); err != nil {
			return fmt.Errorf("%s: %w", what, translate(err))
		}
		return nil
	}
}

// translate gives the constraints that a caller can run into a kind and a reason; other errors stay as they are.
func translate(err error) error {
	switch {
	case pgdb.IsUnique(err, "users_email_key"):
		return apperr.AlreadyExists("EMAIL_TAKEN", "another account has this address").WithCause(err)
	case pgdb.IsUnique(err, "role_grants_user_role_key"):
		return apperr.AlreadyExists("ROLE_ALREADY_GRANTED", "the account has this role already").WithCause(err)
	}
	return err
}

// notFound turns the absence of a row into the caller's answer.
func notFound(err error, what string, missing *apperr.Error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return missing
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// resourceName joins a collection and an id.
func resourceName(collection string, id uuid.UUID) string { return collection + "/" + id.String() }
