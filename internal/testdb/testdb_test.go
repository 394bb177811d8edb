// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package testdb

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/devserver"
)

func scan[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestEachTestHasItsOwnMigratedDatabase(t *testing.T) {
	t.Parallel()
	for _, schema := range []Schema{Auth, App, Admin} {
		t.Run(string(schema), func(t *testing.T) {
			t.Parallel()
			one, other := New(t, schema), New(t, schema)
			if _, err := one.Owner.Exec(t.Context(), "CREATE TABLE mine (n int)"); err != nil {
				t.Errorf("the owner may not change its schema: %v", err)
			}
			if scan[bool](t, other.Owner, "SELECT to_regclass('mine') IS NOT NULL") {
				t.Error("two tests share a database")
			}
			if got, want := scan[string](t, one.Service, "SELECT current_user"), string(schema)+"_service"; got != want {
				t.Errorf("Service connects as %s, want %s", got, want)
			}
			if !scan[bool](t, one.Super, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") {
				t.Error("Super is no superuser")
			}
			if scan[int](t, one.Owner, "SELECT count(*) FROM goose_db_version") < 2 {
				t.Error("no migration was applied")
			}
		})
	}
}

// CREATE DATABASE … TEMPLATE copies no rights of the database itself: a clone whose grants were not applied again lets every role
// connect and make temporary tables, which can shadow the real ones.
func TestACloneHasTheRightsOfTheOriginal(t *testing.T) {
	t.Parallel()
	db := New(t, Auth)
	if _, err := db.Service.Exec(t.Context(), "CREATE TEMPORARY TABLE audit_outbox (n int)"); sqlState(err) != "42501" {
		t.Errorf("the service may make a temporary table: %v", err)
	}
	if _, err := db.Service.Exec(t.Context(), "CREATE TABLE x (n int)"); sqlState(err) != "42501" {
		t.Errorf("the service may change the schema: %v", err)
	}
	stranger, err := pgxpool.New(t.Context(), db.URL("app_service"))
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if err := stranger.Ping(t.Context()); sqlState(err) != "42501" {
		t.Errorf("another service's role may connect: %v", err)
	}
	if got := scan[string](t, db.Service, "SHOW idle_in_transaction_session_timeout"); got != "20s" {
		t.Errorf("the role's settings are missing: %s", got)
	}
}

func TestTheDatabaseIsDroppedAfterTheTest(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("test", func(t *testing.T) {
		db := New(t, App)
		name = db.Name
		scan[int](t, db.Service, "SELECT 1")
	})
	if scan[bool](t, New(t, App).Super, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name) {
		t.Errorf("%s is still there", name)
	}
}

func TestBlankIsEmptyAndTheOwners(t *testing.T) {
	t.Parallel()
	db := Blank(t, Admin)
	if got := scan[int](t, db.Super, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"); got != 0 {
		t.Errorf("%d relations in a blank database", got)
	}
	if _, err := db.Owner.Exec(t.Context(), "CREATE TABLE x (n int)"); err != nil {
		t.Errorf("the owner may not make tables: %v", err)
	}
}

func TestTheTemplateIsMadeAgainWhenAMigrationChanges(t *testing.T) {
	t.Parallel()
	auth, err := hashFiles(Auth)
	if err != nil {
		t.Fatal(err)
	}
	again, err := hashFiles(Auth)
	if err != nil {
		t.Fatal(err)
	}
	app, err := hashFiles(App)
	if err != nil {
		t.Fatal(err)
	}
	if auth != again || auth == app {
		t.Errorf("hashes: auth %s and %s, app %s", auth, again, app)
	}
}

func TestAServerOfItsOwnCanBeKilled(t *testing.T) {
	t.Parallel()
	p := Postgres(t, devserver.PostgresOptions{})
	db := On(t, p, Auth)
	if got := scan[string](t, db.Service, "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	p.Kill()
	if err := db.Service.Ping(t.Context()); err == nil {
		t.Error("answers after Kill")
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := scan[string](t, db.Service, "SELECT current_database()"); got != "auth" {
		t.Errorf("connected to %s", got)
	}
}

func TestEachTestHasItsOwnRedis(t *testing.T) {
	t.Parallel()
	one, other := Redis(t), RedisWith(t, devserver.RedisOptions{Settings: map[string]string{"maxmemory": "3mb"}})
	if err := one.Client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := other.Client.DBSize(t.Context()).Result(); n != 0 || err != nil {
		t.Errorf("another test's server has %d keys, %v", n, err)
	}
	if got, err := other.Client.ConfigGet(t.Context(), "maxmemory").Result(); err != nil || got["maxmemory"] != "3145728" {
		t.Errorf("settings were not applied: %v, %v", got, err)
	}
}

func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
