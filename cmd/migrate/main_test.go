// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
)

// env makes getenv of a map.
func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

// The way of a new installation: init as a superuser, status and up as the owner's role, each of them twice.
func TestInitStatusUp(t *testing.T) {
	t.Parallel()
	super := testdb.New(t, testdb.App).Super.Config().ConnString()
	database := fmt.Sprintf("migrate_%d", os.Getpid())
	t.Cleanup(func() { drop(t, super, database) })
	owner, err := url.Parse(super)
	if err != nil {
		t.Fatal(err)
	}
	owner.User, owner.Path = url.UserPassword("app_owner", "counterfoil-test"), "/"+database

	asSuper := env(map[string]string{
		"SUPERUSER_URL": super, "DATABASE_NAME": database,
		"OWNER_PASSWORD": "counterfoil-test", "SERVICE_PASSWORD": "counterfoil-test",
	})
	asOwner := env(map[string]string{"DATABASE_URL": owner.String()})
	var out strings.Builder
	for range 2 {
		for _, step := range []struct {
			command string
			getenv  func(string) string
		}{{"init", asSuper}, {"up", asOwner}, {"status", asOwner}} {
			out.Reset()
			if err := run(t.Context(), []string{"-owner", "app", step.command}, step.getenv, &out); err != nil {
				t.Fatalf("%s: %v", step.command, err)
			}
		}
	}
	if text := out.String(); !strings.Contains(text, "0001_outbox.sql") || strings.Contains(text, "pending") {
		t.Errorf("status says:\n%s", text)
	}
}

// What is wrong with a call is said before anything is done, and no message holds a password.
func TestBadCalls(t *testing.T) {
	t.Parallel()
	unreachable := map[string]string{
		"DATABASE_URL":  "postgres://auth_owner:hush-hush@127.0.0.1:1/auth?connect_timeout=1",
		"SUPERUSER_URL": "postgres://postgres:hush-hush@127.0.0.1:1/postgres?connect_timeout=1",
	}
	for _, c := range []struct {
		name, want string
		args       []string
		env        map[string]string
	}{
		{"no owner", "unknown owner", nil, unreachable},
		{"unknown owner", "unknown owner", []string{"-owner", "billing"}, unreachable},
		{"unknown command", "unknown command", []string{"-owner", "auth", "down"}, unreachable},
		{"two commands", "one command", []string{"-owner", "auth", "up", "status"}, unreachable},
		{"unknown flag", "not defined", []string{"-force"}, unreachable},
		{"no url", "DATABASE_URL is not set", []string{"-owner", "auth"}, nil},
		{"no url for status", "DATABASE_URL is not set", []string{"-owner", "auth", "status"}, nil},
		{"no superuser", "SUPERUSER_URL is not set", []string{"-owner", "auth", "init"}, nil},
		{"no server", "connect", []string{"-owner", "auth", "up"}, unreachable},
		{"no server for init", "connect", []string{"-owner", "auth", "init"}, unreachable},
	} {
		err := run(t.Context(), c.args, env(c.env), io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q in it", c.name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "hush-hush") {
			t.Errorf("%s: the message holds the password: %v", c.name, err)
		}
	}
}

// drop removes what init made.
func drop(t *testing.T, super, database string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, super)
	if err != nil {
		t.Errorf("connect to drop: %v", err)
		return
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+database+" WITH (FORCE)"); err != nil {
		t.Errorf("drop: %v", err)
	}
}
