// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Every bad entry goes to its own kind of poison, once, and the good one behind it flows
// (U27–U33, U38, BC-18, BC-19, BC-57).
func TestEachBadEntryIsPoisonWithAReasonAndItsNeighboursFlow(t *testing.T) {
	t.Parallel()
	set := func(field, value string) func(*bundle) map[string]any {
		return func(b *bundle) map[string]any {
			v := inboxtest.Values(b.seal())
			v[field] = value
			return v
		}
	}
	without := func(field string) func(*bundle) map[string]any {
		return func(b *bundle) map[string]any {
			v := inboxtest.Values(b.seal())
			delete(v, field)
			return v
		}
	}
	event := func(change func(*auditv1.AuditEvent)) func(*bundle) map[string]any {
		return func(b *bundle) map[string]any { return inboxtest.Values(b.seal(change)) }
	}
	signed := func(change func(*envelope.Entry)) func(*bundle) map[string]any {
		return func(b *bundle) map[string]any {
			e := b.seal()
			change(&e)
			return inboxtest.Values(b.resign(e))
		}
	}
	for name, c := range map[string]struct {
		entry  func(*bundle) map[string]any
		kind   inbox.PoisonKind
		reason string
	}{
		"no event id":          {without("event_id"), inbox.Forged, inbox.ReasonFieldMissing},
		"a blank event id":     {set("event_id", ""), inbox.Forged, inbox.ReasonFieldMissing},
		"an event id too long": {set("event_id", strings.Repeat("a", 200)), inbox.Forged, inbox.ReasonFieldInvalid},
		"no uuid":              {set("event_id", "42"), inbox.Forged, inbox.ReasonFieldInvalid},
		"NUL in the event id":  {set("event_id", "\x00\xff"), inbox.Forged, inbox.ReasonFieldInvalid},
		"no type":              {without("event_type"), inbox.Forged, inbox.ReasonFieldMissing},
		"a type too long":      {set("event_type", strings.Repeat("a", 129)), inbox.Forged, inbox.ReasonFieldTooLong},
		"NUL in the type":      {set("event_type", "a\x00b"), inbox.Forged, inbox.ReasonMACMismatch},
		"no payload":           {without("payload"), inbox.Forged, inbox.ReasonFieldMissing},
		"no mac":               {without("mac"), inbox.Forged, inbox.ReasonMACMissing},
		"a wrong mac":          {set("mac", strings.Repeat("m", 32)), inbox.Forged, inbox.ReasonMACMismatch},
		"a key nobody has":     {set("key_id", "other"), inbox.Forged, inbox.ReasonKeyUnknown},
		"another payload":      {set("payload", "x"), inbox.Forged, inbox.ReasonMACMismatch},
		"fields of another tool": {func(*bundle) map[string]any {
			return map[string]any{"hello\x00": "\xffworld"}
		}, inbox.Forged, inbox.ReasonFieldMissing},
		"owner app on auth's stream": {signed(func(e *envelope.Entry) { e.Owner = "app" }), inbox.Forged, inbox.ReasonWrongStream},
		"owner notification":         {signed(func(e *envelope.Entry) { e.Owner = "notification" }), inbox.Forged, inbox.ReasonWrongStream},
		"app's entry, app's key": {func(b *bundle) map[string]any {
			return inboxtest.Values(inboxtest.Sealed(b.t, inboxtest.NewKeys(b.t, "app-1"), inboxtest.NewEvent(b.t, "app", "project.created"), uuid.New(), 1))
		}, inbox.Forged, inbox.ReasonWrongStream},
		"app's key for an event of auth": {func(b *bundle) map[string]any {
			return inboxtest.Values(inboxtest.Sealed(b.t, inboxtest.NewKeys(b.t, "app-1"), inboxtest.NewEvent(b.t, "auth", "user.updated"), uuid.New(), 1))
		}, inbox.Forged, inbox.ReasonKeyUnknown},

		"random payload":       {signed(func(e *envelope.Entry) { e.Payload = []byte("\xff\xff\xff") }), inbox.Parked, inbox.ReasonUndecodable},
		"a truncated payload":  {signed(func(e *envelope.Entry) { e.Payload = e.Payload[:len(e.Payload)-3] }), inbox.Parked, inbox.ReasonUndecodable},
		"a payload over 1 MiB": {signed(func(e *envelope.Entry) { e.Payload = make([]byte, audit.MaxPayload+1) }), inbox.Parked, inbox.ReasonTooLarge},
		"an unknown type": {event(func(e *auditv1.AuditEvent) {
			e.Action = "auth.user.teleported"
			e.EventType = "auth.user.teleported.v1"
		}), inbox.Parked, inbox.ReasonTypeUnknown},
		"schema version 2":         {event(func(e *auditv1.AuditEvent) { e.SchemaVersion = 2 }), inbox.Parked, inbox.ReasonVersionUnknown},
		"a required field missing": {event(func(e *auditv1.AuditEvent) { e.Actor = nil }), inbox.Parked, inbox.ReasonInvalid},
		"a field over its limit":   {event(func(e *auditv1.AuditEvent) { e.Actor.Id = strings.Repeat("a", 200) }), inbox.Parked, inbox.ReasonInvalid},
		"NUL in a text":            {event(func(e *auditv1.AuditEvent) { e.Actor.Id = "a\x00b" }), inbox.Parked, inbox.ReasonInvalid},
		"outer A, inner B": {func(b *bundle) map[string]any {
			e := b.seal()
			e.EventID = uuid.Must(uuid.NewV7())
			return inboxtest.Values(b.resign(e))
		}, inbox.Parked, inbox.ReasonIDMismatch},
		"an outer type that is not the inner one": {signed(func(e *envelope.Entry) { e.EventType = "auth.user.deleted.v1" }), inbox.Parked, inbox.ReasonOuterMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			bad := c.entry(b)
			good := b.seal()
			b.stream.Add(bad, inboxtest.Values(good), maps.Clone(bad))
			bridge := b.bridge("a")
			b.want("entries taken", b.take(bridge), 3)
			b.want("pending entries", len(b.stream.Pending()), 0)

			poison, err := b.operations("log").ListPoison(t.Context(), inbox.PoisonFilter{}, inbox.PoisonCursor{}, 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(poison) != 1 || poison[0].Kind != c.kind || poison[0].Reason != c.reason {
				t.Fatalf("poison = %+v, want one %s for %s", poison, c.kind, c.reason)
			}
			// The copy of a parked entry is a duplicate: its number is taken. Others are counted.
			if want := map[inbox.PoisonKind]int64{inbox.Forged: 2, inbox.Parked: 1}[c.kind]; poison[0].SeenCount != want {
				t.Errorf("seen %d times, want %d", poison[0].SeenCount, want)
			}
			b.want("events in the inbox", b.count(`SELECT count(*) FROM inbox_events`), 1)
			b.want("inbox rows", b.count(`SELECT count(*) FROM consumer_inbox WHERE event_id = $1`, good.EventID), 2)
			b.want("numbers held", b.count(`SELECT count(*) FROM ledger_entries`), map[inbox.PoisonKind]int{inbox.Forged: 1, inbox.Parked: 2}[c.kind])
			if got := bridge.Stats().PoisonReasons[c.reason]; got < 1 {
				t.Errorf("the reason %s is not counted", c.reason)
			}
		})
	}
}

