// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/migrations"
)

const denied = "42501" // insufficient_privilege

// (U15, U25) Roles × databases × verbs: only the diagonal is allowed. A foreign role cannot even connect, and would
// have no right if it could.
func TestOnlyTheDiagonal(t *testing.T) {
	t.Parallel()
	databases := map[string]string{}
	for _, owner := range migrations.Owners() {
		databases[owner] = migrated(t, owner)
	}
	for owner, database := range databases {
		super := root(t, database)
		for _, of := range migrations.Owners() {
			for _, role := range []string{migrations.OwnerRole(of), migrations.ServiceRole(of)} {
				conn, err := pgx.Connect(t.Context(), urlOf(t, database, role))
				if conn != nil {
					must(t, conn.Close(t.Context()))
				}
				if of == owner && err != nil {
					t.Errorf("%s cannot connect to its own database: %v", role, err)
				}
				if of != owner && sqlState(err) != denied {
					t.Errorf("%s on the database of %s: got %v, want permission denied", role, owner, err)
				}
				rights := query[int](t, super, `
					SELECT count(*) FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) verb
					WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
					  AND (has_table_privilege($1, c.oid, verb)
					       OR verb IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege($1, c.oid, verb))`, role)
				if (of == owner) != (rights > 0) {
					t.Errorf("%s has %d rights in the database of %s", role, rights, owner)
				}
			}
		}
	}
}

// What each service may do with each table, whole. "insert" and "update" in lower case: on some columns only.
func TestTableRights(t *testing.T) {
	t.Parallel()
	const all = "DELETE INSERT SELECT UPDATE"
	outbox := map[string]string{
		"audit_deleted": "SELECT", "goose_db_version": "SELECT", "audit_outbox": "SELECT insert update", "audit_ledger": "SELECT update",
		"audit_retention": "SELECT", "audit_lifecycle": "INSERT SELECT", "requests": all,
	}
	want := map[string]map[string]string{
		"auth": {
			"users": all, "role_grants": all, "sessions": all, "credentials": all, "login_attempts": all,
			"session_activity": all, "refresh_tokens": all, "login_policies": "INSERT SELECT UPDATE",
		},
		"app": {"projects": all, "project_members": all},
		"admin": {
			"goose_db_version": "SELECT", "ledger_positions": "INSERT SELECT UPDATE", "ledger_entries": "INSERT SELECT",
			"inbox_events": "INSERT SELECT", "consumer_inbox": "SELECT insert update", "inbox_poison": "INSERT SELECT update",
			"audit_logs": "INSERT SELECT", "audit_ledger": "SELECT update", "security_observations": "INSERT SELECT",
			"security_alerts": "INSERT SELECT update",
		},
	}
	for _, owner := range []string{"auth", "app"} {
		maps.Copy(want[owner], outbox)
	}
	for _, owner := range migrations.Owners() {
		conn := root(t, migrated(t, owner))
		got := pairs(t, conn, `
			SELECT c.relname, coalesce(string_agg(CASE
			           WHEN has_table_privilege($1, c.oid, verb) THEN verb
			           ELSE lower(verb) END, ' ' ORDER BY CASE WHEN has_table_privilege($1, c.oid, verb) THEN verb ELSE lower(verb) END COLLATE "C")
			       FILTER (WHERE has_table_privilege($1, c.oid, verb)
			               OR verb IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES') AND has_any_column_privilege($1, c.oid, verb)), '')
			FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) verb
			WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
			GROUP BY c.relname`, migrations.ServiceRole(owner))
		if !maps.Equal(got, want[owner]) {
			t.Errorf("%s: the service may\n%v\nwant\n%v", owner, got, want[owner])
		}
	}
}

