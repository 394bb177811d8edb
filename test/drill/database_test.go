// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"fmt"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// outage is how long, in simulated time, Admin's log cannot be written.
const outage = 40 * time.Minute

// (U57, BC-13) Nobody can write the log for forty simulated minutes: in one system another session holds its lock, in a second
// one Admin's database is read-only. No event is dead, no attempt is used, nothing floods the services' logs, and afterwards
// everything is recorded. Both wait in one test, since they do little else.
// It guards: errors of the database are nobody's attempt.
func TestLogThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	const scale = 30
	locked := &writeOutage{name: "locked", drill: start(t, harness.Options{TimeScale: scale})}
	locked.begin = locked.lockLog
	readOnly := &writeOutage{name: "read-only", drill: start(t, harness.Options{TimeScale: scale, Clusters: true})}
	readOnly.begin = readOnly.refuseWrites
	both := []*writeOutage{locked, readOnly}
	for _, o := range both {
		o.before(t)
	}
	for _, o := range both {
		o.start(t)
	}
	wait(t.Context(), locked.scaled(outage/2))
	for _, o := range both {
		o.load(t)
		o.untouched(t, "in the middle")
	}
	for _, o := range both {
		wait(t.Context(), o.scaled(outage)-time.Since(o.since))
		o.end(t)
	}
}

// writeOutage is a system whose log cannot be written for a while.
type writeOutage struct {
	*drill
	name    string
	begin   func(t *testing.T) (over func())
	project string
	since   time.Time
	done    int // rows that were processed before
	over    func()
}

// before makes events that are recorded before the outage.
func (o *writeOutage) before(t *testing.T) {
	t.Helper()
	var err error
	if o.project, err = o.createProject(o.ctx); err != nil {
		t.Fatal(err)
	}
	o.load(t)
	o.allRecorded(t)
	o.done = get[int](t, o.drill, "admin", processed)
}

const processed = "SELECT count(*) FROM consumer_inbox WHERE consumer = 'audit-log' AND state = 'PROCESSED'"

// start begins the outage, and makes events.
func (o *writeOutage) start(t *testing.T) {
	t.Helper()
	o.since = time.Now()
	o.over = o.begin(t)
	o.load(t)
}

// end ends the outage, makes events, and waits until all are recorded.
func (o *writeOutage) end(t *testing.T) {
	t.Helper()
	o.untouched(t, "at the end")
	if n := get[int](t, o.drill, "admin", processed); n > o.done {
		t.Errorf("%s: %d events were recorded meanwhile: the test does not test", o.name, n-o.done)
	}
	o.noFlood(t, o.since)
	o.over()
	over := time.Now()
	o.load(t)
	o.allRecorded(t)
	t.Logf("%s: caught up after %v", o.name, time.Since(over))
	o.untouched(t, "afterwards")
}

func (o *writeOutage) load(t *testing.T) {
	t.Helper()
	if err := o.importMembers(o.ctx, o.project, 200); err != nil {
		t.Fatal(err)
	}
	if _, err := o.createUser(o.ctx); err != nil {
		t.Fatal(err)
	}
}

// untouched demands that no inbox row is dead and none has used an attempt but the one that it is in, or finished in.
func (o *writeOutage) untouched(t *testing.T, when string) {
	t.Helper()
	if n := get[int](t, o.drill, "admin", "SELECT count(*) FROM consumer_inbox WHERE state = 'DEAD'"); n > 0 {
		t.Errorf("%s, %s: %d rows are dead", o.name, when, n)
	}
	const used = "FROM consumer_inbox WHERE attempts > CASE state WHEN 'PENDING' THEN 0 ELSE 1 END"
	if n := get[int](t, o.drill, "admin", "SELECT count(*) "+used); n > 0 {
		t.Errorf("%s, %s: %d rows have used attempts, such as %s", o.name, when, n, get[string](t, o.drill, "admin",
			"SELECT format('%s with %s, last error %s', state, attempts, last_error_code) "+used+" LIMIT 1"))
	}
}

// lockLog holds the log's lock until over is called.
func (o *writeOutage) lockLog(t *testing.T) (over func()) {
	t.Helper()
	tx, err := o.DB("admin").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE audit_logs IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Errorf("let go of the log: %v", err)
		}
	}
}

// refuseWrites makes Admin's database read-only until over is called.
func (o *writeOutage) refuseWrites(t *testing.T) (over func()) {
	t.Helper()
	o.setReadOnly(t, "on")
	return func() { o.setReadOnly(t, "off") }
}

func (o *writeOutage) setReadOnly(t *testing.T, value string) {
	t.Helper()
	o.exec(t, "admin", "ALTER SYSTEM SET default_transaction_read_only = "+value)
	o.exec(t, "admin", "SELECT pg_reload_conf()")
	harness.Eventually(t, patience, func() error {
		if now := get[string](t, o.drill, "admin", "SHOW default_transaction_read_only"); now != value {
			return fmt.Errorf("still %s", now)
		}
		return nil
	})
}
