// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Violation is one thing that must not be, found in a quiet system.
type Violation struct {
	// Invariant is one of I1 to I5: I1 a row version and its event, I2 a record that nobody appended, I3 an event
	// that is nowhere, I4 a record that is not what was appended, I5 a number missing, given twice or out of order.
	Invariant string
	// Owner is whose event or row it is.
	Owner string
	// Event is the event's id, where one event is meant.
	Event string
	// Detail says what was found, with names of states and resources.
	Detail string
}

// String returns one line.
func (v Violation) String() string {
	return fmt.Sprintf("%s %s %s: %s", v.Invariant, v.Owner, v.Event, v.Detail)
}

// Report is what the oracle saw.
type Report struct {
	// Events is the number of events in both owners' outboxes; each is one of the next four.
	Events, Recorded, Dead, Parked, Open int
	// Own is the number of Admin's own records.
	Own int
	// Violations are in the order of the invariants. Open events are among them: the system should have been quiet.
	Violations []Violation
}

// Check compares the system's three databases. See the function Check.
func (s *System) Check(ctx context.Context) (Report, error) { return Check(ctx, s.pools) }

// Check compares the databases of auth, app and admin, which the pools reach as a superuser, and reports every violation
// of the invariants, the first thousand of each kind. It changes nothing that outlives the call: it copies what the owners
// hold into temporary tables beside Admin's and compares there, in SQL that shares nothing with the product.
//
// It takes Admin's snapshot first and each owner's after it, so in a running system only open events are reported beside
// what is really wrong. It expects that no outbox row has been pruned.
func Check(ctx context.Context, databases map[string]*pgxpool.Pool) (report Report, err error) {
	tx, err := databases["admin"].BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return report, fmt.Errorf("begin comparison: %w", err)
	}
	defer func() { err = errors.Join(err, tx.Rollback(context.WithoutCancel(ctx))) }()
	if _, err := tx.Exec(ctx, oracleTables); err != nil {
		return report, fmt.Errorf("make temporary tables: %w", err)
	}
	for owner, rows := range auditedRows {
		if err := collect(ctx, databases[owner], tx.Conn(), owner, rows); err != nil {
			return report, fmt.Errorf("collect %s: %w", owner, err)
		}
	}
	if _, err := tx.Exec(ctx, oracleIndexes); err != nil {
		return report, fmt.Errorf("index temporary tables: %w", err)
	}
	err = tx.QueryRow(ctx, oracleCounts).Scan(&report.Events, &report.Recorded, &report.Dead, &report.Parked, &report.Open, &report.Own)
	if err != nil {
		return report, fmt.Errorf("count events: %w", err)
	}
	for _, check := range oracleChecks {
		found, err := violations(ctx, tx, check)
		if err != nil {
			return report, err
		}
		report.Violations = append(report.Violations, found...)
	}
	return report, nil
}

// collect copies what one owner holds, as of one moment, into the temporary tables.
func collect(ctx context.Context, from *pgxpool.Pool, to *pgx.Conn, owner, rows string) error {
	tx, err := from.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	for table, query := range map[string]string{
		"oracle_events": fmt.Sprintf(oracleEvents, owner),
		"oracle_rows":   rows,
		"oracle_heads":  fmt.Sprintf("SELECT '%s', ledger_id, head FROM audit_ledger", owner),
	} {
		if err := pipe(ctx, tx.Conn(), query, to, table); err != nil {
			return fmt.Errorf("%s: %w", table, err)
		}
	}
	return nil
}

// pipe copies a query's rows into a table of another server.
func pipe(ctx context.Context, from *pgx.Conn, query string, to *pgx.Conn, table string) error {
	reader, writer := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		_, err := from.PgConn().CopyTo(ctx, writer, "COPY ("+query+") TO STDOUT")
		_ = writer.CloseWithError(err) // with nil it is the end of the data
		sent <- err
	}()
	_, err := to.PgConn().CopyFrom(ctx, reader, "COPY "+table+" FROM STDIN")
	_ = reader.CloseWithError(err)
	if err := errors.Join(<-sent, err); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// violations runs one check.
func violations(ctx context.Context, tx pgx.Tx, c oracleCheck) ([]Violation, error) {
	rows, err := tx.Query(ctx, c.sql+" LIMIT 1000")
	if err != nil {
		return nil, fmt.Errorf("check %s, %s: %w", c.invariant, c.what, err)
	}
	defer rows.Close()
	var found []Violation
	for rows.Next() {
		v := Violation{Invariant: c.invariant}
		var detail string
		if err := rows.Scan(&v.Owner, &v.Event, &detail); err != nil {
			return nil, fmt.Errorf("check %s, %s: %w", c.invariant, c.what, err)
		}
		v.Detail = c.what + ": " + detail
		found = append(found, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("check %s, %s: %w", c.invariant, c.what, err)
	}
	return found, nil
}
