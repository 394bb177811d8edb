// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// (U47) A fault in Admin's database refuses one kind of record until all attempts are used up: that event is DEAD, everything
// else is recorded. With the fault gone, `inbox requeue` gets it recorded.
func TestOperatorRequeuesADeadInboxEntry(t *testing.T) {
	d := newDrill(t, harness.Options{TimeScale: 4})
	d.exec(t, "admin", `
		CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
		    IF NEW.event_type = 'app.project.created.v1' THEN RAISE EXCEPTION 'broken on purpose'; END IF;
		    RETURN NEW;
		END $$;
		CREATE TRIGGER broken BEFORE INSERT ON audit_logs FOR EACH ROW EXECUTE FUNCTION broken();`)
	id, payload := d.projectEvent(t)
	harness.Eventually(t, time.Minute, func() error {
		var state string
		var attempts int
		err := d.system.DB("admin").QueryRow(t.Context(),
			"SELECT state, attempts FROM consumer_inbox WHERE consumer = 'audit-log' AND event_id = $1", id).Scan(&state, &attempts)
		if err != nil || state == "DEAD" {
			return err
		}
		// The ten attempts take half an hour by themselves: the waits between them are cut short.
		_, err = d.system.DB("admin").Exec(t.Context(), `
			UPDATE consumer_inbox SET next_retry_at = clock_timestamp()
			WHERE consumer = 'audit-log' AND event_id = $1 AND state = 'PENDING'`, id)
		if err == nil {
			err = fmt.Errorf("%s after %d attempts", state, attempts)
		}
		return err
	})
	if attempts := value[int](t, d, "admin", "SELECT attempts FROM consumer_inbox WHERE consumer = 'audit-log' AND event_id = $1", id); attempts != 10 {
		t.Errorf("DEAD after %d attempts, want 10", attempts)
	}
	// Its batch neighbour, the member of the same transaction, is recorded.
	await(t, d, "admin", 1, "SELECT count(*) FROM audit_logs WHERE event_type = 'app.member.added.v1'")
	if out := d.must(t, "inbox", "list", "--consumer", "audit-log", "--state", "dead"); !strings.Contains(out, id) {
		t.Errorf("the list does not show the event: %s", out)
	}
	if out, code := d.run(t, "", "trace", id); code != 5 || !strings.Contains(out, "inbox requeue --consumer audit-log --event "+id) {
		t.Errorf("trace: exit code %d, %s", code, out)
	}
	if out, code := d.run(t, "", "inbox", "requeue", "--consumer", "audit-log", "--event", id); code != 2 {
		t.Errorf("without a reason: exit code %d, %s", code, out)
	}
	d.noDeed(t, "admin.inbox_entry.requeued")

	d.exec(t, "admin", "DROP TRIGGER broken ON audit_logs; DROP FUNCTION broken()")
	const reason = "the broken trigger is dropped"
	answer := d.mustJSON(t, "inbox", "requeue", "--consumer", "audit-log", "--event", id, "--reason", reason)
	if answer["requeuedCount"] != 1.0 {
		t.Errorf("answered %v", answer)
	}
	d.recordedOnce(t, id, payload)
	deed := d.deed(t, "admin.inbox_entry.requeued", id, reason)
	if got := deed.GetEvent().GetMetadata()["consumer"]; got != "audit-log" {
		t.Errorf("recorded for consumer %q", got)
	}
	if out, code := d.run(t, "", "inbox", "requeue", "--consumer", "audit-log", "--event", id, "--reason", "again"); code != 5 {
		t.Errorf("requeue of what is done: exit code %d, want 5: %s", code, out)
	}
}

// (U51) Admin's tables come back from an old backup without an event's record and without the alert that it raised, while its
// inbox says PROCESSED. `inbox replay` brings back both, and replaying once more doubles neither.
func TestOperatorReplaysWhatAConsumerLost(t *testing.T) {
	d := newDrill(t, harness.Options{})
	created, err := d.users.CreateUser(d.ctx, &authv1.CreateUserRequest{
		User: &authv1.User{Email: "ada@example.com", DisplayName: "Ada"}, Password: "a long phrase of Ada",
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.users.GrantRole(d.ctx, &authv1.GrantRoleRequest{Parent: created.GetUser().GetName(), Role: authv1.Role_ROLE_AUDITOR}); err != nil {
		t.Fatal(err)
	}
	ada := strings.TrimPrefix(created.GetUser().GetName(), "users/")
	const alerts = "SELECT count(*) FROM security_alerts WHERE rule = 'privileged_role_granted' AND subject = $1"
	await(t, d, "admin", 1, alerts, ada)
	id := value[string](t, d, "admin", "SELECT first_event_id::text FROM security_alerts WHERE subject = $1", ada)
	payload := value[[]byte](t, d, "auth", "SELECT payload FROM audit_outbox WHERE event_id = $1", id)
	d.quiet(t, 30*time.Second)

	// What the backup does not hold. The log refuses DELETE to everybody; whoever restores a server is above that.
	d.exec(t, "admin", `
		SET session_replication_role = replica;
		DELETE FROM audit_logs WHERE event_id = '`+id+`';
		DELETE FROM security_alerts WHERE first_event_id = '`+id+`';
		DELETE FROM security_observations WHERE event_id = '`+id+`';
		SET session_replication_role = DEFAULT;`)
	if out, code := d.run(t, "", "trace", id); code != 5 || !strings.Contains(out, "missing from the audit log") {
		t.Errorf("trace of the lost record: exit code %d, %s", code, out)
	}

	for round, reason := range []string{"restored from the backup of the 29th", "to be sure"} {
		for _, consumer := range []string{"audit-log", "security-alerts"} {
			answer := d.mustJSON(t, "inbox", "replay", "--consumer", consumer, "--event", id, "--reason", reason)
			if answer["replayedCount"] != 1.0 {
				t.Errorf("round %d, %s: answered %v", round, consumer, answer)
			}
			await(t, d, "admin", "PROCESSED", "SELECT state FROM consumer_inbox WHERE consumer = $1 AND event_id = $2", consumer, id)
		}
		await(t, d, "admin", 1, alerts, ada)
		d.recordedOnce(t, id, payload)
	}
	deeds, err := d.records(fmt.Sprintf(`action = "admin.inbox_entry.replayed" AND resource.id = %q`, id))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]int{}
	for _, deed := range deeds {
		told[deed.GetEvent().GetMetadata()["consumer"]+": "+deed.GetEvent().GetMetadata()["reason"]]++
		if got := deed.GetEvent().GetActor().GetId(); "users/"+got != d.self {
			t.Errorf("recorded as done by %s", got)
		}
	}
	if len(deeds) != 4 || len(told) != 4 || told["audit-log: restored from the backup of the 29th"] != 1 {
		t.Errorf("four replays are recorded as %v", told)
	}
}
