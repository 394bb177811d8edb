// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Position is an event's place in a ledger.
type Position struct {
	Owner     string
	LedgerID  uuid.UUID
	LedgerSeq int64
}

// TakeNumbers locks the row of Admin's own ledger until the transaction ends and takes the next n numbers. It returns
// the ledger and the first of them. It must be the last lock that the transaction takes.
func (s Store) TakeNumbers(ctx context.Context, n int) (ledger uuid.UUID, first int64, err error) {
	err = s.db.QueryRow(ctx, `
UPDATE audit_ledger SET head = head + $1, sealed_at = clock_timestamp()
WHERE singleton
RETURNING ledger_id, head - $1 + 1`, n).Scan(&ledger, &first)
	if err != nil {
		return uuid.Nil, 0, fmt.Errorf("take numbers of the admin ledger: %w", err)
	}
	return ledger, first, nil
}

// Leaf is a row of ledger_entries.
type Leaf struct {
	Position
	EventID uuid.UUID
	Hash    [32]byte
}

// InsertLeaves writes ledger entries. A number that is held already is an error.
func (s Store) InsertLeaves(ctx context.Context, leaves []Leaf) error {
	_, err := s.db.Exec(ctx, `
INSERT INTO ledger_entries (owner, ledger_id, ledger_seq, event_id, leaf_hash)
SELECT * FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::uuid[], $5::bytea[])`,
		column(leaves, func(l Leaf) string { return l.Owner }),
		column(leaves, func(l Leaf) uuid.UUID { return l.LedgerID }),
		column(leaves, func(l Leaf) int64 { return l.LedgerSeq }),
		column(leaves, func(l Leaf) uuid.UUID { return l.EventID }),
		column(leaves, func(l Leaf) []byte { return l.Hash[:] }))
	if err != nil {
		return fmt.Errorf("insert ledger entries: %w", err)
	}
	return nil
}

// Positions returns where the ledgers hold an event.
func (s Store) Positions(ctx context.Context, event uuid.UUID) ([]Position, error) {
	rows, err := s.db.Query(ctx, `
SELECT owner, ledger_id, ledger_seq FROM ledger_entries WHERE event_id = $1 ORDER BY ledger_id, ledger_seq`, event)
	if err != nil {
		return nil, fmt.Errorf("find ledger positions: %w", err)
	}
	positions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Position])
	if err != nil {
		return nil, fmt.Errorf("find ledger positions: %w", err)
	}
	return positions, nil
}
