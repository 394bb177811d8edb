// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations

import (
	"context"
	"database/sql"
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// ApplyFiles is Apply with a folder of the test's own.
func ApplyFiles(ctx context.Context, url, owner string, dir fs.FS) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	return apply(ctx, config, owner, dir)
}

// TryLock takes the migration lock, or returns nil if another holds it.
func TryLock(ctx context.Context, db *sql.DB) (*sql.Tx, error) { return tryLock(ctx, db) }