// The service's role moves an entry's delivery on, and that is all it can do with it.
func TestOutboxColumns(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"auth", "app"} {
		name := migrated(t, owner)
		service, boss := as(t, name, migrations.ServiceRole(owner)), as(t, name, migrations.OwnerRole(owner))
		id := appendEvent(t, service)

		const insert = `
			INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id, payload, %s)
			OVERRIDING SYSTEM VALUE VALUES (gen_random_uuid(), now(), 1, 't', 'LOGIN', '', '', '', %s)`
		for column, value := range map[string]string{
			"tx": "'1'", "append_no": "1", "status": "'DELIVERED'", "created_at": "now()", "claim_token": "gen_random_uuid()",
			"ledger_id": "gen_random_uuid()", "ledger_seq": "1", "attempts": "0", "claim_count": "0", "next_attempt_at": "now()", "max_attempts": "1000",
		} {
			refused(t, service, denied, fmt.Sprintf(insert, column, value))
		}
		for column, value := range map[string]string{
			"event_id": "gen_random_uuid()", "tx": "'1'", "append_no": "DEFAULT", "created_at": "now()", "occur_time": "now()",
			"resource_version": "7", "schema_version": "2", "event_type": "'x'", "operation": "'x'", "resource_type": "'x'",
			"resource_id": "'x'", "traceparent": "''", "tracestate": "''", "payload": "''", "max_attempts": "1000",
		} {
			refused(t, service, denied, fmt.Sprintf("UPDATE audit_outbox SET %s = %s", column, value))
		}
		refused(t, service, denied, "DELETE FROM audit_outbox")
		refused(t, service, denied, "TRUNCATE audit_outbox")
		refused(t, service, denied, "UPDATE audit_ledger SET ledger_id = gen_random_uuid()")
		refused(t, service, denied, "INSERT INTO audit_ledger (singleton, owner) VALUES (true, 'x')")
		refused(t, service, denied, "DELETE FROM audit_ledger")
		refused(t, service, denied, "UPDATE audit_retention SET finished_age = '0'")

		// Numbers go from null to a value once, for the owner's role too.
		execute(t, service, "SELECT event_id FROM audit_outbox FOR UPDATE SKIP LOCKED")
		execute(t, service, "UPDATE audit_outbox SET ledger_id = (SELECT ledger_id FROM audit_ledger), ledger_seq = 1 WHERE event_id = $1", id)
		for _, conn := range []*pgx.Conn{service, boss} {
			refused(t, conn, denied, "UPDATE audit_outbox SET ledger_seq = 2")
			refused(t, conn, denied, "UPDATE audit_outbox SET ledger_seq = NULL, ledger_id = NULL")
			refused(t, conn, denied, "UPDATE audit_outbox SET ledger_id = gen_random_uuid()")
			execute(t, conn, "UPDATE audit_outbox SET ledger_seq = 1, status = 'DELIVERED'")
		}
		refused(t, boss, denied, "TRUNCATE audit_outbox")
	}
}

// (A9, BC-76) Append-only tables refuse everything but INSERT, to the owner's role as well.
func TestAppendOnly(t *testing.T) {
	t.Parallel()
	auth, admin := migrated(t, "auth"), migrated(t, "admin")
	service := as(t, auth, "auth_service")
	execute(t, service, "INSERT INTO audit_lifecycle (transition, event_id) VALUES ('requeue', gen_random_uuid())")
	execute(t, as(t, admin, "admin_service"), `
		INSERT INTO inbox_poison (stream, fields_hash, kind, reason, owner, first_entry_id, last_entry_id, raw_fields, raw_size)
		VALUES ('audit:{auth}', '\x00', 'FORGED', 'mac', 'auth', '1-0', '1-0', '', 0)`)

	for database, tables := range map[string]map[string]string{
		auth:  {"audit_lifecycle": "reason"},
		admin: {"audit_logs": "reason", "ledger_entries": "owner", "inbox_poison": ""},
	} {
		owner := "auth"
		if database == admin {
			owner = "admin"
		}
		for table, column := range tables {
			for _, role := range []string{migrations.OwnerRole(owner), migrations.ServiceRole(owner)} {
				conn := as(t, database, role)
				refused(t, conn, denied, "DELETE FROM "+table)
				refused(t, conn, denied, "TRUNCATE "+table)
				if column != "" {
					refused(t, conn, denied, "UPDATE "+table+" SET "+column+" = 'x'")
				}
			}
		}
	}
	if n := query[int](t, service, "SELECT count(*) FROM audit_lifecycle"); n != 1 {
		t.Errorf("%d lifecycle rows, want 1", n)
	}
}

