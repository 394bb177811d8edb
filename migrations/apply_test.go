// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver named "pgx"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/migrations"
)

// (A27) Up, down to nothing and up again end where the first up ended.
func TestUpDownUp(t *testing.T) {
	t.Parallel()
	for _, owner := range migrations.Owners() {
		t.Run(owner, func(t *testing.T) {
			t.Parallel()
			name := migrated(t, owner)
			url := urlOf(t, name, migrations.OwnerRole(owner))
			conn := root(t, name)
			const objects = `
				SELECT coalesce(string_agg(c.relname || ' ' || c.relkind::text, E'\n' ORDER BY c.relname, c.relkind), '')
				    || E'\n' || coalesce((SELECT string_agg(p.oid::regprocedure::text, E'\n' ORDER BY p.proname)
				                          FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace), '')
				FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relname NOT LIKE 'goose_%'`
			up := query[string](t, conn, objects)

			must(t, migrations.DownTo(t.Context(), url, owner, 0))
			if left := query[string](t, conn, objects); left != "\n" {
				t.Errorf("down left behind: %s", left)
			}
			must(t, migrations.Apply(t.Context(), url, owner))
			if again := query[string](t, conn, objects); again != up {
				t.Errorf("second up differs:\n%s\nfirst:\n%s", again, up)
			}
		})
	}
}

// (U65) Each owner has a tree and a version table of its own: taking one back does nothing to another.
func TestOwnersMigrateApart(t *testing.T) {
	t.Parallel()
	auth, app := migrated(t, "auth"), migrated(t, "app")
	must(t, migrations.DownTo(t.Context(), urlOf(t, auth, "auth_owner"), "auth", 0))

	states, err := migrations.Status(t.Context(), urlOf(t, app, "app_owner"), "app")
	must(t, err)
	for _, s := range states {
		if !s.Applied || s.AppliedAt.IsZero() {
			t.Errorf("app lost %s", s.File)
		}
	}
	states, err = migrations.Status(t.Context(), urlOf(t, auth, "auth_owner"), "auth")
	must(t, err)
	if len(states) != len(sqlFiles(t, "auth")) || states[0].Applied || states[0].Version != 1 {
		t.Errorf("auth after down: %+v", states)
	}
}

// (BC-14) Ten at once against a server that has nothing: all succeed, each version is recorded once.
func TestTenAtOnceOnAnEmptyServer(t *testing.T) {
	t.Parallel()
	for _, owner := range migrations.Owners() {
		name := emptyDatabase(t, owner)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if err := migrations.Setup(t.Context(), superuser, owner, name); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		got := query[int](t, root(t, name), "SELECT count(*) FROM goose_db_version WHERE version_id > 0")
		if want := len(sqlFiles(t, owner)); got != want {
			t.Errorf("%s: %d versions recorded, want %d", owner, got, want)
		}
	}
}

// A superuser's connection acts as the owner's role, so that the functions that run with their owner's rights do not
// run with a superuser's.
func TestObjectsBelongToTheOwnersRole(t *testing.T) {
	t.Parallel()
	for _, owner := range migrations.Owners() {
		conn := root(t, migrated(t, owner))
		foreign := query[int](t, conn, `
			SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relowner <> $1::regrole)
			     + (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proowner <> $1::regrole)
			     + (SELECT count(*) FROM pg_database WHERE datname = current_database() AND datdba <> $1::regrole)`,
			migrations.OwnerRole(owner))
		if foreign != 0 {
			t.Errorf("%s: %d objects belong to somebody else", owner, foreign)
		}
	}
}

// (BC-15) The lock lives in a transaction: a session that goes on living on a pooled backend does not keep it.
func TestLockEndsWithItsTransaction(t *testing.T) {
	t.Parallel()
	url := urlOf(t, emptyDatabase(t, "auth"), "auth_owner")
	pooled, err := sql.Open("pgx", url)
	must(t, err)
	defer pooled.Close()
	pooled.SetMaxOpenConns(1)
	other, err := sql.Open("pgx", url)
	must(t, err)
	defer other.Close()

	held, err := migrations.TryLock(t.Context(), pooled)
	must(t, err)
	if held == nil {
		t.Fatal("the first did not get the lock")
	}
	if second, err := migrations.TryLock(t.Context(), other); err != nil || second != nil {
		t.Fatalf("the lock was given twice (%v)", err)
	}
	must(t, held.Rollback()) // what a pooler does for a client that is gone; the backend stays
	third, err := migrations.TryLock(t.Context(), other)
	must(t, err)
	if third == nil {
		t.Fatal("the lock stayed with the session")
	}
	must(t, third.Rollback())
}

