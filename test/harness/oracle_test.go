// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/test/harness"
)

// world is three databases in which everything has arrived.
type world struct {
	t     *testing.T
	pools map[string]*pgxpool.Pool
}

// newWorld makes a user at version 2, a project made, changed and deleted, and a refused login, all of them recorded.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, pools: map[string]*pgxpool.Pool{
		"auth": testdb.New(t, testdb.Auth).WithoutGuard(t).Super, "app": testdb.New(t, testdb.App).WithoutGuard(t).Super, "admin": testdb.New(t, testdb.Admin).Super,
	}}
	w.do("auth", `INSERT INTO users (id, version, email, display_name, create_time, update_time)
		VALUES ('`+user+`', 2, 'a@example.com', 'A', now(), now())`)
	w.event("auth", 1, "CREATE", "user", user, "1")
	w.event("auth", 2, "LOGIN", "user", "", "NULL")
	w.event("auth", 3, "UPDATE", "user", user, "2")
	w.event("app", 1, "CREATE", "project", project, "1")
	w.event("app", 2, "UPDATE", "project", project, "2")
	w.event("app", 3, "DELETE", "project", project, "3")
	w.do("auth", "UPDATE audit_ledger SET head = 3")
	w.do("app", "UPDATE audit_ledger SET head = 3")
	return w
}

const (
	user    = "01938000-0000-7000-8000-00000000000a"
	project = "01938000-0000-7000-8000-00000000000b"
)

// id returns the id of an owner's event by its number.
func id(owner string, number int) string {
	return "01938000-0000-7000-8000-0000000000" + map[string]string{"auth": "1", "app": "2"}[owner] + string(rune('0'+number))
}

// event appends an event and records it.
func (w *world) event(owner string, number int, operation, kind, resource, version string) {
	w.t.Helper()
	event, ledger := id(owner, number), "0193a000-0000-7000-8000-0000000000"+map[string]string{"auth": "01", "app": "02"}[owner]
	w.do(owner, "UPDATE audit_ledger SET ledger_id = '"+ledger+"'")
	w.do(owner, `INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id,
			resource_version, payload, ledger_id, ledger_seq, status)
		VALUES ('`+event+`', '2026-01-01Z', 1, 't.v1', '`+operation+`', '`+kind+`', '`+resource+`', `+version+`, '\x0102', '`+ledger+`', `+
		string(rune('0'+number))+`, 'DELIVERED')`)
	w.do("admin", `INSERT INTO ledger_entries (ledger_id, ledger_seq, event_id, leaf_hash, owner)
		VALUES ('`+ledger+`', `+string(rune('0'+number))+`, '`+event+`', sha256('\x00'::bytea || uuid_send('`+event+`') || '\x0102'), '`+owner+`')`)
	w.do("admin", `INSERT INTO audit_logs (event_id, ledger_id, ledger_seq, occur_time, resource_version, schema_version, owner, event_type,
			action, operation, outcome, actor_type, actor_id, resource_type, resource_id, payload)
		VALUES ('`+event+`', '`+ledger+`', `+string(rune('0'+number))+`, '2026-01-01Z', `+version+`, 1, '`+owner+`', 't.v1', 't', '`+operation+`',
			'SUCCEEDED', 'user', '', '`+kind+`', '`+resource+`', '\x0102')`)
}

