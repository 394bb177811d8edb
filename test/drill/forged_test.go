// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"

	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/test/harness"
)

// forgery is an entry that its owner did not write to that stream.
type forgery struct {
	name, stream string
	entry        envelope.Entry
}

// (T9, U62) Somebody who can write to the streams sends entries that the owner did not: before the true event arrives, and
// again after it. They change nothing, each is kept as poison once however often it comes, and the true event is recorded.
// It guards: the MAC is checked against the keys of the stream's owner, before anything else is believed.
func TestForgedEntries(t *testing.T) {
	t.Parallel()
	keys := map[string]string{"auth": "auth-1:" + secret(), "app": "app-1:" + secret()}
	d := start(t, harness.Options{TimeScale: 10, ServiceEnv: map[string]map[string]string{
		"auth": {"MAC_KEYS": keys["auth"]}, "app": {"MAC_KEYS": keys["app"]},
		"admin": {"MAC_KEYS_AUTH": keys["auth"], "MAC_KEYS_APP": keys["app"]},
	}})
	d.allRecorded(t)

	// The true event is held back, with its number, so that the forgeries come first.
	d.redis(t, [][]any{{"ACL", "SETUSER", "app", "-xadd"}})
	if _, err := d.createProject(d.ctx); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, func() error {
		if n := get[int](t, d, "app", "SELECT count(*) FROM audit_outbox WHERE ledger_seq IS NULL"); n > 0 {
			return fmt.Errorf("%d events have no number yet", n)
		}
		return nil
	})
	forgeries := d.forgeries(t, keys)
	const times = 3
	before := d.held(t)
	for range times {
		d.send(t, forgeries)
	}
	d.kept(t, forgeries, times)
	if now := d.held(t); now != before {
		t.Errorf("Admin holds other rows than before: %s, then %s", before, now)
	}

	d.redis(t, [][]any{{"ACL", "SETUSER", "app", "+xadd"}})
	d.allRecorded(t)
	before = d.held(t)
	d.send(t, forgeries)
	d.kept(t, forgeries, times+1)
	if now := d.held(t); now != before {
		t.Errorf("Admin holds other rows than before: %s, then %s", before, now)
	}
	d.allRecorded(t)
}

// forgeries are made of a true event of App's that waits, and one of Auth's that is recorded.
func (d *drill) forgeries(t *testing.T, keys map[string]string) []forgery {
	t.Helper()
	rings := map[string]*envelope.Keyring{}
	for owner, text := range keys {
		ring, err := envelope.ParseKeyring(text)
		if err != nil {
			t.Fatal(err)
		}
		rings[owner] = ring
	}
	app, auth := envelope.StreamKey("app"), envelope.StreamKey("auth")
	waiting, recorded := d.entry(t, "app", rings["app"]), d.entry(t, "auth", rings["auth"])

	wrongMAC := waiting
	wrongMAC.MAC = slices.Clone(waiting.MAC)
	wrongMAC.MAC[0] ^= 1
	othersMAC := waiting
	rings["auth"].Sign(&othersMAC, envelope.ToAdmin)
	underOurName := othersMAC
	underOurName.KeyID = waiting.KeyID
	otherPayload := waiting
	otherPayload.Payload = recorded.Payload
	otherNumber := recorded
	otherNumber.LedgerSeq += 1000
	asReceipt := waiting
	rings["app"].Sign(&asReceipt, envelope.ToOwner)
	return []forgery{
		{"right id, wrong MAC", app, wrongMAC},
		{"another owner's MAC", app, othersMAC},
		{"another owner's MAC under our key's name", app, underOurName},
		{"other payload under a true MAC", app, otherPayload},
		{"signed for the other direction", app, asReceipt},
		{"replayed from the other owner's stream", app, recorded},
		{"replayed on the other owner's stream", auth, waiting},
		{"known event under another number", auth, otherNumber},
	}
}

// entry returns the entry that the owner makes of its newest event.
func (d *drill) entry(t *testing.T, owner string, keys *envelope.Keyring) envelope.Entry {
	t.Helper()
	e := envelope.Entry{Owner: owner}
	err := d.DB(owner).QueryRow(t.Context(), `
		SELECT event_id, event_type, schema_version, ledger_id, ledger_seq, payload FROM audit_outbox ORDER BY ledger_seq DESC LIMIT 1`).
		Scan(&e.EventID, &e.EventType, &e.SchemaVersion, &e.LedgerID, &e.LedgerSeq, &e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	keys.Sign(&e, envelope.ToAdmin)
	return e
}

// send adds the entries to their streams.
func (d *drill) send(t *testing.T, forgeries []forgery) {
	t.Helper()
	for _, f := range forgeries {
		d.redis(t, [][]any{append([]any{"XADD", f.stream, "*"}, f.entry.Fields()...)})
	}
}

// kept waits until each forgery is counted so often, and demands that there is one row for each and no other poison.
func (d *drill) kept(t *testing.T, forgeries []forgery, times int) {
	t.Helper()
	const forged = "FROM inbox_poison WHERE kind = 'FORGED'"
	harness.Eventually(t, patience, func() error {
		if n := get[int](t, d, "admin", "SELECT coalesce(sum(seen_count), 0) "+forged); n < times*len(forgeries) {
			return fmt.Errorf("%d of %d forged entries were seen", n, times*len(forgeries))
		}
		return nil
	})
	if n := get[int](t, d, "admin", "SELECT count(*) FROM inbox_poison"); n != len(forgeries) {
		t.Errorf("%d rows of poison, want %d", n, len(forgeries))
	}
	if n := get[int](t, d, "admin", "SELECT count(*) "+forged+" AND seen_count = $1", times); n != len(forgeries) {
		t.Errorf("%d forgeries were counted %d times, want all %d", n, times, len(forgeries))
	}
}

// held is a hash over all that Admin holds of events, but poison.
func (d *drill) held(t *testing.T) string {
	t.Helper()
	return get[string](t, d, "admin", `
		SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM (
		    SELECT e::text AS line FROM ledger_entries e
		    UNION ALL SELECT e::text FROM inbox_events e
		    UNION ALL SELECT e::text FROM consumer_inbox e
		    UNION ALL SELECT e::text FROM audit_logs e) AS everything`)
}

// secret returns a MAC secret.
func secret() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
