// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/migrations"
)

// (A47) A status is one of exactly six, and none of them says "claimed".
func TestSixStatuses(t *testing.T) {
	t.Parallel()
	name := migrated(t, "auth")
	service := as(t, name, "auth_service")
	appendEvent(t, service)
	for _, status := range []string{"PENDING", "DELIVERED", "DEFERRED", "FAILED", "RETRYABLE_FAILURE", "DEAD_LETTERED"} {
		execute(t, service, "UPDATE audit_outbox SET status = $1", status)
	}
	const check = "23514"
	for _, status := range []string{"CLAIMED", "IN_PROGRESS", "", "pending"} {
		refused(t, service, check, "UPDATE audit_outbox SET status = $1", status)
	}
	// A claim is whole or absent.
	refused(t, service, check, "UPDATE audit_outbox SET claim_token = gen_random_uuid()")
	refused(t, service, check, "UPDATE audit_outbox SET claim_expires_at = now()")
	execute(t, service, "UPDATE audit_outbox SET claim_owner = 'a', claim_token = gen_random_uuid(), claimed_at = now(), claim_expires_at = now()")
	refused(t, service, check, "UPDATE audit_outbox SET ledger_seq = 1")
}

// (A18) Two appends of one id at once: one row, one unique violation.
func TestOneRowAnID(t *testing.T) {
	t.Parallel()
	name := migrated(t, "app")
	id := uuid.Must(uuid.NewV7())
	codes := make([]string, 2)
	var both sync.WaitGroup
	for i := range codes {
		conn := as(t, name, "app_service")
		both.Go(func() {
			_, err := conn.Exec(t.Context(), `
				INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id, payload)
				VALUES ($1, now(), 1, 't', 'CREATE', 'project', '', '')`, id)
			codes[i] = sqlState(err)
			if err != nil && codes[i] == "" {
				t.Error(err)
			}
		})
	}
	both.Wait()
	slices.Sort(codes)
	if !slices.Equal(codes, []string{"", "23505"}) {
		t.Errorf("got %q, want one success and one 23505", codes)
	}
	if n := query[int](t, as(t, name, "app_service"), "SELECT count(*) FROM audit_outbox"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// (A61) The outbox has exactly these five indexes. Look-ups by correlation, trace and audit id are audit_logs'
// business; retry and claim times are read from rows that the open index finds, so that claims stay heap-only.
func TestFiveOutboxIndexes(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"audit_outbox_pkey":         "UNIQUE (event_id)",
		"audit_outbox_unsealed_idx": "(append_no) WHERE (ledger_seq IS NULL)",
		"audit_outbox_number_key":   "UNIQUE (ledger_id, ledger_seq) WHERE (ledger_seq IS NOT NULL)",
		"audit_outbox_open_idx":     "(ledger_seq) WHERE ((status)::text = ANY (ARRAY['PENDING'::text, 'DEFERRED'::text, 'RETRYABLE_FAILURE'::text]))",
		"audit_outbox_version_key":  "UNIQUE (resource_type, resource_id, resource_version) WHERE (resource_version IS NOT NULL)",
	}
	for _, owner := range []string{"auth", "app"} {
		got := pairs(t, root(t, migrated(t, owner)), `
			SELECT indexname, CASE WHEN indexdef LIKE '%UNIQUE%' THEN 'UNIQUE ' ELSE '' END || split_part(indexdef, 'btree ', 2)
			FROM pg_indexes WHERE tablename = 'audit_outbox'`)
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v\nwant %v", owner, got, want)
		}
	}
}

// Claiming a page touches no index: most of the new row versions stay on their page.
func TestClaimsStayHeapOnly(t *testing.T) {
	t.Parallel()
	name := migrated(t, "auth")
	service := as(t, name, "auth_service")
	execute(t, service, `
		INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id, payload)
		SELECT gen_random_uuid(), now(), 1, 'auth.login.failed.v1', 'LOGIN', 'user', '', decode(repeat('ab', 400), 'hex')
		FROM generate_series(1, 500)`)
	execute(t, service, `
		UPDATE audit_outbox o SET ledger_id = l.ledger_id, ledger_seq = n.n
		FROM audit_ledger l, (SELECT event_id, row_number() OVER (ORDER BY append_no) n FROM audit_outbox) n WHERE n.event_id = o.event_id`)
	const heapOnly = "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'audit_outbox'"
	flush := func() { execute(t, service, "SELECT pg_stat_force_next_flush()"); execute(t, service, "SELECT 1") }
	flush()
	execute(t, root(t, name), "VACUUM audit_outbox") // make room, as autovacuum does in a running system
	before := query[int](t, service, heapOnly)
	n := execute(t, service, `
		UPDATE audit_outbox SET claim_owner = 'a', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(),
		    claim_expires_at = clock_timestamp() + interval '30 s', claim_count = claim_count + 1
		WHERE event_id IN (SELECT event_id FROM audit_outbox WHERE status IN ('PENDING', 'DEFERRED', 'RETRYABLE_FAILURE')
		                   ORDER BY ledger_seq LIMIT 500 FOR UPDATE SKIP LOCKED)`)
	flush()
	if hot := query[int](t, service, heapOnly) - before; n != 500 || hot < 400 {
		t.Errorf("%d of %d claims were heap-only, want at least 400 of 500", hot, n)
	}
}

