// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// widgets is a table that a team adds: the last line is all it takes to guard it.
const widgets = `
CREATE TABLE widgets (id uuid PRIMARY KEY, version bigint NOT NULL, name text NOT NULL DEFAULT '',
    parent uuid REFERENCES widgets ON DELETE CASCADE);
GRANT SELECT, INSERT, UPDATE, DELETE ON widgets TO app_service;
SELECT audit_guard('widgets', 'widget');`

// recorded is the INSERT of a widget's event. id is an expression.
func recorded(operation, id string, version int) string {
	return fmt.Sprintf(`INSERT INTO audit_outbox (event_id, occur_time, resource_version, schema_version, event_type, operation,
		resource_type, resource_id, payload) VALUES (gen_random_uuid(), now(), %d, 1, 't.v1', '%s', 'widget', %s, '')`, version, operation, id)
}

// guarded is one transaction of a service. W is the id of a widget at version 2, N was never used, and G belonged to a row that
// was deleted at version 3; the events of all of them have aged out of the outbox. refusal is part of the error that it must end with; "" means that it must commit.
type guarded struct {
	name, refusal string
	sql           []string
}

func guardCases() []guarded {
	insert, update := "INSERT INTO widgets (id, version) VALUES (N, 1)", "UPDATE widgets SET version = version + 1 WHERE id = W"
	remove := "DELETE FROM widgets WHERE id = W"
	ev := func(operation, of string, version int) string { return recorded(operation, of+"::text", version) }
	return []guarded{
		// No change without its event.
		{"an insert without an event", "version 1 of widget N has no event", []string{insert}},
		{"an update without an event", "version 3 of widget W has no event", []string{update}},
		{"a deletion without an event", "version 3 of widget W has no event", []string{remove}},
		{"an event of another type", "has no event", []string{insert, strings.Replace(ev("CREATE", "N", 1), "'widget'", "'project'", 1)}},
		{"an event of another row", "has no event", []string{update, ev("UPDATE", "N", 3)}},
		{"an event without a version", "has no event", []string{update, strings.Replace(ev("UPDATE", "W", 3), " 3, 1,", " NULL, 1,", 1)}},
		{"a skipped version", "this change makes version 3", []string{"UPDATE widgets SET version = 4 WHERE id = W", ev("UPDATE", "W", 4)}},
		{"a repeated version", "this change makes version 3", []string{"UPDATE widgets SET name = 'x' WHERE id = W"}},
		{"a first version that is not 1", "this change makes version 1", []string{"INSERT INTO widgets (id, version) VALUES (N, 2)", ev("CREATE", "N", 2)}},
		{"nine events for ten rows", "has no event", []string{
			"INSERT INTO widgets (id, version) SELECT md5(N::text || n)::uuid, 1 FROM generate_series(1, 10) n",
			strings.Replace(strings.TrimSuffix(ev("CREATE", "md5(N::text || n)::uuid", 1), ")"), "VALUES (", "SELECT ", 1) + " FROM generate_series(1, 9) n",
		}},
		{"one event for two changes", "version 3 of widget W has no event", []string{update, update, ev("UPDATE", "W", 4)}},
		{"a change recorded as a deletion", "was made by UPDATE and recorded as DELETE", []string{update, ev("DELETE", "W", 3)}},
		{"a deletion recorded as a change", "was made by DELETE and recorded as UPDATE", []string{remove, ev("UPDATE", "W", 3)}},
		{"a changed id", "an id stays", []string{"UPDATE widgets SET id = N, version = 3 WHERE id = W", ev("UPDATE", "W", 3)}},
		{"an id used again", "an id is never used again", []string{"INSERT INTO widgets (id, version) VALUES (G, 1)", ev("CREATE", "G", 1)}},
		{"an id used again at once", "it says version 2 of widget N, and this transaction made version 1", []string{
			insert, ev("CREATE", "N", 1), "DELETE FROM widgets WHERE id = N", ev("DELETE", "N", 2), insert,
		}},
		{"through a CTE", "has no event", []string{"WITH i AS (INSERT INTO widgets (id, version) VALUES (N, 1) RETURNING id) SELECT id FROM i"}},
		{"through MERGE", "has no event", []string{
			"MERGE INTO widgets w USING (VALUES (W::uuid)) v (id) ON w.id = v.id WHEN MATCHED THEN UPDATE SET version = w.version + 1",
		}},
		{"through a savepoint", "has no event", []string{"SAVEPOINT s", update, "RELEASE s"}},
		{"an event rolled back to a savepoint", "has no event", []string{update, "SAVEPOINT s", ev("UPDATE", "W", 3), "ROLLBACK TO s"}},
		{"through ON DELETE CASCADE", "of widget N, and this transaction made version 2", []string{
			"INSERT INTO widgets (id, version, parent) VALUES (N, 1, W)", ev("CREATE", "N", 1), remove, ev("DELETE", "W", 3),
		}},
		{"TRUNCATE", "permission denied", []string{"TRUNCATE widgets"}},

		// No event without its change.
		{"an event without its change", "this transaction made no version 3", []string{ev("UPDATE", "W", 3)}},
		{"an event of an id that has no row", "this transaction made no version 1", []string{ev("CREATE", "N", 1)}},
		{"a deletion of an id that has no row", "this transaction made no version 3", []string{ev("DELETE", "N", 3)}},
		{"a deletion recorded again", "this transaction made no version 4", []string{ev("DELETE", "G", 4)}},
		{"an event of a change made before", "this transaction made no version 2", []string{ev("UPDATE", "W", 2)}},
		{"an older version beside a change", "it says version 1", []string{update, ev("UPDATE", "W", 3), ev("UPDATE", "W", 1)}},
		{"an event too many", "it says version 4", []string{update, ev("UPDATE", "W", 3), ev("UPDATE", "W", 4)}},
		{"an event of a type that nothing guards", "of which no table is guarded", []string{strings.Replace(ev("CREATE", "N", 1), "'widget'", "'gadget'", 1)}},
		{"an event of what is no id", "invalid input syntax for type uuid", []string{strings.Replace(ev("CREATE", "N", 1), "N::text", "'x'", 1)}},

		// What it lets pass.
		{"an insert", "", []string{insert, ev("CREATE", "N", 1)}},
		{"the event before the change", "", []string{ev("UPDATE", "W", 3), update}},
		{"several changes of one row", "", []string{update, ev("UPDATE", "W", 3), update, ev("UPDATE", "W", 4), update, ev("UPDATE", "W", 5)}},
		{"created and deleted", "", []string{insert, ev("CREATE", "N", 1), "DELETE FROM widgets WHERE id = N", ev("DELETE", "N", 2)}},
		{"changed and deleted", "", []string{update, ev("UPDATE", "W", 3), remove, ev("DELETE", "W", 4)}},
		{"removed and added again under a new id", "", []string{remove, ev("DELETE", "W", 3), insert, ev("CREATE", "N", 1)}},
		{"a change in a savepoint", "", []string{"SAVEPOINT s", update, "RELEASE s", ev("UPDATE", "W", 3)}},
		{"both in savepoints", "", []string{"SAVEPOINT a", ev("UPDATE", "W", 3), "RELEASE a", "SAVEPOINT b", "SAVEPOINT c", update, "RELEASE b"}},
		{"an attempt rolled back", "", []string{"SAVEPOINT s", insert, ev("CREATE", "N", 1), "ROLLBACK TO s"}},
		{"a cascade with its events", "", []string{
			"INSERT INTO widgets (id, version, parent) VALUES (N, 1, W)", ev("CREATE", "N", 1), remove, ev("DELETE", "W", 3), ev("DELETE", "N", 2),
		}},
		{"an event about no row", "", []string{strings.Replace(ev("LOGIN", "N", 1), " 1, 1,", " NULL, 1,", 1)}},
		{"an update of nothing", "", []string{"UPDATE widgets SET version = version + 1 WHERE id = N"}},
	}
}