// A call whose context ends while it waits returns; it leaves no lock and no connection.
func TestWaitingEndsWithTheContext(t *testing.T) {
	t.Parallel()
	name := emptyDatabase(t, "auth")
	db, err := sql.Open("pgx", urlOf(t, name, "auth_owner"))
	must(t, err)
	defer db.Close()
	held, err := migrations.TryLock(t.Context(), db)
	must(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := migrations.Apply(ctx, urlOf(t, name, "auth_owner"), "auth"); err == nil {
		t.Fatal("applied while another held the lock")
	}
	must(t, held.Rollback())
	must(t, migrations.Apply(t.Context(), urlOf(t, name, "auth_owner"), "auth"))
}

// slow is a migration that stays in the middle of its transaction.
func slow() fstest.MapFS {
	return fstest.MapFS{"0001_slow.sql": {Data: []byte(`-- +goose Up
CREATE TABLE half_way (id integer);
SELECT pg_sleep(600);
-- +goose Down
DROP TABLE half_way;
`)}}
}

// concurrent builds an index outside a transaction.
func concurrent() fstest.MapFS {
	return fstest.MapFS{
		"0001_table.sql": {Data: []byte(`-- +goose Up
CREATE TABLE indexed (id integer, note text);
INSERT INTO indexed SELECT n, 'x' FROM generate_series(1, 1000) n;
-- +goose Down
DROP TABLE indexed;
`)},
		"0002_index.sql": {Data: []byte(`-- +goose NO TRANSACTION
-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS indexed_note_idx;
CREATE INDEX CONCURRENTLY indexed_note_idx ON indexed (note);
-- +goose Down
DROP INDEX indexed_note_idx;
`)},
	}
}

// envMigrator makes the test binary a migrator that can be killed: it applies the set of this name to envURL.
const (
	envMigrator = "MIGRATIONS_TEST_SET"
	envURL      = "MIGRATIONS_TEST_URL"
)

// migrator is main of the process that is killed.
func migrator() int {
	set := map[string]func() fstest.MapFS{"slow": slow, "concurrent": concurrent}[os.Getenv(envMigrator)]
	if err := migrations.ApplyFiles(context.Background(), os.Getenv(envURL), "auth", set()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// startMigrator runs this binary as a migrator.
func startMigrator(t *testing.T, set, url string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envMigrator+"="+set, envURL+"="+url)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it is gone if the test did its work
		_ = cmd.Wait()
	})
	return cmd
}

