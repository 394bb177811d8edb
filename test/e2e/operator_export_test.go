// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// (U14) An account is attacked, and the evidence is wanted. `audit export` writes each record once, and is itself on record
// with its filter; where that record cannot be written, nothing is exported and an earlier file is left alone.
func TestOperatorExportsTheEvidenceOfAnAttack(t *testing.T) {
	d := newDrill(t, harness.Options{})
	created, err := d.users.CreateUser(d.ctx, &authv1.CreateUserRequest{
		User: &authv1.User{Email: "ada@example.com", DisplayName: "Ada"}, Password: "a long phrase of Ada",
	})
	if err != nil {
		t.Fatal(err)
	}
	ada := strings.TrimPrefix(created.GetUser().GetName(), "users/")
	const guesses = 6
	for range guesses { // five failures, the lock-out, and one that is not looked at
		if _, err := d.system.Login(t.Context(), harness.Credentials{Email: "ada@example.com", Password: "password"}); err == nil {
			t.Fatal("a wrong password logs in")
		}
	}
	want := map[string]bool{}
	rows, err := d.system.DB("auth").Query(t.Context(), "SELECT event_id::text FROM audit_outbox WHERE operation = 'LOGIN' AND resource_id = $1", ada)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		want[id] = true
	}
	if rows.Err() != nil || len(want) != guesses {
		t.Fatalf("%d attempts are committed, want %d: %v", len(want), guesses, rows.Err())
	}
	d.quiet(t, 30*time.Second)

	file := filepath.Join(t.TempDir(), "evidence.ndjson")
	if err := os.WriteFile(file, []byte("an earlier export\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	filter := `resource.id = "` + ada + `" AND operation = "LOGIN"`
	export := []string{"audit", "export", "--filter", filter, "--file", file}

	// Admin's database takes no records: an export that nobody would know of does not take place.
	d.exec(t, "admin", "REVOKE INSERT ON audit_logs FROM admin_service")
	if out, code := d.run(t, "", export...); code == 0 {
		t.Errorf("exported without a record of it: %s", out)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "an earlier export\n" {
		t.Errorf("the failed export left %q, %v", content, err)
	}
	d.exec(t, "admin", "GRANT INSERT ON audit_logs TO admin_service")
	d.noDeed(t, "admin.audit_log.exported")

	d.must(t, export...)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for line := range bytes.Lines(content) {
		var record adminv1.AuditLog
		if err := protojson.Unmarshal(line, &record); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		got[record.GetEvent().GetAuditId()]++
	}
	for id := range want {
		if got[id] != 1 {
			t.Errorf("event %s is exported %d times", id, got[id])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d events are exported, want %d", len(got), len(want))
	}
	deed := d.arrive(t, `action = "admin.audit_log.exported"`).GetEvent()
	if "users/"+deed.GetActor().GetId() != d.self || deed.GetOperation() != auditv1.Operation_OPERATION_EXPORT || !strings.Contains(deed.GetMetadata()["filter"], filter) {
		t.Errorf("the export is recorded as %v", deed)
	}
	if report := d.quiet(t, 30*time.Second); report.Recorded != report.Events {
		t.Errorf("%+v", report)
	}
}
