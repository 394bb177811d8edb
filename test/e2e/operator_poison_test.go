// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/pkg/envelope"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// olderAdmin builds an Admin that does not know one event type: the release before it came.
func olderAdmin(t *testing.T, unknown string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	catalog := filepath.Join(root, "services", "admin", "internal", "admin", "catalog.go")
	source, err := os.ReadFile(catalog)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(source), "\n")
	without := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.TrimSpace(line) == `"`+unknown+`",` })
	if len(without) != len(lines)-1 {
		t.Fatalf("%s is in %d lines of the catalogue, want 1", unknown, len(lines)-len(without))
	}
	dir := t.TempDir()
	older, overlay, program := filepath.Join(dir, "catalog.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "admin")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{catalog: older}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{older: strings.Join(without, "\n"), overlay: string(text)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-overlay", overlay, "-o", program, "./services/admin")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build an older Admin: %v: %s", err, out)
	}
	return program
}

// (T17) App is a release ahead of Admin and sends a type that Admin does not know. It is parked with its bytes, others go
// through, and after Admin's upgrade `poison replay` gets it recorded.
func TestOperatorReplaysParkedPoisonAfterAnUpgrade(t *testing.T) {
	d := newDrill(t, harness.Options{})
	admin := d.system.Service("admin", 0)
	if err := admin.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin.SetProgram(olderAdmin(t, "app.project.archived.v1"))
	if err := admin.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	project, err := d.createProject()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.projects.ArchiveProject(d.ctx, &appv1.ArchiveProjectRequest{Name: project.GetName()}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.projects.RestoreProject(d.ctx, &appv1.RestoreProjectRequest{Name: project.GetName()}); err != nil {
		t.Fatal(err)
	}
	id := value[string](t, d, "app", "SELECT event_id::text FROM audit_outbox WHERE event_type = 'app.project.archived.v1'")
	payload := value[[]byte](t, d, "app", "SELECT payload FROM audit_outbox WHERE event_id = $1", id)
	await(t, d, "admin", "PARKED", "SELECT coalesce(max(kind), '') FROM inbox_poison WHERE event_id = $1", id)
	await(t, d, "admin", 1, "SELECT count(*) FROM audit_logs WHERE event_type = 'app.project.restored.v1'") // later, and not held up
	poison := value[string](t, d, "admin", "SELECT id::text FROM inbox_poison WHERE event_id = $1", id)
	if out, code := d.run(t, "", "trace", id); code != 5 || !strings.Contains(out, "counterfoil poison replay "+poison) {
		t.Errorf("trace: exit code %d, %s", code, out)
	}

	// Too early: the old Admin leaves it as it is, and says so.
	if out, code := d.run(t, "", "poison", "replay", poison, "--reason", "perhaps it works now"); code != 5 {
		t.Errorf("replay before the upgrade: exit code %d, want 5: %s", code, out)
	}
	await(t, d, "admin", 0, "SELECT count(*) FROM audit_logs WHERE event_id = $1", id)
	d.noDeed(t, "admin.poison.replayed")

	if err := admin.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin.SetProgram("")
	if err := admin.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	const reason = "Admin knows app.project.archived since today"
	d.must(t, "poison", "replay", poison, "--reason", reason)
	d.recordedOnce(t, id, payload)
	d.deed(t, "admin.poison.replayed", poison, reason)
	if out := d.must(t, "poison", "list", "--state", "resolved"); !strings.Contains(out, poison) {
		t.Errorf("the list of what is resolved does not show it: %s", out)
	}
	if out, code := d.run(t, "", "poison", "replay", poison, "--reason", "again"); code != 5 {
		t.Errorf("replay of what is resolved: exit code %d, want 5: %s", code, out)
	}
	d.recordedOnce(t, id, payload)
}

// forge adds an entry to App's stream as somebody who got hold of the broker.
func forge(t *testing.T, d *drill, fields []any) {
	t.Helper()
	if err := d.system.RedisClient.XAdd(t.Context(), &redis.XAddArgs{Stream: envelope.StreamKey("app"), Values: fields}).Err(); err != nil {
		t.Fatal(err)
	}
}

// (T9) Somebody with access to the broker sends a forged copy of an event before the event itself, again and again;
// somebody with the MAC key sends another event under a number that is taken. Neither changes the log; both are kept as
// evidence until an operator discards them, and can be discarded only.
func TestOperatorDiscardsForgedAndConflictingPoison(t *testing.T) {
	const key = "drill:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	d := newDrill(t, harness.Options{ServiceEnv: map[string]map[string]string{
		"app": {"MAC_KEYS": key}, "admin": {"MAC_KEYS_APP": key},
	}})
	app := d.system.Service("app", 0)
	ring, err := envelope.ParseKeyring(key)
	if err != nil {
		t.Fatal(err)
	}
	thief, err := envelope.NewKeyring(envelope.Key{ID: "drill", Secret: []byte("not the secret that they share, but as long")})
	if err != nil {
		t.Fatal(err)
	}

	// The event cannot leave its outbox yet: App's user may not write to the broker.
	if err := d.system.RedisClient.Do(t.Context(), "ACL", "SETUSER", "app", "-xadd").Err(); err != nil {
		t.Fatal(err)
	}
	id, payload := d.projectEvent(t)
	await(t, d, "app", true, "SELECT ledger_seq IS NOT NULL FROM audit_outbox WHERE event_id = $1", id)
	entry := envelope.Entry{
		EventID: uuid.MustParse(id), EventType: "app.project.created.v1", Owner: "app", SchemaVersion: 1, Payload: payload,
		LedgerID:  uuid.MustParse(value[string](t, d, "app", "SELECT ledger_id::text FROM audit_outbox WHERE event_id = $1", id)),
		LedgerSeq: value[int64](t, d, "app", "SELECT ledger_seq FROM audit_outbox WHERE event_id = $1", id),
	}
	lie := event(t, payload)
	lie.Actor.Id = "somebody-else"
	forged := entry
	if forged.Payload, err = proto.Marshal(lie); err != nil {
		t.Fatal(err)
	}
	thief.Sign(&forged, envelope.ToAdmin)
	for range 3 {
		forge(t, d, forged.Fields())
	}
	await(t, d, "admin", int64(3), "SELECT coalesce(max(seen_count), 0) FROM inbox_poison WHERE kind = 'FORGED'")
	if err := d.system.RedisClient.Do(t.Context(), "ACL", "SETUSER", "app", "+xadd").Err(); err != nil {
		t.Fatal(err)
	}
	d.recordedOnce(t, id, payload) // the true one

	// With the key, under a number that is taken.
	rival := entry
	rival.EventID = newID(t)
	lie.AuditId = rival.EventID.String()
	if rival.Payload, err = proto.Marshal(lie); err != nil {
		t.Fatal(err)
	}
	ring.Sign(&rival, envelope.ToAdmin)
	forge(t, d, rival.Fields())
	await(t, d, "admin", 1, "SELECT count(*) FROM inbox_poison WHERE kind = 'CONFLICT'")
	if !app.Running() {
		t.Error("App has ended")
	}

	for _, kind := range []string{"FORGED", "CONFLICT"} {
		poison := value[string](t, d, "admin", "SELECT id::text FROM inbox_poison WHERE kind = $1", kind)
		if out := d.must(t, "poison", "list", "--kind", strings.ToLower(kind)); !strings.Contains(out, poison) {
			t.Errorf("the list does not show it: %s", out)
		}
		if out, code := d.run(t, "", "poison", "replay", poison, "--reason", "let it in"); code == 0 {
			t.Errorf("replay of %s succeeded: %s", kind, out)
		}
		if out, code := d.run(t, "", "poison", "discard", poison, "--reason", "no confirmation"); code != 2 || !strings.Contains(out, "--yes") {
			t.Errorf("discard without confirmation: exit code %d: %s", code, out)
		}
		reason := "evidence of " + kind + " is with the security team"
		d.must(t, "poison", "discard", poison, "--reason", reason, "--yes")
		d.deed(t, "admin.poison.discarded", poison, reason)
		// The evidence stays, marked.
		kept := value[bool](t, d, "admin", "SELECT discarded_at IS NOT NULL AND action_reason = $2 AND octet_length(raw_fields) > 0 FROM inbox_poison WHERE id = $1", poison, reason)
		if !kept {
			t.Errorf("%s is not kept as evidence with the reason", kind)
		}
	}
	if out := d.must(t, "poison", "list"); strings.Contains(out, "FORGED") || strings.Contains(out, "CONFLICT") {
		t.Errorf("something is still open: %s", out)
	}
	d.noDeed(t, "admin.poison.replayed")
	await(t, d, "admin", 0, "SELECT count(*) FROM audit_logs WHERE event_id = $1", rival.EventID)
	d.recordedOnce(t, id, payload)
}