// A forged entry with a true event's id neither takes its place nor its number (T9, F3).
func TestAForgedCopyDoesNotTakeTheTrueEventsPlace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.seal()
	forged := inboxtest.Values(e)
	forged["mac"] = strings.Repeat("f", 32)
	for range 5 {
		b.stream.Add(forged)
	}
	b.take(b.bridge("a"))
	b.stream.Add(inboxtest.Values(e))
	bridge := b.bridge("a")
	b.take(bridge)
	b.want("true events received", int(bridge.Stats().Received), 1)
	b.want("poison rows", b.count(`SELECT count(*) FROM inbox_poison`), 1)
	b.want("copies counted", b.count(`SELECT seen_count FROM inbox_poison`), 5)
}

// Duplicates are counted and change nothing; conflicts are refused, whatever stands first (U35, U70, T9, F16, BC-58).
func TestWhatIsHeldDecides(t *testing.T) {
	t.Parallel()
	other := func(b *bundle, e envelope.Entry) envelope.Entry { // another event under e's number
		o := inboxtest.Sealed(b.t, b.keys, inboxtest.NewEvent(b.t, "auth", "user.updated"), e.LedgerID, e.LedgerSeq)
		return o
	}
	bytesOf := func(b *bundle, e envelope.Entry) envelope.Entry { // the same id with other bytes, next number
		ev := inboxtest.NewEvent(b.t, "auth", "user.updated")
		ev.AuditId = e.EventID.String()
		b.seq++
		return inboxtest.Sealed(b.t, b.keys, ev, b.ledger, b.seq)
	}
	renumbered := func(b *bundle, e envelope.Entry) envelope.Entry {
		e.LedgerID, e.LedgerSeq = uuid.New(), 7
		return b.resign(e)
	}
	for name, c := range map[string]struct {
		second  func(*bundle, envelope.Entry) envelope.Entry
		want    inbox.Takeover
		reason  string
		numbers int
	}{
		"the same entry again":              {func(_ *bundle, e envelope.Entry) envelope.Entry { return e }, inbox.Takeover{Duplicates: 1}, "", 1},
		"another event under its number":    {other, inbox.Takeover{Conflicts: 1}, inbox.ReasonNumberHeld, 1},
		"its id with other bytes":           {bytesOf, inbox.Takeover{Conflicts: 1}, inbox.ReasonIDHeld, 1},
		"the event under a second ledger's": {renumbered, inbox.Takeover{Renumbered: 1}, "", 2},
	} {
		for _, pages := range []string{"in one page", "in two pages"} {
			t.Run(name+" "+pages, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				first := b.seal()
				second := c.second(b, first)
				last := b.seal()
				bridge := b.bridge("a")
				b.stream.Add(inboxtest.Values(first))
				if pages == "in two pages" {
					b.take(bridge)
				}
				b.stream.Add(inboxtest.Values(second), inboxtest.Values(last))
				b.take(bridge)
				got := bridge.Stats().Takeover
				if got.Received != 2 || got.Duplicates != c.want.Duplicates || got.Conflicts != c.want.Conflicts || got.Renumbered != c.want.Renumbered {
					t.Fatalf("takeover = %+v", got)
				}
				b.want("reasons", int(got.PoisonReasons[c.reason]), int(c.want.Conflicts))
				b.want("pending", len(b.stream.Pending()), 0)
				b.want("inbox rows", b.count(`SELECT count(*) FROM consumer_inbox`), 4)
				b.want("numbers of the first event", b.count(`SELECT count(*) FROM ledger_entries WHERE event_id = $1`, first.EventID), c.numbers)
				var payload []byte
				if err := b.db.Super.QueryRow(t.Context(), `SELECT payload FROM inbox_events WHERE event_id = $1`, first.EventID).Scan(&payload); err != nil {
					t.Fatal(err)
				}
				if string(payload) != string(first.Payload) {
					t.Error("the first event's bytes were changed")
				}
			})
		}
	}
}