// outbox_prune deletes finished rows past their age, oldest first, a batch at a time, and nothing else (BC-35).
func TestOutboxPrune(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"auth", "app"} {
		name := migrated(t, owner)
		service, boss := as(t, name, migrations.ServiceRole(owner)), as(t, name, migrations.OwnerRole(owner))
		seq := 0
		add := func(status, age string, sealed bool) {
			id := appendEvent(t, service)
			seq++
			execute(t, boss, fmt.Sprintf(`
				UPDATE audit_outbox SET status = $2, delivered_at = clock_timestamp() - $3::interval, created_at = clock_timestamp() - interval '1 year',
				    ledger_id = CASE WHEN $4 THEN (SELECT ledger_id FROM audit_ledger) END, ledger_seq = CASE WHEN $4 THEN %d END
				WHERE event_id = $1`, seq), id, status, age, sealed)
		}
		for range 5 {
			add("DELIVERED", "8 days", true)
		}
		add("DELIVERED", "6 days", true)
		add("DELIVERED", "8 days", false) // taken by the broker and not numbered cannot be; if it were, it stays
		for _, status := range []string{"PENDING", "DEFERRED", "FAILED", "RETRYABLE_FAILURE", "DEAD_LETTERED"} {
			add(status, "1 year", true)
		}
		prune := func(batch int) int64 { return query[int64](t, service, "SELECT outbox_prune($1)", batch) }
		tree := func(size int) {
			execute(t, boss, `UPDATE audit_ledger SET head = 100, tree_size = $1,
				compact_range = array_fill(''::bytea, ARRAY[bit_count($1::bigint::bit(64))::integer])`, size)
		}
		tree(100)

		if n := prune(1000); n != 0 {
			t.Fatalf("%s: %d rows deleted that nobody confirmed", owner, n)
		}
		execute(t, boss, "UPDATE audit_retention SET requires_confirmation = false")
		tree(0)
		if n := prune(1000); n != 0 {
			t.Fatalf("%s: %d rows deleted that the tree does not cover yet: nobody could number anything any more", owner, n)
		}
		tree(100)
		if n := prune(3); n != 3 {
			t.Errorf("%s: first batch deleted %d, want 3", owner, n)
		}
		if low := query[int](t, service, "SELECT min(ledger_seq) FROM audit_outbox"); low != 4 {
			t.Errorf("%s: the oldest left is %d, want 4", owner, low)
		}
		if n := prune(1000) + prune(1000); n != 2 {
			t.Errorf("%s: the rest was %d, want 2", owner, n)
		}
		left := query[string](t, service, "SELECT string_agg(status, ' ' ORDER BY ledger_seq NULLS FIRST) FROM audit_outbox")
		if left != "DELIVERED DELIVERED PENDING DEFERRED FAILED RETRYABLE_FAILURE DEAD_LETTERED" {
			t.Errorf("%s: left %s", owner, left)
		}
		execute(t, boss, "UPDATE audit_retention SET finished_age = '0'")
		if n := prune(1000); n != 1 {
			t.Errorf("%s: with age 0 deleted %d, want 1", owner, n)
		}
		for _, batch := range []string{"0", "-1", "10001", "NULL"} {
			refused(t, service, "22023", "SELECT outbox_prune("+batch+")")
		}
	}
}

// inboxRow puts one consumer's row into the inbox, and its event if it is not there.
func inboxRow(t *testing.T, boss *pgx.Conn, event uuid.UUID, consumer, state, age string) {
	t.Helper()
	execute(t, boss, `
		INSERT INTO inbox_events (event_id, ledger_id, ledger_seq, schema_version, owner, event_type, entry_id, payload)
		VALUES ($1, gen_random_uuid(), 1, 1, 'auth', 't', '1-0', '') ON CONFLICT DO NOTHING`, event)
	execute(t, boss, `
		INSERT INTO consumer_inbox (event_id, consumer, state, finished_at, dead_at, lease_owner, lease_token, lease_expires_at)
		SELECT $1, $2, $3::text,
		       CASE WHEN $3 IN ('PROCESSED', 'DEAD') THEN at END, CASE WHEN $3 = 'DEAD' THEN at END,
		       CASE WHEN $3 = 'PROCESSING' THEN 'w' END, CASE WHEN $3 = 'PROCESSING' THEN gen_random_uuid() END,
		       CASE WHEN $3 = 'PROCESSING' THEN at END
		FROM (SELECT clock_timestamp() - $4::interval AS at) x`, event, consumer, state, age)
}

