// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// exec runs a statement as the superuser.
func (o *operator) exec(t *testing.T, owner, sql string) {
	t.Helper()
	if _, err := o.system.DB(owner).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %s: %v", owner, sql, err)
	}
}

// (BC-12, U65) A migration adds columns to tables in use: no call fails for it, no event is lost or dead, and the services
// need no restart.
func TestColumnsAreAddedUnderLoad(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{})
	done := make(chan outcome)
	go func() { done <- o.load(400, 4, 10*time.Millisecond) }()
	for owner, tables := range map[string][]string{
		"auth":  {"audit_outbox", "audit_ledger", "audit_lifecycle", "users", "sessions", "requests"},
		"app":   {"audit_outbox", "audit_ledger", "audit_lifecycle", "projects", "project_members", "requests"},
		"admin": {"consumer_inbox", "inbox_events", "ledger_entries", "ledger_positions", "audit_logs", "audit_ledger", "inbox_poison"},
	} {
		for _, table := range tables {
			o.exec(t, owner, "ALTER TABLE "+table+" ADD COLUMN added_later text")
		}
	}
	for _, err := range (<-done).failed {
		t.Errorf("a call failed: %v", err)
	}
	for range 3 { // the other service, too
		if _, err := o.users.ListUsers(o.ctx, &authv1.ListUsersRequest{}); err != nil {
			t.Errorf("list users: %v", err)
		}
	}
	if report := o.quiet(t, 60*time.Second); report.Recorded != report.Events {
		t.Errorf("%+v", report)
	}
}

// (U65) One owner's service is frozen, its dispatcher and all: the other owner's events arrive as ever.
func TestOneOwnerDoesNotDelayTheOther(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{})
	if err := o.system.Service("auth", 0).Pause(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.createProject(); err != nil {
		t.Fatal(err)
	}
	o.arrive(t, `action = "app.project.created"`)
	if err := o.system.Service("auth", 0).Resume(); err != nil {
		t.Fatal(err)
	}
	o.quiet(t, 60*time.Second)
}

// (BC-13) A database turns read-only, as after a failover that left connections on the old primary, and back: everybody
// recovers without a restart, nothing is dead, and calls that were refused say that trying again helps.
func TestReadOnlyDatabases(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{Clusters: true})
	readOnly := func(owner, value string) {
		o.exec(t, owner, "ALTER SYSTEM SET default_transaction_read_only = "+value)
		o.exec(t, owner, "SELECT pg_reload_conf()")
		harness.Eventually(t, 10*time.Second, func() error {
			var now string
			err := o.system.DB(owner).QueryRow(t.Context(), "SHOW default_transaction_read_only").Scan(&now)
			if err == nil && now != value {
				err = fmt.Errorf("still %s", now)
			}
			return err
		})
	}
	// Admin's is away: business does not notice.
	readOnly("admin", "on")
	if out := o.load(100, 4, 20*time.Millisecond); len(out.failed) > 0 {
		t.Errorf("a call failed: %v", out.failed[0])
	}
	// App's is away: its calls are refused as unavailable, Auth's are not.
	readOnly("app", "on")
	if _, err := o.createProject(); status.Code(err) != codes.Unavailable {
		t.Errorf("with a read-only database: %v", err)
	}
	if _, err := o.system.Login(t.Context(), o.system.Operator); err != nil {
		t.Errorf("auth suffers from app's database: %v", err)
	}

	readOnly("app", "off")
	readOnly("admin", "off")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := harness.Poll(ctx, func() error { _, err := o.createProject(); return err }); err != nil {
		t.Fatalf("app did not recover: %v", err)
	}
	report := o.quiet(t, 30*time.Second)
	if report.Dead > 0 || report.Recorded != report.Events {
		t.Errorf("%+v", report)
	}
}
