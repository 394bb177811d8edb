// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// schema lists the columns that the statements of this package use, by table.
func schema() map[string]map[string]string {
	return map[string]map[string]string{
		"audit_outbox": {
			"event_id": "uuid", "tx": "xid8", "append_no": "bigint", "created_at": "timestamp with time zone",
			"occur_time": "timestamp with time zone", "resource_version": "bigint", "schema_version": "integer",
			"event_type": "text", "operation": "text", "resource_type": "text", "resource_id": "text",
			"traceparent": "text", "tracestate": "text", "payload": "bytea", "ledger_id": "uuid", "ledger_seq": "bigint",
			"next_attempt_at": "timestamp with time zone", "attempts": "integer", "max_attempts": "integer",
			"claim_count": "integer", "redelivery_count": "integer", "status": "text", "claim_owner": "text",
			"claim_token": "uuid", "claimed_at": "timestamp with time zone", "claim_expires_at": "timestamp with time zone",
			"delivered_at": "timestamp with time zone", "provider_name": "text", "provider_record_id": "text",
			"last_error_code": "text", "last_error_at": "timestamp with time zone", "dead_letter_reason": "text",
		},
		"audit_ledger": {
			"owner": "text", "ledger_id": "uuid", "head": "bigint", "tree_size": "bigint", "compact_range": "bytea[]",
			"sealed_at": "timestamp with time zone",
		},
		"audit_lifecycle": {
			"lifecycle_no": "bigint", "occurred_at": "timestamp with time zone", "transition": "text", "event_id": "uuid",
			"ledger_id": "uuid", "first_seq": "bigint", "last_seq": "bigint", "event_count": "integer", "from_status": "text",
			"to_status": "text", "code": "text", "actor": "text", "reason": "text",
		},
	}
}

// indexes lists the indexes without which a claim would walk what is finished.
func indexes() []string {
	return []string{
		"audit_outbox_pkey", "audit_outbox_unsealed_idx", "audit_outbox_number_key", "audit_outbox_open_idx",
		"audit_outbox_version_key",
	}
}

// CheckSchema compares the tables that the connection's search_path finds with
// what this package's statements use, for a clear word at start instead of a
// failing statement later. Columns and indexes that it does not know are no
// fault, so the next release's schema passes. The error lists every difference.
func CheckSchema(ctx context.Context, db *pgxpool.Pool) error {
	rows, err := db.Query(ctx, sqlColumns)
	if err != nil {
		return fmt.Errorf("read the outbox schema: %w", err)
	}
	found := map[string]string{}
	for rows.Next() {
		var table, column, kind string
		if err := rows.Scan(&table, &column, &kind); err != nil {
			return fmt.Errorf("read the outbox schema: %w", err)
		}
		found[table+"."+column] = kind
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the outbox schema: %w", err)
	}
	rows, err = db.Query(ctx, sqlIndexes)
	if err != nil {
		return fmt.Errorf("read the outbox indexes: %w", err)
	}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return fmt.Errorf("read the outbox indexes: %w", err)
		}
		found[name] = "index"
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the outbox indexes: %w", err)
	}
	return compareSchema(found)
}

func compareSchema(found map[string]string) error {
	var faults []string
	for table, columns := range schema() {
		for column, want := range columns {
			switch got, ok := found[table+"."+column]; {
			case !ok:
				faults = append(faults, fmt.Sprintf("%s.%s is missing", table, column))
			case got != want:
				faults = append(faults, fmt.Sprintf("%s.%s is %s, not %s", table, column, got, want))
			}
		}
	}
	for _, name := range indexes() {
		if found[name] == "" {
			faults = append(faults, fmt.Sprintf("the index %s is missing or invalid", name))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.Sort(faults)
	return fmt.Errorf("outbox: the database is not migrated to this release: %s", strings.Join(faults, "; "))
}