// inbox_prune deletes old PROCESSED rows, and an event with its last row. Dead and open ones stay for ever (BC-35).
func TestInboxPrune(t *testing.T) {
	t.Parallel()
	name := migrated(t, "admin")
	service, boss := as(t, name, "admin_service"), as(t, name, "admin_owner")
	id := func() uuid.UUID { return uuid.Must(uuid.NewV7()) }
	old, mixed, dead, open, running, fresh := id(), id(), id(), id(), id(), id()
	inboxRow(t, boss, old, "audit-log", "PROCESSED", "8 days")
	inboxRow(t, boss, old, "security-alerts", "PROCESSED", "8 days")
	inboxRow(t, boss, mixed, "audit-log", "PROCESSED", "8 days")
	inboxRow(t, boss, mixed, "security-alerts", "DEAD", "1 year")
	inboxRow(t, boss, dead, "audit-log", "DEAD", "1 year")
	inboxRow(t, boss, open, "audit-log", "PENDING", "1 year")
	inboxRow(t, boss, running, "audit-log", "PROCESSING", "1 year")
	inboxRow(t, boss, fresh, "audit-log", "PROCESSED", "6 days")
	prune := func(batch int) int64 { return query[int64](t, service, "SELECT inbox_prune('7 days', $1)", batch) }

	if n := prune(1); n != 1 {
		t.Fatalf("first batch: %d, want 1", n)
	}
	if n := query[int](t, service, "SELECT count(*) FROM inbox_events WHERE event_id = $1", old); n != 1 {
		t.Error("an event went while a consumer's row still needed it")
	}
	if n := prune(1000); n != 2 {
		t.Errorf("second batch: %d, want 2", n)
	}
	left := query[[]uuid.UUID](t, service, "SELECT array_agg(event_id ORDER BY event_id) FROM inbox_events")
	if !slices.Equal(left, []uuid.UUID{mixed, dead, open, running, fresh}) {
		t.Errorf("events left: %v", left)
	}
	states := query[string](t, service, "SELECT string_agg(state, ' ' ORDER BY event_id) FROM consumer_inbox")
	if states != "DEAD DEAD PENDING PROCESSING PROCESSED" {
		t.Errorf("rows left: %s", states)
	}
	for _, args := range []string{"'7 days', 0", "'7 days', 10001", "'7 days', NULL", "'59 minutes', 10", "NULL, 10", "'-7 days', 10"} {
		refused(t, service, "22023", "SELECT inbox_prune("+args+")")
	}
}

// Two prunes at once do not each leave the event to the other.
func TestInboxPruneTwiceAtOnce(t *testing.T) {
	t.Parallel()
	name := migrated(t, "admin")
	boss, first, second := as(t, name, "admin_owner"), as(t, name, "admin_service"), as(t, name, "admin_service")
	event := uuid.Must(uuid.NewV7())
	inboxRow(t, boss, event, "audit-log", "PROCESSED", "8 days")
	inboxRow(t, boss, event, "security-alerts", "PROCESSED", "8 days")
	execute(t, first, "BEGIN")
	if n := query[int64](t, first, "SELECT inbox_prune('7 days', 1)"); n != 1 {
		t.Fatalf("deleted %d", n)
	}
	if n := query[int64](t, second, "SELECT inbox_prune('7 days', 1)"); n != 0 {
		t.Errorf("a second prune worked beside the first: %d", n)
	}
	execute(t, first, "COMMIT")
	if n := query[int64](t, second, "SELECT inbox_prune('7 days', 1)"); n != 1 {
		t.Errorf("deleted %d", n)
	}
	if n := query[int](t, boss, "SELECT count(*) FROM inbox_events"); n != 0 {
		t.Errorf("%d events stayed behind", n)
	}
}

// Functions that run with their owner's rights name what they touch, so that nothing a caller makes stands in its place.
func TestDefinerFunctionsPinTheirSearchPath(t *testing.T) {
	t.Parallel()
	for _, owner := range migrations.Owners() {
		conn := root(t, migrated(t, owner))
		loose := query[string](t, conn, `
			SELECT coalesce(string_agg(proname, ' '), '') FROM pg_proc
			WHERE pronamespace = 'public'::regnamespace AND prosecdef
			  AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))`)
		if strings.TrimSpace(loose) != "" {
			t.Errorf("%s: %s", owner, loose)
		}
	}
}
