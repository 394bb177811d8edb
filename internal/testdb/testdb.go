// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package testdb gives each test a database and a Redis server of its own, on real servers.
//
// A database is cloned from a template that was migrated once (some 30 ms), with the rights of its roles applied again,
// since a clone copies none. It is dropped when the test ends. The Postgres server is the one that COUNTERFOIL_TEST_POSTGRES names
// (`make test` sets it); without it, the test process starts one for itself and takes it along when it ends. It runs without
// fsync: a test about losing power needs Postgres and its options.
//
// With -short a test that asks for a server is skipped; otherwise a server that is neither found nor installed fails the
// test and the message says what to install. With CI=true -short fails too: nothing is skipped there.
//
// All clones of one template have the same ledger id, as the migration made it. Times and sequences go on from the template's.
package testdb

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/migrations"
)

// Schema names the service whose schema a database has.
type Schema string

// The three schemas.
const (
	Auth  Schema = "auth"
	App   Schema = "app"
	Admin Schema = "admin"
)

// password is every role's, unless the server's administrator has set another. Servers started here do not ask for it.
const password = "counterfoil-test"

// poolSize is how many connections a pool opens at most. They are opened when needed.
const poolSize = 32

// DB is one test's database. Its pools are closed and the database is dropped when the test ends.
type DB struct {
	// Name is the database's name on its server.
	Name string
	// Schema is whose schema it has.
	Schema Schema
	// Owner connects as the role that owns the schema, such as auth_owner.
	Owner *pgxpool.Pool
	// Service connects as the role that the service uses, such as auth_service. What a service may not do fails here.
	Service *pgxpool.Pool
	// Super connects as the superuser, for what no role may do: looking at everything, breaking things.
	Super *pgxpool.Pool

	server *url.URL
}

// New clones a database with the schema's tables and rights.
func New(t testing.TB, schema Schema) *DB {
	t.Helper()
	server := requireServer(t)
	template, err := server.template(schema)
	if err != nil {
		t.Fatal(err)
	}
	db := server.open(t, schema, freshName(schema))
	server.create(t, db, "TEMPLATE "+pgx.Identifier{template}.Sanitize())
	conn, err := db.Super.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if err := migrations.Grants(t.Context(), conn.Conn(), string(schema)); err != nil {
		t.Fatal(err)
	}
	return db
}

// Blank makes an empty database that the schema's owner role owns: for tests of the migrations themselves.
func Blank(t testing.TB, schema Schema) *DB {
	t.Helper()
	server := requireServer(t)
	if err := server.roles(); err != nil {
		t.Fatal(err)
	}
	db := server.open(t, schema, freshName(schema))
	server.create(t, db, "TEMPLATE template0")
	return db
}

// On makes a database named after the schema on a server of the test's own (see Postgres). It is not dropped: it ends
// with its server, which the test may kill.
func On(t testing.TB, p *devserver.Postgres, schema Schema) *DB {
	t.Helper()
	super := p.URL("postgres", devserver.Superuser)
	if err := migrations.Setup(t.Context(), super, string(schema), string(schema)); err != nil {
		t.Fatal(err)
	}
	server, err := newServer(super)
	if err != nil {
		t.Fatal(err)
	}
	return server.open(t, schema, string(schema))
}

// WithoutGuard takes the guard away and returns db: what the outbox does is tested without business tables.
func (db *DB) WithoutGuard(t testing.TB) *DB {
	t.Helper()
	if err := WithoutGuard(t.Context(), db.Super); err != nil {
		t.Fatal(err)
	}
	return db
}

// WithoutGuard takes the guard of audited tables away, for tests and measurements that fill an outbox without business rows.
// The pool's role must own the tables.
func WithoutGuard(ctx context.Context, pool *pgxpool.Pool) error {
	const sql = `
DO $$
DECLARE t record;
BEGIN
    FOR t IN SELECT g.tgname, g.tgrelid::regclass AS relation FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
             WHERE p.proname IN ('require_event', 'require_change', 'remember_deleted')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', t.tgname, t.relation);
    END LOOP;
END $$`
	_, err := pool.Exec(ctx, sql)
	return err
}

// URL returns the connection string of a role, such as auth_service, for this database. The superuser's name gives the
// superuser's own.
func (db *DB) URL(role string) string {
	u := *db.server
	u.Path = "/" + db.Name
	if role != u.User.Username() {
		u.User = url.UserPassword(role, password)
	}
	return u.String()
}

// Postgres starts a server for this test alone, with the given options; Dir may be left empty. It is killed and deleted
// when the test ends.
func Postgres(t testing.TB, opts devserver.PostgresOptions) *devserver.Postgres {
	t.Helper()
	requireServers(t)
	if opts.Dir == "" {
		opts.Dir = filepath.Join(Scratch(t), "postgres")
	}
	p, err := devserver.StartPostgres(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Stop(ctx); err != nil {
			t.Error(err)
		}
		if err := p.Remove(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Scratch returns a directory that a server under another user can reach, unlike t.TempDir, and that is deleted when the
// test or its process ends.
func Scratch(t testing.TB) string {
	t.Helper()
	s, err := devserver.NewScratch("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.Dir
}

// IgnoreServer is for tests with goleak: the goroutines that wait for the end of this process' own Postgres server are
// no leaks.
func IgnoreServer() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/counterfoil/counterfoil/internal/devserver.run.func1"),
		goleak.IgnoreAnyFunction("github.com/counterfoil/counterfoil/internal/devserver.onExit.func1"),
	}
}

// requireServers skips the test with -short, which CI=true forbids.
func requireServers(t testing.TB) {
	t.Helper()
	if !testing.Short() {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("needs real servers, and CI=true forbids to skip it with -short")
	}
	t.Skip("needs real servers")
}