// (BC-76) What a service cannot switch off, and what the owner's role still can: guarantees.md says so.
func TestWhatCanBeSwitchedOff(t *testing.T) {
	t.Parallel()
	name := migrated(t, "auth")
	service, boss := as(t, name, "auth_service"), as(t, name, "auth_owner")
	for _, conn := range []*pgx.Conn{service, boss} {
		refused(t, conn, denied, "SET session_replication_role = replica")
	}
	for _, sql := range []string{
		"ALTER TABLE audit_lifecycle DISABLE TRIGGER ALL", "DROP TRIGGER audit_lifecycle_append_only ON audit_lifecycle",
		"DROP TABLE audit_outbox", "ALTER DOMAIN outbox_status DROP CONSTRAINT outbox_status_check",
		"CREATE TABLE extra (id integer)", "CREATE TEMP TABLE audit_outbox (id integer)", "CREATE SCHEMA extra",
		"CREATE EXTENSION dblink", "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", "SET ROLE auth_owner",
		"COPY audit_lifecycle (lifecycle_no, transition, event_id) FROM PROGRAM 'true'",
		"ALTER ROLE auth_service SUPERUSER", "CREATE DATABASE extra", "GRANT SELECT ON users TO app_service",
	} {
		_, err := service.Exec(t.Context(), sql)
		if code := sqlState(err); code != denied {
			if sql != "GRANT SELECT ON users TO app_service" { // Postgres only warns when nothing was granted
				t.Errorf("%s: got %v, want permission denied", sql, err)
			}
		}
	}
	if query[bool](t, boss, "SELECT has_table_privilege('app_service', 'users', 'SELECT')") {
		t.Error("a service handed its rights on")
	}
	// The limit: whoever holds the owner's role can disable a trigger of its own table.
	execute(t, boss, "BEGIN")
	execute(t, boss, "ALTER TABLE audit_lifecycle DISABLE TRIGGER audit_lifecycle_append_only")
	execute(t, boss, "ROLLBACK")
}

// Each role has its settings and nothing that makes it more than it is.
func TestRoleSettings(t *testing.T) {
	t.Parallel()
	for _, owner := range migrations.Owners() {
		conn := as(t, migrated(t, owner), migrations.ServiceRole(owner))
		for setting, want := range map[string]string{
			"idle_in_transaction_session_timeout": "20s", "lock_timeout": "5s",
			"transaction_isolation": "read committed", "is_superuser": "off",
		} {
			if got := query[string](t, conn, "SELECT current_setting($1)", setting); got != want {
				t.Errorf("%s: %s = %s, want %s", owner, setting, got, want)
			}
		}
		for role, inherits := range map[string]bool{migrations.OwnerRole(owner): true, migrations.ServiceRole(owner): false} {
			plain := query[bool](t, conn, `
				SELECT rolcanlogin AND rolinherit = $2 AND NOT (rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls)
				   AND NOT EXISTS (SELECT FROM pg_auth_members m WHERE m.member = r.oid)
				FROM pg_roles r WHERE rolname = $1`, role, inherits)
			if !plain {
				t.Errorf("%s is more than it should be", role)
			}
		}
	}
}

// A role that somebody changed is put right again, and only where it differs. All in a transaction that is rolled back:
// the roles are shared with every other test of the server.
func TestRolesAreCorrected(t *testing.T) {
	t.Parallel()
	emptyDatabase(t, "app") // for the roles
	home := connect(t, superuser)
	const right = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app_service' AND 'lock_timeout=5s' = ANY (rolconfig) AND NOT rolcreatedb)"
	execute(t, home, "BEGIN")
	execute(t, home, "ALTER ROLE app_service CREATEDB")
	execute(t, home, "ALTER ROLE app_service SET lock_timeout = 0")
	if query[bool](t, home, right) {
		t.Fatal("nothing was changed")
	}
	must(t, migrations.Roles(t.Context(), home))
	if !query[bool](t, home, right) {
		t.Error("the role was not corrected")
	}
	const written = "SELECT xmin::text || cmin::text FROM pg_authid WHERE rolname = 'app_service'"
	before := query[string](t, home, written)
	must(t, migrations.Roles(t.Context(), home))
	if after := query[string](t, home, written); after != before {
		t.Error("a role that was right was written again")
	}
	execute(t, home, "ROLLBACK")
}

