// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// damage makes an event that its owner's outbox cannot deliver: with Redis away, the stored bytes of a committed event are
// damaged, as by a broken disk. It returns the event and its true bytes, once the outbox has given it up.
func damage(t *testing.T, d *drill) (id string, payload []byte) {
	t.Helper()
	d.system.Redis.Kill()
	id, payload = d.projectEvent(t)
	breakBytes(t, d, id)
	if err := d.system.Redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, d, "app", "FAILED", "SELECT status FROM audit_outbox WHERE event_id = $1", id)
	return id, payload
}

// breakBytes damages a deferred event at a moment when no dispatcher has claimed it: one that has holds the true bytes in
// its memory, and sends those once the broker is back.
func breakBytes(t *testing.T, d *drill, id string) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, func() error {
		tag, err := d.system.DB("app").Exec(t.Context(), `UPDATE audit_outbox SET payload = '\xffffffff'
			WHERE event_id = $1 AND status = 'DEFERRED' AND claim_token IS NULL`, id)
		if err == nil && tag.RowsAffected() == 0 {
			err = errors.New("a dispatcher holds the event")
		}
		return err
	})
}

// (BC-31) A stored event that cannot be read any more is given up with a reason and stops nothing else. Once its bytes are
// restored, `outbox requeue` delivers it.
func TestOperatorRequeuesADeadOutboxEvent(t *testing.T) {
	d := newDrill(t, harness.Options{})
	id, payload := damage(t, d)
	other, otherPayload := d.projectEvent(t) // behind the dead one
	await(t, d, "admin", 1, "SELECT count(*) FROM audit_logs WHERE event_id = $1 AND payload = $2", other, otherPayload)

	if out := d.must(t, "outbox", "list", "--service", "app", "--status", "failed"); !strings.Contains(out, id) || !strings.Contains(out, "outbox.malformed_payload") {
		t.Errorf("the list does not show the event and its code: %s", out)
	}
	if out, code := d.run(t, "", "outbox", "requeue", "--service", "app", id); code != 2 || !strings.Contains(out, "--reason") {
		t.Errorf("without a reason: exit code %d, %s", code, out)
	}
	d.noDeed(t, "app.outbox.requeued")

	// Requeued while the cause is there, it fails again: nothing is made up.
	d.must(t, "outbox", "requeue", "--service", "app", id, "--reason", "perhaps it was the broker")
	d.arrive(t, `action = "app.outbox.requeued"`)
	await(t, d, "app", "FAILED", "SELECT status FROM audit_outbox WHERE event_id = $1 AND claim_token IS NULL AND attempts > 0", id)

	d.exec(t, "app", "UPDATE audit_outbox SET payload = $2 WHERE event_id = $1", id, payload) // from the backup
	const reason = "payload restored from the backup of last night"
	d.must(t, "outbox", "requeue", "--service", "app", id, "--reason", reason)
	d.recordedOnce(t, id, payload)

	deeds, err := d.records(`action = "app.outbox.requeued"`)
	if err != nil {
		t.Fatal(err)
	}
	if len(deeds) != 2 || deeds[0].GetEvent().GetMetadata()["reason"] != reason || deeds[0].GetEvent().GetResource().GetId() != id {
		t.Errorf("two requeues are recorded as %v", deeds)
	}
	if got := deeds[0].GetEvent().GetActor().GetId(); "users/"+got != d.self {
		t.Errorf("recorded as done by %s, want %s", got, d.self)
	}
	// The history of the row tells both, with the old error.
	out := d.must(t, "outbox", "get", "--service", "app", id)
	for _, want := range []string{"DELIVERED", "outbox.malformed_payload", reason} {
		if !strings.Contains(out, want) {
			t.Errorf("the history does not tell %q: %s", want, out)
		}
	}
	if out, code := d.run(t, "", "outbox", "requeue", "--service", "app", id, "--reason", "once more"); code != 5 {
		t.Errorf("requeue of a delivered event: exit code %d, want 5: %s", code, out)
	}
}

// (U14) "Where is my event?" `trace` says where it stands at each station of a bad day, and what to do; doing that gets it recorded.
func TestOperatorTracesAnEventThatIsMissing(t *testing.T) {
	d := newDrill(t, harness.Options{})
	trace := func(id string, wantCode int, wants ...string) {
		t.Helper()
		out, code := d.run(t, "", "trace", id)
		if code != wantCode {
			t.Errorf("trace: exit code %d, want %d", code, wantCode)
		}
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("trace does not say %q", want)
			}
		}
	}
	trace(newID(t).String(), 3, "not known to any service")

	// Redis is away: it waits with its owner.
	d.system.Redis.Kill()
	id, payload := d.projectEvent(t)
	await(t, d, "app", true, "SELECT status = 'DEFERRED' AND claim_token IS NULL FROM audit_outbox WHERE event_id = $1", id)
	trace(id, 5, "waiting in the outbox of app", "broker.")
	// Then its bytes are damaged: it is given up, and the advice is what helps.
	breakBytes(t, d, id)
	if err := d.system.Redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, d, "app", "FAILED", "SELECT status FROM audit_outbox WHERE event_id = $1", id)
	trace(id, 5, "outbox.malformed_payload", "counterfoil outbox requeue --service app "+id)

	// Admin is away, too: the owner's part can be seen all the same.
	d.system.Service("admin", 0).Kill()
	trace(id, 5, "stopped in the outbox of app", "admin was not asked")
	d.exec(t, "app", "UPDATE audit_outbox SET payload = $2 WHERE event_id = $1", id, payload)
	const reason = "the trace says so"
	d.must(t, "outbox", "requeue", "--service", "app", id, "--reason", reason)
	await(t, d, "app", "DELIVERED", "SELECT status FROM audit_outbox WHERE event_id = $1", id)
	trace(id, 6, "delivered to the stream as", "Admin was not asked")

	if err := d.system.Service("admin", 0).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.recordedOnce(t, id, payload)
	d.deed(t, "app.outbox.requeued", id, reason)
	trace(id, 0, "auditLogs/"+id, "the same in the outbox", reason, "NOW")

	// A record that is not what its owner holds is told, not glossed over.
	d.exec(t, "app", `UPDATE audit_outbox SET payload = payload || '\x00'::bytea WHERE event_id = $1`, id)
	trace(id, 5, "ANOTHER in the outbox")
	d.exec(t, "app", "UPDATE audit_outbox SET payload = $2 WHERE event_id = $1", id, payload)
}
