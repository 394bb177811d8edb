// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/migrations"
)

// Numbers have four digits, start at 1 and leave no gap: two branches that take the same one are found when they meet.
func TestNumbersAreDense(t *testing.T) {
	t.Parallel()
	for _, owner := range migrations.Owners() {
		for i, name := range sqlFiles(t, owner) {
			if want := fmt.Sprintf("%04d_", i+1); !strings.HasPrefix(name, want) {
				t.Errorf("%s/%s: want the number %s", owner, name, want)
			}
		}
	}
}

// Each file says why it is there, can be taken back in tests, and names its constraints itself.
func TestFilesKeepTheRules(t *testing.T) {
	t.Parallel()
	unnamed := regexp.MustCompile(`(?im)^\s*(PRIMARY KEY|UNIQUE|CHECK|FOREIGN KEY)|\s(REFERENCES|PRIMARY KEY|UNIQUE)\s*[,(]?\s*$`)
	for _, owner := range migrations.Owners() {
		dir, err := migrations.Files(owner)
		must(t, err)
		for _, name := range sqlFiles(t, owner) {
			text, err := fs.ReadFile(dir, name)
			must(t, err)
			head, body, found := strings.Cut(string(text), "-- +goose Up")
			if !found || !strings.Contains(body, "-- +goose Down") {
				t.Errorf("%s/%s: has not both parts, Up and Down", owner, name)
			}
			if len(lines(head)) < 3 {
				t.Errorf("%s/%s: does not begin with a comment that says why", owner, name)
			}
			if m := unnamed.FindString(body); m != "" {
				t.Errorf("%s/%s: a constraint without a name of ours: %q", owner, name, m)
			}
			checkConcurrently(t, owner+"/"+name, string(text))
		}
	}
}

// (BC-16) CONCURRENTLY cannot run in a transaction, and what an aborted build left must be dropped first.
func checkConcurrently(t *testing.T, name, text string) {
	t.Helper()
	up, _, _ := strings.Cut(text, "-- +goose Down")
	for _, m := range regexp.MustCompile(`(?i)CREATE (?:UNIQUE )?INDEX CONCURRENTLY (?:IF NOT EXISTS )?(\w+)`).FindAllStringSubmatch(up, -1) {
		if !strings.Contains(text, "-- +goose NO TRANSACTION") {
			t.Errorf("%s: builds %s concurrently without NO TRANSACTION", name, m[1])
		}
		if !strings.Contains(up, "DROP INDEX CONCURRENTLY IF EXISTS "+m[1]+";") {
			t.Errorf("%s: does not drop what an aborted build of %s left", name, m[1])
		}
	}
}

// The roles that roles.sql makes are those that the code speaks of.
func TestRolesScriptNamesEveryOwner(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("roles.sql")
	must(t, err)
	want := "ARRAY['" + strings.Join(migrations.Owners(), "', '") + "']"
	if !strings.Contains(string(text), want) {
		t.Errorf("roles.sql does not hold %s", want)
	}
}

func TestUnknownOwner(t *testing.T) {
	t.Parallel()
	const url = "postgres://127.0.0.1:1/none"
	_, filesErr := migrations.Files("billing")
	_, statusErr := migrations.Status(t.Context(), url, "billing")
	for what, err := range map[string]error{
		"Files": filesErr, "Status": statusErr,
		"Apply":  migrations.Apply(t.Context(), url, "billing"),
		"DownTo": migrations.DownTo(t.Context(), url, "billing", 0),
		"Setup":  migrations.Setup(t.Context(), url, "billing", "billing"),
		"Grants": migrations.Grants(t.Context(), nil, "../auth"),
	} {
		if !errors.Is(err, migrations.ErrUnknownOwner) {
			t.Errorf("%s: got %v, want ErrUnknownOwner", what, err)
		}
	}
}

// Each owner has the outbox, its tree and the guard whole, to be copied as they are. The copies differ in the owner's name and in
// the list of audited tables, which comes last: what a test shows of one holds for the other.
func TestOwnersHaveTheSameOutbox(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"0001_outbox.sql", "0003_ledger_tree.sql", "0004_guard.sql"} {
		read := func(owner string) string {
			dir, err := migrations.Files(owner)
			must(t, err)
			text, err := fs.ReadFile(dir, name)
			must(t, err)
			up, _, _ := strings.Cut(string(text), "-- +goose Down")
			up, _, _ = strings.Cut(up, "\nSELECT audit_guard(")
			return strings.ReplaceAll(up, "'"+owner+"'", "'OWNER'")
		}
		if diff := cmp.Diff(read("auth"), read("app")); diff != "" {
			t.Errorf("%s differs between auth and app:\n%s", name, diff)
		}
	}
}

// sqlFiles lists the numbered files of an owner in order.
func sqlFiles(t *testing.T, owner string) []string {
	t.Helper()
	dir, err := migrations.Files(owner)
	must(t, err)
	names, err := fs.Glob(dir, "[0-9]*.sql")
	must(t, err)
	if len(names) == 0 {
		t.Fatalf("%s has no migrations", owner)
	}
	return names
}