// do runs a statement past every trigger, as only a superuser can.
func (w *world) do(owner, sql string) {
	w.t.Helper()
	conn, err := w.pools[owner].Acquire(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(w.t.Context(), "SET session_replication_role = replica; "+sql+"; RESET session_replication_role"); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

// check asks the oracle.
func (w *world) check() harness.Report {
	w.t.Helper()
	report, err := harness.Check(w.t.Context(), w.pools)
	if err != nil {
		w.t.Fatal(err)
	}
	return report
}

// Where everything has arrived, the oracle finds nothing.
func TestOracleAcceptsAQuietSystem(t *testing.T) {
	t.Parallel()
	report := newWorld(t).check()
	for _, v := range report.Violations {
		t.Error(v)
	}
	if report.Events != 6 || report.Recorded != 6 || report.Dead+report.Parked+report.Open+report.Own != 0 {
		t.Errorf("%+v", report)
	}
}

// Each row breaks one thing. The oracle must name the invariant, and the event or resource.
func TestOracleFinds(t *testing.T) {
	t.Parallel()
	forget := func(owner string, number int) string {
		return "DELETE FROM audit_logs WHERE event_id = '" + id(owner, number) + "'"
	}
	for _, c := range []struct {
		name, invariant, mentions string
		damage                    map[string]string // statements by owner
	}{
		{"a change without an event", "I1", user, map[string]string{"auth": "UPDATE users SET version = 3"}},
		{"a row without any event", "I1", "versions", map[string]string{
			"auth": "INSERT INTO users (id, version, email, display_name, create_time, update_time) VALUES (gen_random_uuid(), 1, 'b@example.com', 'B', now(), now())",
		}},
		{"a row deleted without an event", "I1", id("auth", 3), map[string]string{"auth": "DELETE FROM users"}},
		{"a row that stands after its deletion", "I1", id("app", 3), map[string]string{
			"app": "INSERT INTO projects (id, version, slug, display_name, creator_id, create_time, update_time) VALUES ('" + project + "', 3, 'abc', 'A', '" + user + "', now(), now())",
		}},
		{"an event for a version that was rolled back", "I1", user, map[string]string{"auth": "UPDATE users SET version = 1"}},
		{"a version with two events", "I1", "several", map[string]string{
			"admin": strings.Replace(`INSERT INTO audit_logs SELECT gen_random_uuid(), ledger_id, 9, occur_time, record_time, resource_version, schema_version, owner, event_type, action,
				operation, outcome, reason, actor_type, actor_id, resource_type, resource_id, correlation_id, trace_id, payload FROM audit_logs WHERE event_id = 'X'`, "X", id("auth", 1), 1),
		}},
		{"a version without its event", "I1", project, map[string]string{
			"app": "DELETE FROM audit_outbox WHERE event_id = '" + id("app", 2) + "'", "admin": forget("app", 2),
		}},
		{"a record that nobody appended", "I2", id("auth", 2), map[string]string{"auth": "DELETE FROM audit_outbox WHERE event_id = '" + id("auth", 2) + "'"}},
		{"a record under another owner", "I2", id("auth", 2), map[string]string{"admin": "UPDATE audit_logs SET owner = 'app' WHERE event_id = '" + id("auth", 2) + "'"}},
		{"an event that is nowhere", "I3", id("app", 1), map[string]string{"admin": forget("app", 1)}},
		{"handled and not recorded", "I3", "inbox PROCESSED", map[string]string{
			"admin": forget("app", 1) + "; INSERT INTO consumer_inbox (event_id, consumer, state, finished_at) VALUES ('" + id("app", 1) + "', 'audit-log', 'PROCESSED', now())",
		}},
		{"a changed byte", "I4", id("auth", 3), map[string]string{"admin": "UPDATE audit_logs SET payload = '\\x0103' WHERE event_id = '" + id("auth", 3) + "'"}},
		{"a changed column", "I4", id("auth", 3), map[string]string{"admin": "UPDATE audit_logs SET operation = 'READ' WHERE event_id = '" + id("auth", 3) + "'"}},
		{"a changed time", "I4", id("auth", 3), map[string]string{"admin": "UPDATE audit_logs SET occur_time = now() WHERE event_id = '" + id("auth", 3) + "'"}},
		{"a number that is missing", "I5", "head 4", map[string]string{"auth": "UPDATE audit_ledger SET head = 4"}},
		{"versions numbered out of order", "I5", "out of order", map[string]string{
			"app": "UPDATE audit_outbox SET ledger_seq = 6 - ledger_seq WHERE ledger_seq = 1; UPDATE audit_outbox SET ledger_seq = 1 WHERE event_id = '" + id("app", 2) + "'; UPDATE audit_outbox SET ledger_seq = 2 WHERE ledger_seq = 5",
		}},
		{"another leaf than was appended", "I5", id("app", 1), map[string]string{"admin": "UPDATE ledger_entries SET leaf_hash = sha256('x') WHERE event_id = '" + id("app", 1) + "'"}},
		{"a record that was never taken over", "I5", id("app", 1), map[string]string{"admin": "DELETE FROM ledger_entries WHERE event_id = '" + id("app", 1) + "'"}},
		{"an own record of Admin's without a number", "I5", "admin", map[string]string{"admin": "UPDATE audit_ledger SET head = 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for owner, sql := range c.damage {
				w.do(owner, sql)
			}
			var all []string
			for _, v := range w.check().Violations {
				if v.Invariant == c.invariant && strings.Contains(v.String(), c.mentions) {
					return
				}
				all = append(all, v.String())
			}
			t.Errorf("no %s that mentions %q among:\n%s", c.invariant, c.mentions, strings.Join(all, "\n"))
		})
	}
}

// Events in a listed end state are counted there and are no violation.
func TestOracleCountsEndStates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, number := range []int{1, 2, 3} {
		w.do("admin", "DELETE FROM audit_logs WHERE event_id = '"+id("app", number)+"'")
	}
	w.do("app", "UPDATE audit_outbox SET status = 'DEAD_LETTERED' WHERE event_id = '"+id("app", 1)+"'")
	w.do("admin", "INSERT INTO consumer_inbox (event_id, consumer, state, finished_at, dead_at) VALUES ('"+id("app", 2)+"', 'audit-log', 'DEAD', now(), now())")
	w.do("admin", `INSERT INTO inbox_poison (stream, fields_hash, kind, reason, owner, event_id, first_entry_id, last_entry_id, raw_fields, raw_size)
		VALUES ('audit:{app}', '\x00', 'PARKED', 'type', 'app', '`+id("app", 3)+`', '1-0', '1-0', '', 0)`)
	report := w.check()
	if report.Recorded != 3 || report.Dead != 2 || report.Parked != 1 || report.Open != 0 {
		t.Errorf("%+v", report)
	}
	for _, v := range report.Violations {
		t.Error(v)
	}
	// A forged copy says nothing about where the true event is.
	w.do("admin", "UPDATE inbox_poison SET kind = 'FORGED'")
	if report := w.check(); report.Open != 1 {
		t.Errorf("a forged copy hides a lost event: %+v", report)
	}
}