// (U86) Whoever writes the SQL: no change of a guarded row without its event, and no event with a version without its change.
func TestTheGuard(t *testing.T) {
	t.Parallel()
	name := migrated(t, "app")
	boss, service := root(t, name), as(t, name, "app_service")
	execute(t, as(t, name, "app_owner"), widgets)
	for _, c := range guardCases() {
		t.Run(c.name, func(t *testing.T) {
			ids := strings.NewReplacer("W", uuid.NewString(), "N", uuid.NewString(), "G", uuid.NewString())
			in := func(sql ...string) error {
				word := regexp.MustCompile(`\b[WNG]\b`)
				text := word.ReplaceAllStringFunc(strings.Join(sql, ";\n"), func(w string) string { return "'" + ids.Replace(w) + "'" })
				_, err := service.Exec(t.Context(), "BEGIN;\n"+text+";\nCOMMIT") // without parameters: as psql sends it
				if err != nil {
					execute(t, service, "ROLLBACK")
				}
				return err
			}
			for _, sql := range [][]string{
				{"INSERT INTO widgets (id, version) VALUES (W, 1), (G, 1)", recorded("CREATE", "W::text", 1), recorded("CREATE", "G::text", 1)},
				{"UPDATE widgets SET version = 2 WHERE id IN (W, G)", recorded("UPDATE", "W::text", 2), recorded("UPDATE", "G::text", 2)},
				{"DELETE FROM widgets WHERE id = G", recorded("DELETE", "G::text", 3)},
			} {
				must(t, in(sql...))
			}
			execute(t, boss, "DELETE FROM audit_outbox")
			before := query[string](t, boss, "SELECT string_agg(w::text, ' ' ORDER BY id) FROM widgets w")
			err := in(c.sql...)
			switch {
			case c.refusal == "" && err != nil:
				t.Fatal(err)
			case c.refusal == "":
				return
			case err == nil || !strings.Contains(err.Error(), ids.Replace(c.refusal)):
				t.Fatalf("got %v, want a refusal with %q", err, ids.Replace(c.refusal))
			}
			if after := query[string](t, boss, "SELECT string_agg(w::text, ' ' ORDER BY id) FROM widgets w"); after != before {
				t.Errorf("a refused transaction left something: %s, was %s", after, before)
			}
			if n := query[int](t, boss, "SELECT count(*) FROM audit_outbox"); n != 0 {
				t.Errorf("a refused transaction left %d events", n)
			}
		})
	}
}

