// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
)

// A connection keeps the plan that it made for an empty outbox, with or without statistics. It must be the one for a full
// outbox.
func TestPlansOfAnEmptyOutboxServeAFullOne(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{"new": "SELECT", "known to be empty": "VACUUM ANALYZE audit_outbox"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t, testdb.Auth).WithoutGuard(t)
			if _, err := db.Super.Exec(t.Context(), prepare); err != nil {
				t.Fatal(err)
			}
			checkPlans(t, db)
		})
	}
}

// A process that stops in the middle of a transaction frees what it locked, the ledger above all, whatever its role's
// settings are.
func TestEveryTransactionNamesItsTimeouts(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	for _, settings := range []string{sqlSync, sqlAsync} {
		tx, err := db.Super.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		var idle, lock string
		if _, err := tx.Exec(t.Context(), settings); err != nil {
			t.Fatal(err)
		}
		err = tx.QueryRow(t.Context(), `SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')`).Scan(&idle, &lock)
		if err != nil || idle != "20s" || lock != "5s" {
			t.Errorf("idle time-out %s, lock time-out %s, %v; want 20s and 5s", idle, lock, err)
		}
	}
}

// byKey is a look-up of the page's ids, as against a walk over the index that drops what is not among them.
var byKey = regexp.MustCompile(`using audit_outbox_pkey[^\n]*\n\s*Index Cond: \(+event_id = `)

func checkPlans(t *testing.T, db *testdb.DB) {
	t.Helper()
	tx, err := db.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), sqlAsync); err != nil {
		t.Fatal(err)
	}
	check := func(name, sql, index string) string {
		plan := genericPlan(t, tx, sql)
		if !strings.Contains(plan, index) || strings.Contains(plan, "Seq Scan on audit_outbox") {
			t.Errorf("%s: the plan is not by %s:\n%s", name, index, plan)
		}
		if index == "audit_outbox_pkey" && !byKey.MatchString(plan) {
			t.Errorf("%s: the plan does not look the page's ids up:\n%s", name, plan)
		}
		return plan
	}
	for name, c := range map[string]struct{ sql, index string }{
		"lock":              {sqlLockLedger, "audit_outbox_unsealed_idx"},
		"read":              {sqlReadUnsealed, "audit_outbox_unsealed_idx"},
		"number":            {sqlNumber, "audit_outbox_pkey"},
		"lowest number":     {sqlLowestNumber, "audit_outbox_open_idx"},
		"claim by number":   {sqlClaimNumbered, "audit_outbox_open_idx"},
		"claim by append":   {sqlClaimUnnumbered, "audit_outbox_unsealed_idx"},
		"renew":             {sqlRenew, "audit_outbox_pkey"},
		"release":           {sqlRelease, "audit_outbox_pkey"},
		"settle delivered":  {sqlDelivered, "audit_outbox_pkey"},
		"make deferred due": {sqlMakeDeferredDue, "audit_outbox_open_idx"},
	} {
		plan := check(name, c.sql, c.index)
		if page, _, _ := strings.Cut(plan, "Nested Loop"); strings.HasPrefix(name, "claim") && strings.Contains(page, "Sort") {
			t.Errorf("%s: the plan sorts what is open before it takes a page:\n%s", name, plan)
		}
	}
	if _, err := tx.Exec(t.Context(), sqlByHash); err != nil {
		t.Fatal(err)
	}
	if plan := check("settle", sqlSettle, "audit_outbox_pkey"); !strings.Contains(plan, "Hash Join") {
		t.Errorf("settle: the plan compares each row of the page with each outcome:\n%s", plan)
	}
}

var parameter = regexp.MustCompile(`\$\d+`)

// genericPlan returns the plan of a prepared statement that does not depend on its parameters.
func genericPlan(t *testing.T, tx pgx.Tx, sql string) string {
	t.Helper()
	different := map[string]bool{}
	for _, p := range parameter.FindAllString(sql, -1) {
		different[p] = true
	}
	if _, err := tx.Exec(t.Context(), "PREPARE planned AS "+sql); err != nil {
		t.Fatal(err)
	}
	explain := "EXPLAIN EXECUTE planned"
	if len(different) > 0 {
		explain += fmt.Sprintf("(%s)", strings.TrimSuffix(strings.Repeat("NULL,", len(different)), ","))
	}
	rows, err := tx.Query(t.Context(), explain, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "DEALLOCATE planned"); err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
