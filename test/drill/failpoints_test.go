// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/test/harness"
)

// imported is how many events one call makes in the crash drills.
const imported = 20

// crash is a failpoint and a service that ends there; without a service nothing reaches the point yet.
type crash struct {
	point, service string
	// left says whether what the crash left behind is what the point means: the proof that the process was there.
	left func(before, now counts) bool
}

// counts is what databases and streams hold at one moment.
type counts struct {
	Users, Members                     int
	Events, Numbered, Claimed, Settled int // of both owners' outboxes; settled is delivered
	Taken, Leased, Recorded            int // of Admin
	Pending                            int // read from the streams and not acknowledged
}

// crashes lists every failpoint, for each service that meets it.
var crashes = []crash{
	{failpoint.OutboxAfterBusinessWrite, "auth", nothingCommitted},
	{failpoint.OutboxAfterBusinessWrite, "app", nothingCommitted},
	{failpoint.OutboxAppended, "auth", nothingCommitted},
	{failpoint.OutboxAppended, "app", nothingCommitted},
	{failpoint.OutboxSealed, "app", func(before, now counts) bool {
		return now.Numbered == before.Numbered+imported && now.Settled == before.Settled && now.Taken == before.Taken
	}},
	{failpoint.OutboxClaimed, "app", func(before, now counts) bool {
		return now.Claimed == imported && now.Settled == before.Settled && now.Taken == before.Taken
	}},
	{failpoint.OutboxPublished, "app", func(before, now counts) bool {
		return now.Claimed == imported && now.Settled == before.Settled && now.Taken == before.Taken+imported
	}},
	{failpoint.OutboxSettled, "app", func(before, now counts) bool {
		return now.Claimed == 0 && now.Settled == before.Settled+imported
	}},
	{failpoint.OutboxConfirmed, "", nil}, // nothing confirms yet
	{failpoint.InboxRead, "admin", func(before, now counts) bool {
		return now.Pending > 0 && now.Recorded == before.Recorded
	}},
	{failpoint.InboxTakenOver, "admin", func(before, now counts) bool {
		return now.Pending > 0 && now.Taken > before.Taken
	}},
	{failpoint.InboxAcked, "admin", func(before, now counts) bool {
		return now.Pending == 0 && now.Taken > before.Taken
	}},
	{failpoint.InboxReceiptSent, "", nil}, // nobody sends receipts yet
	{failpoint.InboxClaimed, "admin", underLease},
	{failpoint.InboxEffectApplied, "admin", underLease},
	{failpoint.InboxMarked, "admin", underLease},
	{failpoint.InboxCommitted, "admin", func(before, now counts) bool {
		return now.Recorded > before.Recorded && now.Taken > before.Taken
	}},
}

func nothingCommitted(before, now counts) bool {
	return now.Users == before.Users && now.Members == before.Members && now.Events == before.Events
}

func underLease(before, now counts) bool {
	return now.Leased > 0 && now.Taken > before.Taken && now.Recorded == before.Recorded
}

// The table lists what the code has.
func TestEveryFailpointIsDrilled(t *testing.T) {
	t.Parallel()
	var listed []string
	for _, c := range crashes {
		listed = append(listed, c.point)
	}
	if listed = slices.Compact(listed); !slices.Equal(listed, failpoint.Names()) {
		t.Errorf("the table lists\n%v, the code\n%v", listed, failpoint.Names())
	}
}