// Ways that are not a statement's text: COPY, parameters, and an owner with a temporary table in the way.
func TestTheGuardOnOtherWays(t *testing.T) {
	t.Parallel()
	name := migrated(t, "app")
	owner, service := as(t, name, "app_owner"), as(t, name, "app_service")
	execute(t, owner, widgets)
	const integrity = "23000"
	_, err := service.CopyFrom(t.Context(), pgx.Identifier{"widgets"}, []string{"id", "version"}, pgx.CopyFromRows([][]any{{uuid.New(), 1}}))
	if sqlState(err) != integrity {
		t.Errorf("COPY without events: %v", err)
	}
	refused(t, service, integrity, "INSERT INTO widgets (id, version) VALUES ($1, $2)", uuid.New(), 1)
	refused(t, owner, integrity, "INSERT INTO widgets (id, version) VALUES ($1, $2)", uuid.New(), 1)
	refused(t, owner, "42501", "TRUNCATE widgets")
	refused(t, service, "42501", "CREATE TEMP TABLE audit_outbox (event_id uuid)")

	// A migration that rewrites rows switches the guard off for itself, and says so in an event without a version.
	execute(t, owner, "BEGIN; INSERT INTO widgets (id, version) SELECT md5(n::text)::uuid, 1 FROM generate_series(1, 3) n; "+
		strings.Replace(recorded("CREATE", "md5(n::text)::uuid::text", 1), "VALUES (gen_random_uuid(), now(), 1, 1, 't.v1', 'CREATE', 'widget', md5(n::text)::uuid::text, '')",
			"SELECT gen_random_uuid(), now(), 1, 1, 't.v1', 'CREATE', 'widget', md5(n::text)::uuid::text, '' FROM generate_series(1, 3) n", 1)+"; COMMIT")
	rewrite := "UPDATE widgets SET name = 'migrated'"
	refused(t, owner, integrity, rewrite)
	execute(t, owner, "BEGIN; ALTER TABLE widgets DISABLE TRIGGER USER; "+rewrite+"; ALTER TABLE widgets ENABLE TRIGGER USER; "+
		strings.Replace(recorded("UPDATE", "''", 1), " 1, 1,", " NULL, 1,", 1)+"; COMMIT")
	refused(t, owner, integrity, rewrite)

	// An owner may make one, and it is not what the guard reads.
	id := uuid.New()
	execute(t, owner, "CREATE TEMP TABLE audit_outbox AS SELECT 'widget'::text AS resource_type, ''::text AS resource_id, 1::bigint AS resource_version, 'CREATE'::text AS operation, pg_current_xact_id() AS tx WITH NO DATA")
	tx, err := owner.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "INSERT INTO audit_outbox VALUES ('widget', $1, 1, 'CREATE', pg_current_xact_id())", id.String())
	must(t, err)
	_, err = tx.Exec(t.Context(), "INSERT INTO widgets (id, version) VALUES ($1, 1)", id)
	must(t, err)
	if err := tx.Commit(t.Context()); sqlState(err) != integrity {
		t.Errorf("an event in a temporary table was believed: %v", err)
	}
}

