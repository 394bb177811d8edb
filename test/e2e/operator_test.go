// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// The operators' drills. Each begins with a fault that really leaves an event unrecorded or evidence undecided, lets the
// shipped CLI put it right as an operator does at a terminal, and ends with the event recorded once, byte for byte, and with
// the operator's own deed in the audit log, by whom and why.

// drill is an operator at a terminal.
type drill struct {
	*operator
	config string
}

// newDrill starts a system and logs the first operator in with the CLI.
func newDrill(t *testing.T, opts harness.Options) *drill {
	t.Helper()
	opts.CLI = true
	d := &drill{operator: newOperator(t, opts), config: filepath.Join(t.TempDir(), "login.json")}
	args := []string{"login", d.system.Operator.Email}
	for _, name := range harness.Services() {
		args = append(args, "--"+name, d.system.Service(name, 0).Addr())
	}
	if out, code := d.run(t, d.system.Operator.Password+"\n", args...); code != 0 {
		t.Fatalf("log in: exit code %d: %s", code, out)
	}
	return d
}

// run runs the CLI and returns all that it printed, and its exit code.
func (d *drill) run(t *testing.T, stdin string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.system.Bin("counterfoil"), append([]string{"--config", d.config}, args...)...)
	cmd.Env = []string{"HOME=" + filepath.Dir(d.config)}
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("counterfoil %v: %v", args, err)
	}
	t.Logf("$ counterfoil %s\n%s", strings.Join(args, " "), strings.TrimSpace(out.String()))
	return out.String(), cmd.ProcessState.ExitCode()
}

// must runs the CLI and fails the test unless it succeeds.
func (d *drill) must(t *testing.T, args ...string) string {
	t.Helper()
	out, code := d.run(t, "", args...)
	if code != 0 {
		t.Fatalf("counterfoil %v: exit code %d: %s", args, code, out)
	}
	return out
}

// must with a JSON document as the answer.
func (d *drill) mustJSON(t *testing.T, args ...string) map[string]any {
	t.Helper()
	var document map[string]any
	out := d.must(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		t.Fatalf("counterfoil %v: %v in %q", args, err, out)
	}
	return document
}

// exec runs SQL as the superuser: the fault, or its repair.
func (d *drill) exec(t *testing.T, owner, sql string, args ...any) {
	t.Helper()
	tag, err := d.system.DB(owner).Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	if len(args) > 0 && tag.RowsAffected() == 0 {
		t.Fatalf("no row is touched by %s", sql)
	}
}

// value reads one value as the superuser.
func value[T any](t *testing.T, d *drill, owner, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := d.system.DB(owner).QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// await waits until a query gives the value.
func await[T comparable](t *testing.T, d *drill, owner string, want T, sql string, args ...any) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, func() error {
		var got T
		if err := d.system.DB(owner).QueryRow(t.Context(), sql, args...).Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s: %v, want %v", sql, got, want)
		}
		return nil
	})
}

// projectEvent makes a project and returns the id of its app.project.created event and the bytes that were committed.
func (d *drill) projectEvent(t *testing.T) (id string, payload []byte) {
	t.Helper()
	project, err := d.createProject()
	if err != nil {
		t.Fatal(err)
	}
	const which = ` FROM audit_outbox WHERE event_type = 'app.project.created.v1' AND resource_id = $1`
	resource := strings.TrimPrefix(project.GetName(), "projects/")
	return value[string](t, d, "app", "SELECT event_id::text"+which, resource), value[[]byte](t, d, "app", "SELECT payload"+which, resource)
}

// recordedOnce waits until the event is in the audit log with exactly these bytes, and the system is quiet and right.
func (d *drill) recordedOnce(t *testing.T, id string, payload []byte) {
	t.Helper()
	await(t, d, "admin", 1, "SELECT count(*) FROM audit_logs WHERE event_id = $1", id)
	if got := value[[]byte](t, d, "admin", "SELECT payload FROM audit_logs WHERE event_id = $1", id); !bytes.Equal(got, payload) {
		t.Errorf("event %s is recorded as %x, committed as %x", id, got, payload)
	}
	if report := d.quiet(t, 30*time.Second); report.Recorded != report.Events {
		t.Errorf("%+v", report)
	}
}

// deed waits for the one record of what the operator did, and checks by whom it is and why.
func (d *drill) deed(t *testing.T, action, resource, reason string) *adminv1.AuditLog {
	t.Helper()
	log := d.arrive(t, fmt.Sprintf("action = %q AND resource.id = %q", action, resource))
	e := log.GetEvent()
	if e.GetActor().GetId() != strings.TrimPrefix(d.self, "users/") || e.GetOutcome() != auditv1.Outcome_OUTCOME_SUCCEEDED ||
		e.GetOperation() != auditv1.Operation_OPERATION_OPERATE {
		t.Errorf("the deed is recorded as %v", e)
	}
	if got := e.GetMetadata()["reason"]; got != reason {
		t.Errorf("the reason is recorded as %q, want %q", got, reason)
	}
	return log
}

// noDeed checks that nothing was recorded of an operation that was not done.
func (d *drill) noDeed(t *testing.T, action string) {
	t.Helper()
	logs, err := d.records(fmt.Sprintf("action = %q", action))
	if err != nil {
		t.Fatal(err)
	}
	if len(logs) > 0 {
		t.Errorf("%s is recorded %d times before anybody did it", action, len(logs))
	}
}

// event decodes an event's bytes.
func event(t *testing.T, payload []byte) *auditv1.AuditEvent {
	t.Helper()
	var e auditv1.AuditEvent
	if err := proto.Unmarshal(payload, &e); err != nil {
		t.Fatal(err)
	}
	return &e
}

// newID is an event id.
func newID(t *testing.T) uuid.UUID {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	return id
}