// (U19, U41, U54, U73) A process ends at each point of an event's life. What it leaves behind is what the point means; after
// a restart the call that was cut off succeeds, and everything is recorded once.
// It guards: action and event commit together, takeover before acknowledgement, effect and mark in one transaction.
func TestCrashAtEachFailpoint(t *testing.T) {
	t.Parallel()
	d := start(t, harness.Options{TimeScale: 10, BuildTags: "failpoints"})
	project, err := d.createProject(d.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range crashes {
		if c.service != "" && !t.Failed() { // what one crash spoilt would fail all that follow
			t.Run(c.point+" in "+c.service, func(t *testing.T) { d.crashAt(t, c, project) })
		}
	}
	for _, name := range harness.Services() { // armed all the time
		if s := d.Service(name, 0); !s.Running() {
			t.Errorf("%s reached a failpoint that the table says nobody reaches:\n%s", s, s.LogTail(3))
		}
	}
}

// crashAt lets the service end at the point under load, looks at what is left, starts it again and waits for the end.
func (d *drill) crashAt(t *testing.T, c crash, project string) {
	t.Helper()
	before := d.count(t)
	victim := d.Service(c.service, 0)
	victim.Kill()
	call := func(ctx context.Context) error { return d.importMembers(ctx, project, imported) }
	if c.service == "auth" {
		call = func(ctx context.Context) error { _, err := d.createUser(ctx); return err }
	}
	answered := make(chan error, 1)
	begin := func() { go func() { answered <- call(d.ctx) }() }
	if c.service == "admin" { // it finds them when it starts
		begin()
		d.delivered(t, before.Settled+imported)
	}
	if !d.runInto(t, victim, c, before, begin) {
		t.Errorf("%s never left behind what %s means", victim, c.point)
	}
	victim.Setenv(failpoint.Env, unreached())
	if err := victim.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		if err != nil {
			t.Errorf("the call that was cut off never succeeded: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the call that was cut off never ended")
	}
	d.allRecorded(t)
	now := d.count(t)
	if now.Users-before.Users+now.Members-before.Members != now.Events-before.Events || now.Events == before.Events {
		t.Errorf("before %+v, now %+v: actions and events differ", before, now)
	}
}

// runInto starts the victim with the point armed and waits until it ended there. Reads happen with nothing to read, too, so
// the point after them is tried at several hits.
func (d *drill) runInto(t *testing.T, victim *harness.Service, c crash, before counts, begin func()) bool {
	t.Helper()
	first, last := 1, 1
	if c.point == failpoint.InboxRead {
		first, last = 4, 9
	}
	for hit := first; hit <= last; hit++ {
		victim.Setenv(failpoint.Env, fmt.Sprintf("%s,%s=exit@%d", unreached(), c.point, hit))
		if err := victim.Launch(); err != nil {
			t.Fatal(err)
		}
		if c.service != "admin" {
			begin()
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		code, err := victim.Wait(ctx)
		cancel()
		if err != nil || code != 137 || !strings.Contains(victim.LogTail(3), "exit at "+c.point) {
			t.Fatalf("%s ended with %d, %v:\n%s", victim, code, err, victim.LogTail(10))
		}
		// What was published may not have been taken over yet; all else stands still.
		ctx, cancel = context.WithTimeout(t.Context(), d.scaled(20*time.Second))
		err = harness.Poll(ctx, func() error {
			if now := d.count(t); !c.left(before, now) {
				return fmt.Errorf("before %+v, at the crash %+v", before, now)
			}
			return nil
		})
		cancel()
		if err == nil {
			return true
		}
		t.Logf("hit %d: %v", hit, err)
	}
	return false
}

// unreached arms the points that nothing reaches, so that the first one that does is noticed.
func unreached() string {
	var armed []string
	for _, c := range crashes {
		if c.service == "" {
			armed = append(armed, c.point+"=exit")
		}
	}
	return strings.Join(armed, ",")
}

// delivered waits until the broker has accepted so many events.
func (d *drill) delivered(t *testing.T, events int) {
	t.Helper()
	harness.Eventually(t, patience, func() error {
		if now := d.count(t); now.Settled < events {
			return fmt.Errorf("%d of %d events are delivered", now.Settled, events)
		}
		return nil
	})
}

// count looks.
func (d *drill) count(t *testing.T) counts {
	t.Helper()
	var c counts
	for _, owner := range owners() {
		var events, numbered, claimed, settled int
		err := d.DB(owner).QueryRow(t.Context(), `
			SELECT count(*), count(ledger_seq), count(claim_token), count(*) FILTER (WHERE status = 'DELIVERED') FROM audit_outbox`).
			Scan(&events, &numbered, &claimed, &settled)
		if err != nil {
			t.Fatal(err)
		}
		c.Events, c.Numbered, c.Claimed, c.Settled = c.Events+events, c.Numbered+numbered, c.Claimed+claimed, c.Settled+settled
		pending, err := d.RedisClient.XPending(t.Context(), envelope.StreamKey(owner), envelope.Group).Result()
		if err != nil {
			t.Fatal(errors.Join(errors.New("count pending entries"), err))
		}
		c.Pending += int(pending.Count)
	}
	c.Users = get[int](t, d, "auth", "SELECT count(*) FROM users")
	c.Members = get[int](t, d, "app", "SELECT count(*) FROM project_members")
	c.Taken = get[int](t, d, "admin", "SELECT count(*) FROM ledger_entries WHERE owner <> 'admin'")
	c.Leased = get[int](t, d, "admin", "SELECT count(*) FROM consumer_inbox WHERE state = 'PROCESSING'")
	c.Recorded = get[int](t, d, "admin", "SELECT count(*) FROM audit_logs WHERE owner <> 'admin'")
	return c
}