// The event of a change must be of the transaction that made it.
func TestTheGuardKnowsTransactionsApart(t *testing.T) {
	t.Parallel()
	name := migrated(t, "app")
	execute(t, as(t, name, "app_owner"), widgets)
	one, other := as(t, name, "app_service"), as(t, name, "app_service")
	id := "'" + uuid.NewString() + "'"
	execute(t, one, "BEGIN; INSERT INTO widgets (id, version) VALUES ("+id+", 1); "+recorded("CREATE", id, 1)+"; COMMIT")

	// While one changes the row, another records it: the one lacks its event, the other its change.
	execute(t, one, "BEGIN; UPDATE widgets SET version = 2 WHERE id = "+id)
	refused(t, other, "23000", recorded("UPDATE", id, 2))
	refused(t, one, "23000", "COMMIT")
	if v := query[int](t, one, "SELECT version FROM widgets"); v != 1 {
		t.Errorf("the row stands at version %d", v)
	}
}

// What cannot be guarded says why.
func TestWhatCannotBeGuarded(t *testing.T) {
	t.Parallel()
	name := migrated(t, "app")
	owner := as(t, name, "app_owner")
	for sql, want := range map[string]string{
		"CREATE TABLE a (id uuid PRIMARY KEY, v int)":                                                                            "it needs id uuid NOT NULL and version bigint NOT NULL",
		"CREATE TABLE a (id text PRIMARY KEY, version bigint NOT NULL)":                                                          "it needs id uuid NOT NULL and version bigint NOT NULL",
		"CREATE TABLE a (id uuid NOT NULL, version bigint NOT NULL)":                                                             "id must be unique",
		"CREATE UNLOGGED TABLE a (id uuid PRIMARY KEY, version bigint NOT NULL)":                                                 "ordinary logged table",
		"CREATE TABLE a (id uuid PRIMARY KEY, version bigint NOT NULL) PARTITION BY HASH (id)":                                   "ordinary logged table",
		"CREATE TABLE b (id uuid NOT NULL, version bigint NOT NULL); CREATE TABLE a (CONSTRAINT a_key UNIQUE (id)) INHERITS (b)": "ordinary logged table",
		"CREATE TABLE a_name_of_more_than_48_characters_which_is_a_long_one (id uuid PRIMARY KEY, version bigint NOT NULL); SELECT audit_guard('a_name_of_more_than_48_characters_which_is_a_long_one', 'a')": "more than 48 characters",
		"CREATE TABLE a (id uuid PRIMARY KEY, version bigint NOT NULL); SELECT audit_guard('a', 'project')":                                                                                                   "another table has the events of type project",
	} {
		_, err := owner.Exec(t.Context(), "BEGIN; "+sql+"; SELECT audit_guard('a', 'a')")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", sql, err, want)
		}
		execute(t, owner, "ROLLBACK")
	}
	refused(t, as(t, name, "app_service"), "42501", "SELECT audit_guard('projects', 'project')")
}

// Each table of an owner is guarded, or stands on the list of those that need not be, with a reason.
func TestEachTableIsGuardedOrExempt(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"auth", "app"} {
		conn := root(t, migrated(t, owner))
		rows, err := conn.Query(t.Context(), `
			SELECT c.relname::text, EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgfoid = 'require_event()'::regprocedure AND g.tgenabled = 'O')
			FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace`)
		must(t, err)
		tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
			Name    string
			Guarded bool
		}])
		must(t, err)
		text, err := os.ReadFile(owner + "/unaudited.txt")
		must(t, err)
		var exempt []string
		for _, line := range lines(string(text)) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			table, reason, _ := strings.Cut(line, " ")
			if strings.TrimSpace(reason) == "" {
				t.Errorf("%s: %s has no reason", owner, table)
			}
			exempt = append(exempt, table)
		}
		guarded := 0
		for _, table := range tables {
			if table.Guarded == slices.Contains(exempt, table.Name) {
				t.Errorf("%s.%s: guarded %v, exempt %v; it must be one of them", owner, table.Name, table.Guarded, !table.Guarded)
			}
			exempt = slices.DeleteFunc(exempt, func(name string) bool { return name == table.Name })
			if table.Guarded {
				guarded++
			}
		}
		if len(exempt) > 0 || guarded < 2 {
			t.Errorf("%s: %d tables are guarded; exempt and not there: %v", owner, guarded, exempt)
		}
	}
}
