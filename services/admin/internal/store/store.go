// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package store holds Admin's statements on its own tables: the audit log, Admin's own ledger and the security rules'
// notes. Each method is one statement and takes part in the caller's transaction.
//
// It decides nothing: what may be written, and in which order locks are taken, is the business of package admin. The
// inbox tables belong to package inbox.
package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Querier is what the statements need of a pool or of a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
}

// Store runs the statements. It holds no state, so one may be made for each transaction.
type Store struct {
	db Querier
}

// New returns a store on a pool or, for what must be atomic with other statements, on a transaction.
func New(db Querier) Store { return Store{db: db} }