// A second owner can neither take the id nor a number of the first (T9).
func TestAnotherOwnerCannotTakeIDsOrNumbers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.seal()
	b.stream.Add(inboxtest.Values(e))
	b.take(b.bridge("a"))

	keys, stream := inboxtest.NewKeys(t, "app-1"), inboxtest.NewStream(nil)
	stolen := inboxtest.NewEvent(t, "app", "project.created")
	stolen.AuditId = e.EventID.String()
	stream.Add(
		inboxtest.Values(inboxtest.Sealed(t, keys, stolen, uuid.New(), 1)),
		inboxtest.Values(inboxtest.Sealed(t, keys, inboxtest.NewEvent(t, "app", "project.created"), e.LedgerID, e.LedgerSeq+1)),
	)
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.Owner, o.Keys, o.Source = "app", keys, stream.Source("a", time.Minute)
	})
	b.take(bridge)
	got := bridge.Stats()
	if got.Conflicts != 2 || got.PoisonReasons[inbox.ReasonIDHeld] != 1 || got.PoisonReasons[inbox.ReasonLedgerForeign] != 1 {
		t.Fatalf("takeover = %+v", got.Takeover)
	}
	b.want("events", b.count(`SELECT count(*) FROM inbox_events`), 1)
}

// The genuine B is unharmed by an entry whose outside says A and whose inside says B, in both orders (U39).
func TestOuterAInnerBNeverTouchesB(t *testing.T) {
	t.Parallel()
	for _, genuineFirst := range []bool{true, false} {
		b := setup(t)
		genuine := b.seal()
		lie := genuine
		lie.EventID = uuid.Must(uuid.NewV7())
		b.seq++
		lie.LedgerSeq = b.seq
		order := []map[string]any{inboxtest.Values(genuine), inboxtest.Values(b.resign(lie))}
		if !genuineFirst {
			slices.Reverse(order)
		}
		b.stream.Add(order...)
		b.take(b.bridge("a"))
		b.want("B in the inbox", b.count(`SELECT count(*) FROM inbox_events WHERE event_id = $1`, genuine.EventID), 1)
		b.want("A in the inbox", b.count(`SELECT count(*) FROM inbox_events WHERE event_id = $1`, lie.EventID), 0)
	}
}

