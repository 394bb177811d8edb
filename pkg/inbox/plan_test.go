// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
)

// A connection keeps the plan that it made for an empty inbox, with or without statistics. It must be the one for a full
// inbox.
func TestPlansOfAnEmptyInboxServeAFullOne(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]string{"new": "SELECT", "known to be empty": "VACUUM ANALYZE"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t, testdb.Admin)
			if _, err := db.Super.Exec(t.Context(), prepare); err != nil {
				t.Fatal(err)
			}
			checkPlans(t, db)
		})
	}
}

// content is a look-up of a claimed row's event, as against a walk over all events that drops what is not claimed.
var content = regexp.MustCompile(`using inbox_events_pkey[^\n]*\n\s*Index Cond: \(event_id = d.event_id`)

func checkPlans(t *testing.T, db *testdb.DB) {
	t.Helper()
	tx, err := db.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), settings(time.Second, time.Second, true)+byIndex); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ sql, index string }{
		"position":     {sqlLockPosition, "ledger_positions_pkey"},
		"held events":  {sqlHeldEvents, "ledger_entries_event_idx"},
		"held range":   {sqlHeldRange, "ledger_entries_pkey"},
		"held numbers": {sqlHeldNumbers, "ledger_entries_pkey"},
		"owner":        {sqlLedgerOwner, "ledger_entries_pkey"},
		"claim":        {sqlClaim, "consumer_inbox_open_idx"},
		"content":      {sqlClaim, "inbox_events_pkey"},
		"renew":        {sqlRenew, "consumer_inbox_pkey"},
		"finish":       {sqlFinish, "consumer_inbox_pkey"},
	} {
		plan := genericPlan(t, tx, c.sql)
		if !strings.Contains(plan, c.index) || strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s: the plan is not by %s:\n%s", name, c.index, plan)
		}
	}
	if claim := genericPlan(t, tx, sqlClaim); !content.MatchString(claim) {
		t.Errorf("the claim does not look its events up:\n%s", claim)
	}
	if claim := genericPlan(t, tx, sqlClaim); strings.Contains(strings.Split(claim, "CTE due")[1], "Sort Key: c.inbox_no") {
		t.Errorf("the claim sorts what is open before it takes a page:\n%s", claim)
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