// Grants states the whole: what is not in it is taken away. A clone has its tables' rights and none of its database's,
// which is why Grants follows each clone.
func TestGrantsAreWhole(t *testing.T) {
	t.Parallel()
	name := migrated(t, "auth")
	super, boss, service := root(t, name), as(t, name, "auth_owner"), as(t, name, "auth_service")
	execute(t, boss, "GRANT DELETE ON audit_outbox TO auth_service")
	execute(t, boss, "GRANT UPDATE (payload) ON audit_outbox TO auth_service")
	execute(t, super, "GRANT TEMP, CONNECT ON DATABASE "+name+" TO PUBLIC")
	must(t, migrations.Grants(t.Context(), boss, "auth"))
	refused(t, service, denied, "DELETE FROM audit_outbox")
	refused(t, service, denied, "UPDATE audit_outbox SET payload = ''")
	refused(t, service, denied, "CREATE TEMP TABLE audit_outbox (id integer)")

	must(t, service.Close(t.Context()))
	must(t, boss.Close(t.Context()))
	clone := name + "_clone"
	home := connect(t, superuser)
	must(t, super.Close(t.Context()))
	execute(t, home, "CREATE DATABASE "+clone+" TEMPLATE "+name)
	t.Cleanup(func() { dropLater(t, "DATABASE "+clone+" WITH (FORCE)") })
	must(t, migrations.Grants(t.Context(), root(t, clone), "auth"))
	appendEvent(t, as(t, clone, "auth_service"))
	if _, err := pgx.Connect(t.Context(), urlOf(t, clone, "app_service")); sqlState(err) != denied {
		t.Errorf("app_service in a clone of auth: %v", err)
	}
	refused(t, as(t, clone, "auth_service"), denied, "CREATE TEMP TABLE audit_outbox (id integer)")
}

// Passwords are stored as SCRAM verifiers that Postgres accepts, and odd ones are refused.
func TestSetPassword(t *testing.T) {
	t.Parallel()
	home := connect(t, superuser)
	role := "password_test_" + uuid.NewString()[:8]
	execute(t, home, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() { dropLater(t, "ROLE "+role) })
	must(t, migrations.SetPassword(t.Context(), home, role, "correct horse ' battery"))
	stored := query[string](t, home, "SELECT rolpassword FROM pg_authid WHERE rolname = $1", role)
	if !strings.HasPrefix(stored, "SCRAM-SHA-256$4096:") {
		t.Errorf("stored as %s", stored)
	}
	for _, bad := range []string{"", "tab\t", "pässword"} {
		if err := migrations.SetPassword(t.Context(), home, role, bad); err == nil {
			t.Errorf("password %q was taken", bad)
		}
	}
}

// (U10) Nothing in the databases can reach another one, and the server makes no prepared transactions by default.
func TestNoWayAcross(t *testing.T) {
	t.Parallel()
	for _, owner := range migrations.Owners() {
		conn := root(t, migrated(t, owner))
		across := query[int](t, conn, `
			SELECT (SELECT count(*) FROM pg_extension WHERE extname <> 'plpgsql')
			     + (SELECT count(*) FROM pg_foreign_data_wrapper) + (SELECT count(*) FROM pg_foreign_server)`)
		if across != 0 {
			t.Errorf("%s: %d extensions, wrappers or foreign servers", owner, across)
		}
		if n := query[string](t, conn, "SHOW max_prepared_transactions"); n != "0" {
			t.Errorf("max_prepared_transactions = %s", n)
		}
	}
}
