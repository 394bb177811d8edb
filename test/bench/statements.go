// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
)

// statementSettings load the extension that counts statements.
func statementSettings() map[string]string {
	return map[string]string{"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.max": "1000"}
}

// resetStatements begins to count.
func (b *bench) resetStatements(ctx context.Context) error {
	if !b.o.statements {
		return nil
	}
	for _, sql := range []string{"CREATE EXTENSION IF NOT EXISTS pg_stat_statements", "SELECT pg_stat_statements_reset()"} {
		if _, err := b.system.DB("admin").Exec(ctx, sql); err != nil {
			return fmt.Errorf("count statements: %w", err)
		}
	}
	return nil
}

// printStatements shows where the servers' time went since resetStatements.
func (b *bench) printStatements(ctx context.Context, events int) error {
	if !b.o.statements {
		return nil
	}
	rows, err := b.system.DB("admin").Query(ctx, `
		SELECT d.datname, s.calls, s.rows, 1000 * s.total_exec_time / $1::int, s.wal_bytes::float8 / $1::int, s.query
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		WHERE s.total_exec_time / $1::int > 0.0002
		ORDER BY s.total_exec_time DESC LIMIT 25`, events)
	if err != nil {
		return fmt.Errorf("read statements: %w", err)
	}
	defer rows.Close()
	b.say("\ndatabase     µs an event   WAL an event      calls       rows   statement")
	for rows.Next() {
		var (
			database, query string
			calls, touched  int64
			micros, wal     float64
		)
		if err := rows.Scan(&database, &calls, &touched, &micros, &wal, &query); err != nil {
			return fmt.Errorf("read statements: %w", err)
		}
		text := strings.Join(strings.Fields(query), " ")
		b.say("%-10s %13.2f %14.0f %10d %10d   %.110s", database, micros, wal, calls, touched, text)
	}
	return rows.Err()
}
