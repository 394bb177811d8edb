// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
)

// fill writes n rows of many actors, resources, actions and correlations, with ids in the order of time.
func fill(t *testing.T, db *testdb.DB, n int) {
	t.Helper()
	_, err := db.Super.Exec(t.Context(), `
INSERT INTO audit_logs (event_id, ledger_id, ledger_seq, occur_time, schema_version, owner, event_type, action, operation,
    outcome, actor_type, actor_id, resource_type, resource_id, correlation_id, trace_id, payload)
SELECT (lpad(to_hex(1780000000000 + i), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid,
    '00000000-0000-7000-8000-000000000001', i, to_timestamp((1780000000000 + i) / 1000.0), 1,
    CASE i % 2 WHEN 0 THEN 'auth' ELSE 'app' END, 'x', 'auth.thing' || i % 300 || '.done', 'UPDATE', 'SUCCEEDED', 'user',
    'u-' || i % 5000, 'thing', 'r-' || i % 5000, 'c-' || i / 3, lpad(to_hex(i / 3), 32, '0'), '\x00'
FROM generate_series(1, $1::bigint) AS i`, n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Super.Exec(t.Context(), "VACUUM ANALYZE audit_logs"); err != nil {
		t.Fatal(err)
	}
}

// explain returns the plan that the database makes for a page once it plans without looking at the values, as it does
// for a prepared statement that is used often.
func explain(t *testing.T, db *testdb.DB, p Predicate, page Page) string {
	t.Helper()
	sql, args := listStatement(p, page)
	tx, err := db.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "SET LOCAL plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), "EXPLAIN "+sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// Each question that the read side exists for is answered from its index, on a table where a scan would hurt.
func TestPagesUseIndexes(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Admin)
	fill(t, db, 60000)
	middle := uuid.MustParse("019e7d8c-4f00-7000-8000-000000000000")
	for name, c := range map[string]struct {
		where Predicate
		index string
	}{
		"everything":     {Predicate{}, "audit_logs_pkey"},
		"by actor":       {Predicate{"actor_id = $1", []any{"u-7"}}, "audit_logs_actor_idx"},
		"by resource":    {Predicate{"resource_id = $1", []any{"r-7"}}, "audit_logs_resource_idx"},
		"by action":      {Predicate{"action = $1", []any{"auth.thing7.done"}}, "audit_logs_action_idx"},
		"by correlation": {Predicate{"(correlation_id = $1 AND correlation_id <> '')", []any{"c-7"}}, "audit_logs_correlation_idx"},
		"by trace":       {Predicate{"(trace_id = $1 AND trace_id <> '')", []any{"7"}}, "audit_logs_trace_idx"},
		"by time":        {Predicate{"(occur_time >= $1 AND event_id >= $2)", []any{"2026-06-01T00:00:00Z", middle}}, "audit_logs_pkey"},
	} {
		for _, before := range []uuid.UUID{uuid.Nil, middle} {
			plan := explain(t, db, c.where, Page{Before: before, Rows: 50, MaxBytes: 3 << 20})
			if !strings.Contains(plan, c.index) || strings.Contains(plan, "Seq Scan on audit_logs") {
				t.Errorf("%s, before %s:\n%s", name, before, plan)
			}
		}
	}
}

// A prefix that few actions have is looked up, not searched for among all rows.
func TestActionPrefixUsesItsIndex(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Admin)
	fill(t, db, 20000)
	sql := "EXPLAIN SELECT event_id FROM audit_logs WHERE action ~>=~ $1 AND action ~<~ $2"
	rows, err := db.Service.Query(t.Context(), sql, "auth.thing17.", "auth.thing17/")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if plan := strings.Join(lines, "\n"); !strings.Contains(plan, "audit_logs_action_idx") {
		t.Error(plan)
	}
}

// A page says that there are more exactly when there are, whichever of its two limits ended it.
func TestListSaysWhetherThereAreMore(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Admin)
	fill(t, db, 10)
	s := New(db.Service)
	for _, c := range []struct {
		rows     int
		maxBytes int64
		want     int
		more     bool
	}{
		{9, 1 << 20, 9, true},
		{10, 1 << 20, 10, false},
		{11, 1 << 20, 10, false},
		{10, 3, 3, true},
		{10, 10, 10, false},
		{10, 0, 1, true},
		{1, 0, 1, true},
	} {
		rows, more, err := s.ListAuditLogs(t.Context(), Predicate{}, Page{Rows: c.rows, MaxBytes: c.maxBytes})
		if err != nil {
			t.Fatal(err)
		}
		if len(rows) != c.want || more != c.more {
			t.Errorf("%d rows and %d bytes: %d rows, more=%v, want %d, %v", c.rows, c.maxBytes, len(rows), more, c.want, c.more)
		}
	}
	if rows, more, err := s.ListAuditLogs(t.Context(), Predicate{SQL: "owner = $1", Args: []any{"nobody"}}, Page{Rows: 5}); err != nil || more || len(rows) != 0 {
		t.Errorf("nothing matches: %d rows, more=%v, %v", len(rows), more, err)
	}
}

// Numbers are handed out without a hole, and taking some waits for whoever took the last.
func TestTakeNumbers(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Admin)
	var got []string
	for _, n := range []int{1, 3, 1} {
		ledger, first, err := New(db.Service).TakeNumbers(t.Context(), n)
		if err != nil || ledger == uuid.Nil {
			t.Fatal(ledger, err)
		}
		got = append(got, fmt.Sprint(first))
	}
	if strings.Join(got, " ") != "1 2 5" {
		t.Errorf("first numbers are %v", got)
	}
}

// Small batches are most of what an idle log gets, and planning the insert anew takes longer than running it. Whatever the
// connection's own setting, its plan is made once.
func TestInsertIsPlannedOnce(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Admin)
	conn, err := db.Service.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_custom_plan"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			n, err := New(tx).InsertAuditLogs(t.Context(), []AuditLog{{EventID: uuid.Must(uuid.NewV7()), Payload: []byte{}}})
			if err == nil && n != 1 {
				err = fmt.Errorf("%d rows inserted", n)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var kept, made int
	err = conn.QueryRow(t.Context(), "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE ltrim(statement, chr(10)) LIKE 'INSERT INTO audit_logs%'").
		Scan(&kept, &made)
	if err != nil || kept != 3 || made != 0 {
		t.Errorf("%d runs by the kept plan and %d by new ones, %v", kept, made, err)
	}
}