// (BC-15) A migrator killed half way keeps nobody waiting and leaves nothing of the half.
func TestKilledMigratorDoesNotStrandTheNext(t *testing.T) {
	t.Parallel()
	name := emptyDatabase(t, "auth")
	conn := root(t, name)
	for route, url := range routes(t, name) {
		killed := startMigrator(t, "slow", url)
		const sleeping = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()"
		poll(t, "the migration is half way", func() bool { return query[int](t, conn, sleeping) == 1 })
		must(t, killed.Process.Kill())

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		db, err := sql.Open("pgx", urlOf(t, name, "auth_owner"))
		must(t, err)
		for {
			held, err := migrations.TryLock(ctx, db)
			if err != nil {
				t.Fatalf("%s: the lock is stranded: %v", route, err)
			}
			if held != nil {
				must(t, held.Rollback())
				break
			}
		}
		must(t, db.Close())
		cancel()
		// The backend itself learns of its client's end only when its statement ends: spare the ten minutes.
		execute(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()")
		poll(t, "nothing sleeps any more", func() bool { return query[int](t, conn, sleeping) == 0 })
		if query[bool](t, conn, "SELECT to_regclass('half_way') IS NOT NULL") {
			t.Errorf("%s: half a migration is there", route)
		}
	}
	must(t, migrations.ApplyFiles(t.Context(), urlOf(t, name, "auth_owner"), "auth", fstest.MapFS{
		"0001_quick.sql": {Data: []byte("-- +goose Up\nCREATE TABLE half_way (id integer);\n-- +goose Down\nDROP TABLE half_way;\n")},
	}))
}

// (BC-16) Killed during CREATE INDEX CONCURRENTLY: the next run succeeds and no invalid index remains.
func TestKilledDuringConcurrentIndex(t *testing.T) {
	t.Parallel()
	name := emptyDatabase(t, "auth")
	url := urlOf(t, name, "auth_owner")
	conn, blocker := root(t, name), root(t, name)
	must(t, migrations.ApplyFiles(t.Context(), url, "auth", fstest.MapFS{"0001_table.sql": concurrent()["0001_table.sql"]}))

	// An open writer keeps the build waiting after it has entered its index, not yet valid, into the catalogue.
	execute(t, blocker, "BEGIN")
	execute(t, blocker, "UPDATE indexed SET note = 'y' WHERE id = 1")
	killed := startMigrator(t, "concurrent", url)
	const invalid = "SELECT count(*) FROM pg_index WHERE indrelid = 'indexed'::regclass AND NOT indisvalid"
	poll(t, "the index is being built", func() bool { return query[int](t, conn, invalid) == 1 })
	must(t, killed.Process.Kill())
	execute(t, conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CREATE INDEX CONCURRENTLY%'")
	execute(t, blocker, "ROLLBACK")
	if n := query[int](t, conn, invalid); n != 1 {
		t.Fatalf("%d invalid indexes after the kill: the test does not test", n)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	must(t, migrations.ApplyFiles(ctx, url, "auth", concurrent()))
	if n := query[int](t, conn, invalid); n != 0 {
		t.Errorf("%d invalid indexes remain", n)
	}
	if n := query[int](t, conn, "SELECT count(*) FROM pg_index WHERE indrelid = 'indexed'::regclass AND indisvalid"); n != 1 {
		t.Errorf("%d valid indexes, want 1", n)
	}
}

// (BC-16) Several migrators while an index is built concurrently: those that wait for the lock hold no snapshot, for
// which the build would wait in turn.
func TestWaitersDoNotBlockConcurrentIndex(t *testing.T) {
	t.Parallel()
	url := urlOf(t, emptyDatabase(t, "auth"), "auth_owner")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := migrations.ApplyFiles(ctx, url, "auth", concurrent()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// routes gives the ways to a database: direct, and through a transaction pooler where one is installed.
func routes(t *testing.T, database string) map[string]string {
	t.Helper()
	ways := map[string]string{"direct": urlOf(t, database, "auth_owner")}
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		t.Log("no pgbouncer on this machine: the direct way only (TestLockEndsWithItsTransaction shows what a pooler relies on)")
		return ways
	}
	ways["pgbouncer"] = startPooler(t, program, database)
	return ways
}

// startPooler runs pgbouncer in transaction mode in front of the database.
func startPooler(t *testing.T, program, database string) string {
	t.Helper()
	server := connect(t, superuser).Config()
	dir, err := os.MkdirTemp("", "counterfoil-pooler-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o777)) // as root, pgbouncer runs as another user
	users, conf := filepath.Join(dir, "users.txt"), filepath.Join(dir, "pgbouncer.ini")
	port, err := devserver.FreePort()
	must(t, err)
	must(t, os.WriteFile(users, []byte("\"auth_owner\" \"\"\n"), 0o644))
	must(t, os.WriteFile(conf, fmt.Appendf(nil, `[databases]
%s = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
`, database, server.Port, port, users), 0o644))
	cmd := exec.Command(program, conf)
	if os.Geteuid() == 0 {
		cmd = exec.Command(program, "-u", "postgres", conf)
	}
	log, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	scanner := bufio.NewScanner(log)
	for scanner.Scan() {
		if strings.Contains(scanner.Text(), "process up") {
			go func() { // keep the pipe empty until the process ends
				for scanner.Scan() {
				}
			}()
			return fmt.Sprintf("postgres://auth_owner@127.0.0.1:%d/%s?sslmode=disable", port, database)
		}
	}
	t.Fatal("pgbouncer did not start")
	return ""
}
