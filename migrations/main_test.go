// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/migrations"
)

// superuser is the URL of the server that all tests of this package share. Each test makes databases of its own.
var superuser string

func TestMain(m *testing.M) {
	if os.Getenv(envMigrator) != "" {
		os.Exit(migrator())
	}
	flag.Parse()
	os.Exit(withServer(m))
}

// withServer runs the tests on the server that the environment names, or on one of its own.
func withServer(m *testing.M) int {
	if testing.Short() {
		return m.Run()
	}
	superuser = os.Getenv(devserver.EnvTestPostgres)
	if superuser == "" {
		server, stop, err := devserver.StartThrowaway(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer stop() //nolint:errcheck // its data is worth nothing
		superuser = server.URL("postgres", devserver.Superuser)
	}
	return m.Run()
}

var databases atomic.Int64

// emptyDatabase makes a database that owner's role owns, and no schema in it.
func emptyDatabase(t *testing.T, owner string) string {
	t.Helper()
	if testing.Short() {
		if os.Getenv("CI") == "true" {
			t.Fatal("-short with CI=true: nothing is skipped there")
		}
		t.Skip("needs Postgres")
	}
	name := fmt.Sprintf("migrations_%s_%d_%d", owner, os.Getpid(), databases.Add(1))
	conn := connect(t, superuser)
	must(t, migrations.Roles(t.Context(), conn))
	must(t, migrations.CreateDatabase(t.Context(), conn, owner, name))
	t.Cleanup(func() { dropLater(t, "DATABASE "+name+" WITH (FORCE)") })
	return name
}

// dropLater drops something at the end of a test, when the test's own context and connections are gone.
func dropLater(t *testing.T, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, superuser)
	if err != nil {
		t.Errorf("connect to drop %s: %v", what, err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP "+what); err != nil {
		t.Errorf("drop %s: %v", what, err)
	}
}

// migrated makes a database of owner with schema and rights.
func migrated(t *testing.T, owner string) string {
	t.Helper()
	name := emptyDatabase(t, owner)
	must(t, migrations.Setup(t.Context(), superuser, owner, name))
	return name
}

// urlOf names a database as a role.
func urlOf(t *testing.T, database, role string) string {
	t.Helper()
	u, err := url.Parse(superuser)
	must(t, err)
	u.Path = "/" + database
	u.User = url.User(role)
	return u.String()
}

// as connects to a database as a role.
func as(t *testing.T, database, role string) *pgx.Conn {
	t.Helper()
	return connect(t, urlOf(t, database, role))
}

// root connects to a database as the superuser.
func root(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	u, err := url.Parse(superuser)
	must(t, err)
	u.Path = "/" + database
	return connect(t, u.String())
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// execute runs a statement that must succeed and returns the rows it touched.
func execute(t *testing.T, conn *pgx.Conn, sql string, args ...any) int64 {
	t.Helper()
	tag, err := conn.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// query runs a statement that must return one value.
func query[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// pairs runs a statement that returns names with a text each.
func pairs(t *testing.T, conn *pgx.Conn, sql string, args ...any) map[string]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql, args...)
	must(t, err)
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var name, text string
		must(t, rows.Scan(&name, &text))
		all[name] = text
	}
	must(t, rows.Err())
	return all
}

// refused runs a statement that must fail with the SQLSTATE.
func refused(t *testing.T, conn *pgx.Conn, code, sql string, args ...any) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, args...)
	if got := sqlState(err); got != code {
		t.Errorf("%s\nas %s: got %v, want SQLSTATE %s", sql, conn.Config().User, err, code)
	}
}

// sqlState returns the code of an error, or "".
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// appendEvent inserts an outbox row as the service's role may, and returns its id.
func appendEvent(t *testing.T, conn *pgx.Conn) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	execute(t, conn, `
		INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id, payload)
		VALUES ($1, now(), 1, 'auth.login.failed.v1', 'LOGIN', 'user', '', '\x00')`, id)
	return id
}

// poll waits until done says so.
func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(30 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("waited 30 s for: %s", what)
		}
	}
}

// lines cuts a text into its lines, without blank ones.
func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
