// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/test/demo/scenario"
)

// mostNamed is how many ids of one kind of problem are named.
const mostNamed = 20

// Row is an event as it lies in a database: its id and its exact bytes.
type Row struct {
	ID      uuid.UUID
	Owner   string
	Payload []byte
}

// Committed reads every event that both owners have committed, straight from their outboxes.
func Committed(ctx context.Context, databases map[string]*pgxpool.Pool) ([]Row, error) {
	var all []Row
	for _, owner := range []string{"auth", "app"} {
		rows, err := read(ctx, databases[owner], "SELECT event_id, '"+owner+"' AS owner, payload FROM audit_outbox")
		if err != nil {
			return nil, fmt.Errorf("read outbox of %s: %w", owner, err)
		}
		all = append(all, rows...)
	}
	return all, nil
}

// Recorded reads every record of another's event, straight from Admin's audit_logs.
func Recorded(ctx context.Context, databases map[string]*pgxpool.Pool) ([]Row, error) {
	rows, err := read(ctx, databases["admin"], "SELECT event_id, owner, payload FROM audit_logs WHERE owner <> 'admin'")
	if err != nil {
		return nil, fmt.Errorf("read audit logs: %w", err)
	}
	return rows, nil
}

func read(ctx context.Context, db *pgxpool.Pool, query string) ([]Row, error) {
	rows, err := db.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
}

// Comparison is what was committed against what is recorded.
type Comparison struct {
	// Actions is the number of committed events, Recorded the number of those that are recorded with the same bytes.
	Actions, Recorded int
	// ByOwner counts Actions.
	ByOwner map[string]int
	// Missing were committed and are not recorded. Duplicates are recorded more than once, or were committed more than once.
	// Altered are recorded with other bytes or another owner. Invented are recorded and were never committed.
	Missing, Duplicates, Altered, Invented []uuid.UUID
	// Digest is the SHA-256 over the committed bytes in the order of ids, DigestRecorded over the recorded ones.
	Digest, DigestRecorded [32]byte
}

// Compare holds the records against what was committed, event by event and byte by byte.
func Compare(committed, recorded []Row) Comparison {
	c := Comparison{
		Actions: len(committed), ByOwner: map[string]int{}, Digest: digest(committed), DigestRecorded: digest(recorded),
	}
	copies := map[uuid.UUID][]Row{}
	for _, row := range recorded {
		copies[row.ID] = append(copies[row.ID], row)
	}
	seen := map[uuid.UUID]bool{}
	for _, row := range committed {
		c.ByOwner[row.Owner]++
		found := copies[row.ID]
		switch {
		case seen[row.ID] || len(found) > 1:
			c.Duplicates = append(c.Duplicates, row.ID)
		case len(found) == 0:
			c.Missing = append(c.Missing, row.ID)
		case found[0].Owner != row.Owner || !bytes.Equal(found[0].Payload, row.Payload):
			c.Altered = append(c.Altered, row.ID)
		default:
			c.Recorded++
		}
		seen[row.ID] = true
	}
	for id := range copies {
		if !seen[id] {
			c.Invented = append(c.Invented, id)
		}
	}
	slices.SortFunc(c.Invented, compareIDs)
	return c
}

// Problems names what is wrong, one line each; none means that each committed event is recorded once.
func (c Comparison) Problems() []string {
	var problems []string
	for what, ids := range map[string][]uuid.UUID{
		"missing": c.Missing, "duplicates": c.Duplicates, "altered": c.Altered, "recorded but never committed": c.Invented,
	} {
		if len(ids) > 0 {
			problems = append(problems, fmt.Sprintf("%s=%d %v", what, len(ids), ids[:min(len(ids), mostNamed)]))
		}
	}
	slices.Sort(problems)
	if len(problems) == 0 && c.Digest != c.DigestRecorded {
		problems = append(problems, "the digests differ")
	}
	return problems
}

func digest(rows []Row) [32]byte {
	sorted := slices.SortedFunc(slices.Values(rows), func(a, b Row) int { return compareIDs(a.ID, b.ID) })
	sum := sha256.New()
	for _, row := range sorted {
		sum.Write(row.ID[:])
		leaf := sha256.Sum256(row.Payload)
		sum.Write(leaf[:])
	}
	return [32]byte(sum.Sum(nil))
}

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// Left reads which actions each call of a run left in the audit log, by the call's correlation id.
func Left(ctx context.Context, admin *pgxpool.Pool, run string) (map[string]map[string]int, error) {
	rows, err := admin.Query(ctx, `
		SELECT correlation_id, action, count(*) FROM audit_logs WHERE starts_with(correlation_id, $1) GROUP BY 1, 2`, run+".")
	if err != nil {
		return nil, fmt.Errorf("read actions by call: %w", err)
	}
	defer rows.Close()
	left := map[string]map[string]int{}
	for rows.Next() {
		var correlation, action string
		var count int
		if err := rows.Scan(&correlation, &action, &count); err != nil {
			return nil, fmt.Errorf("read actions by call: %w", err)
		}
		if left[correlation] == nil {
			left[correlation] = map[string]int{}
		}
		left[correlation][action] = count
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read actions by call: %w", err)
	}
	return left, nil
}

// Unaccounted holds the journal against the audit log: each call must have left exactly its events, and no event may carry
// the id of a call that was not made.
func Unaccounted(steps []scenario.Step, left map[string]map[string]int) []string {
	var problems []string
	made := map[string]bool{}
	for _, step := range steps {
		made[step.Correlation] = true
		if !maps.Equal(step.Events, left[step.Correlation]) {
			problems = append(problems, fmt.Sprintf("call %s (%s) must leave %v and left %v", step.Correlation, step.Method, step.Events, left[step.Correlation]))
		}
	}
	for _, correlation := range slices.Sorted(maps.Keys(left)) {
		if !made[correlation] {
			problems = append(problems, fmt.Sprintf("nobody made call %s, which left %v", correlation, left[correlation]))
		}
	}
	return problems
}