// Only subscribed consumers get a row, and content is stored once (U37, U94).
func TestEachSubscribedConsumerGetsItsOwnRow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	woken := map[string]int{}
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.Catalog.Subscriptions = []inbox.Subscription{
			{Consumer: "log", Wake: func() { woken["log"]++ }},
			{
				Consumer: "deletions", Wake: func() { woken["deletions"]++ },
				Wants: func(_, eventType string) bool { return eventType == "auth.user.deleted.v1" },
			},
		}
	})
	b.stream.Add(inboxtest.Values(b.seal()), inboxtest.Values(b.seal(func(e *auditv1.AuditEvent) {
		e.Action, e.EventType = "auth.user.deleted", "auth.user.deleted.v1"
	})))
	b.take(bridge)
	b.want("rows of log", b.count(`SELECT count(*) FROM consumer_inbox WHERE consumer = 'log'`), 2)
	b.want("rows of deletions", b.count(`SELECT count(*) FROM consumer_inbox WHERE consumer = 'deletions'`), 1)
	b.want("events", b.count(`SELECT count(*) FROM inbox_events`), 2)
	b.add(1)
	b.take(bridge)
	if woken["log"] != 2 || woken["deletions"] != 1 {
		t.Errorf("woken for two pages, one of them with a deletion: %v", woken)
	}
}

// A large page is copied in, a small one inserted: the rows are the same, but for their times.
func TestALargePageIsTakenOverLikeASmallOne(t *testing.T) {
	t.Parallel()
	large, small := setup(t), setup(t)
	for range 200 {
		entry := inboxtest.Values(large.seal())
		large.stream.Add(entry)
		small.stream.Add(entry)
	}
	small.keys = large.keys
	large.take(large.bridge("a"))
	small.take(small.bridge("a", func(o *inbox.BridgeOptions) { o.PageRows = 10 }))
	if pages := large.texts(`SELECT count(DISTINCT xmin::text)::text FROM inbox_events`); pages[0] > "5" {
		t.Fatalf("200 events made %s pages: none was large", pages[0])
	}
	for _, sql := range []string{
		`SELECT to_jsonb(e)::text FROM ledger_entries e ORDER BY ledger_seq`,
		`SELECT (to_jsonb(e) - 'received_at')::text FROM inbox_events e ORDER BY event_id`,
		`SELECT (to_jsonb(c) - 'received_at' - 'next_retry_at' - 'inbox_no')::text FROM consumer_inbox c ORDER BY event_id, consumer`,
	} {
		if got, want := large.texts(sql), small.texts(sql); len(got) < 200 || !slices.Equal(got, want) {
			t.Errorf("%s: %d rows that differ from the %d that were inserted", sql, len(got), len(want))
		}
	}
	large.want("rows that are due", large.count(`SELECT count(*) FROM consumer_inbox
		WHERE next_retry_at <= clock_timestamp() AND received_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()`), 400)
}

// texts returns a column of texts.
func (b *bundle) texts(sql string) []string {
	b.t.Helper()
	rows, err := b.db.Super.Query(b.t.Context(), sql)
	if err != nil {
		b.t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// A new row is PENDING, due, with no attempt (U42), and only four states exist.
func TestANewRowIsPendingAndDue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(1)
	b.take(b.bridge("a"))
	b.want("fresh rows", b.count(`SELECT count(*) FROM consumer_inbox WHERE state = 'PENDING' AND attempts = 0 AND next_retry_at <= clock_timestamp()`), 2)
	if _, err := b.db.Super.Exec(t.Context(), `UPDATE consumer_inbox SET state = 'DONE'`); err == nil {
		t.Error("a fifth state is accepted")
	}
	if _, err := b.db.Super.Exec(t.Context(), `INSERT INTO consumer_inbox (event_id, consumer) SELECT event_id, consumer FROM consumer_inbox`); err == nil {
		t.Error("a second row for one consumer and event is accepted (U36)")
	}
}
