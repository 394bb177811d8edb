// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/migrations"
)

// The committed files are what the migrations make today.
func TestSchemaFilesAreCurrent(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Postgres")
	}
	dir := t.TempDir()
	for _, owner := range migrations.Owners() {
		if err := os.Mkdir(filepath.Join(dir, owner), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for _, owner := range migrations.Owners() {
		want, err := os.ReadFile(filepath.Join(dir, owner, "schema.sql"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("..", owner, "schema.sql"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("migrations/%s/schema.sql is out of date: run `go generate ./migrations`\n%s", owner, diff)
		}
	}
}

// Two versions of pg_dump that tell the same schema give the same file.
func TestTidy(t *testing.T) {
	t.Parallel()
	const old = "--\n-- PostgreSQL database dump\n--\n\nSET statement_timeout = 0;\nSELECT pg_catalog.set_config('search_path', '', false);\n\n\nCREATE TABLE a (\n    b integer\n);\n\n\n--\n-- Name: x\n--\n\nALTER TABLE a OWNER TO o;\n"
	const recent = "--\n-- PostgreSQL database dump\n--\n\n\\restrict abc\n\nSET statement_timeout = 0;\nSET transaction_timeout = 0;\n\nCREATE TABLE a (\n    b integer\n);\n\nALTER TABLE a OWNER TO o;\n\n\\unrestrict abc\n\n"
	if diff := cmp.Diff(tidy(old, "a"), tidy(recent, "a")); diff != "" {
		t.Error(diff)
	}
}
