// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/pkg/envelope"
)

// Whatever mix of copies, renumbered events and contradictions comes, in whatever pages: each number goes to one
// event and each id to one content, the first that came; every entry has a verdict; and splitting the
// entries into pages changes nothing (F16).
func TestVerdictsDoNotDependOnThePages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		small := func(name string) byte { return byte(rapid.IntRange(0, 3).Draw(t, name)) }
		all := rapid.SliceOfN(rapid.Custom(func(*rapid.T) checked {
			c := checked{env: envelope.Entry{EventID: uuid.UUID{1, small("id")}, LedgerID: uuid.UUID{2, small("ledger") % 2}, LedgerSeq: int64(small("seq"))}}
			c.leaf[0] = small("leaf") % 2
			return c
		}), 1, 40).Draw(t, "entries")
		whole := decideAll(all, len(all))
		paged := decideAll(all, rapid.IntRange(1, len(all)).Draw(t, "page"))
		if diff := cmp.Diff(verdicts(whole), verdicts(paged)); diff != "" {
			t.Fatal(diff)
		}
		numbers, ids := map[numbered]held{}, map[uuid.UUID][sha256.Size]byte{}
		for _, c := range whole {
			at := numbered{c.env.LedgerID, c.env.LedgerSeq}
			switch c.verdict {
			case isEvent:
				if _, ok := ids[c.env.EventID]; ok {
					t.Fatal("an id is new twice")
				}
			case isConflict:
				n, numberHeld := numbers[at]
				leaf, idHeld := ids[c.env.EventID]
				numberClashes := numberHeld && n != held{c.env.EventID, c.leaf, "auth"}
				idClashes := idHeld && leaf != c.leaf
				if !numberClashes && !idClashes {
					t.Fatal("a conflict with nothing")
				}
				continue
			}
			if n, ok := numbers[at]; ok && n != (held{c.env.EventID, c.leaf, "auth"}) {
				t.Fatal("a number has two events")
			}
			if leaf, ok := ids[c.env.EventID]; ok && leaf != c.leaf {
				t.Fatal("an id has two contents")
			}
			numbers[at], ids[c.env.EventID] = held{c.env.EventID, c.leaf, "auth"}, c.leaf
		}
	})
}

// decideAll decides entries in pages, carrying over what a database would hold.
func decideAll(all []checked, page int) []checked {
	r := record{byNumber: map[numbered]held{}, byEvent: map[uuid.UUID]held{}, foreign: map[uuid.UUID]bool{}}
	out := append([]checked(nil), all...)
	for rest := out; len(rest) > 0; {
		n := min(page, len(rest))
		r.decide("auth", rest[:n])
		rest = rest[n:]
		r.byNumber, r.byEvent = maps.Clone(r.byNumber), maps.Clone(r.byEvent)
	}
	return out
}

func verdicts(page []checked) []int {
	out := make([]int, len(page))
	for i, c := range page {
		out[i] = int(c.verdict)
	}
	return out
}

func TestRawFieldsComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.MapOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "fields")
		values := map[string]any{}
		for k, v := range fields {
			values[k] = v
		}
		raw := encodeFields(values)
		got, err := DecodeFields(raw)
		if err != nil || len(got) != len(fields) {
			t.Fatalf("%v, %v", got, err)
		}
		for k, v := range fields {
			if !bytes.Equal(got[k], []byte(v)) {
				t.Fatalf("field %q is %q, want %q", k, got[k], v)
			}
		}
		cut := rapid.IntRange(0, len(raw)).Draw(t, "cut")
		if _, err := DecodeFields(raw[:cut]); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	})
}

// No bytes make the checks panic or pass (BC-57).
func FuzzCheck(f *testing.F) {
	keys, err := envelope.NewKeyring(envelope.Key{ID: "k", Secret: make([]byte, 32)})
	if err != nil {
		f.Fatal(err)
	}
	b := &Bridge{o: BridgeOptions{Owner: "auth", Keys: keys}}
	f.Add([]byte("payload"), "auth.user.updated.v1", int32(1), "01939f6e-5c1a-7c1e-9c1e-0123456789ab")
	f.Add([]byte{0xff, 0xff}, "a\x00b", int32(-1), "")
	f.Fuzz(func(t *testing.T, payload []byte, eventType string, version int32, id string) {
		e := envelope.Entry{EventType: eventType, Owner: "auth", SchemaVersion: version, LedgerID: uuid.UUID{1}, LedgerSeq: 1, Payload: payload}
		e.EventID, _ = uuid.Parse(id)
		keys.Sign(&e, envelope.ToAdmin)
		values := map[string]any{}
		fields := e.Fields()
		for i := 0; i < len(fields); i += 2 {
			values[fields[i].(string)] = fieldText(fields[i+1])
		}
		c := b.check(Entry{ID: "1-1", Values: values})
		if c.verdict == isEvent && c.reason == "" {
			return // a valid event
		}
		if _, bad := c.poison(); !bad && c.verdict != isCheckpoint {
			t.Fatalf("neither poison nor usable: %+v", c)
		}
		collectPoison([]checked{c})
	})
}

func TestClaimedTextFitsItsColumn(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain": "plain", "a\x00b": "a?b", "a\xc5z": "a?z", strings.Repeat("é", 65): strings.Repeat("é", 64),
	} {
		if got := claimedText(in, 128); got != want {
			t.Errorf("claimedText(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestEntryIDsAreNumbers(t *testing.T) {
	t.Parallel()
	if laterID("9-0", "10-0") != "10-0" || laterID("5-10", "5-9") != "5-10" || laterID("", "1-1") != "1-1" {
		t.Error("ids are compared as text")
	}
}

func TestAPauseDoublesToItsCapAndStartsAnew(t *testing.T) {
	t.Parallel()
	p := pause{least: 200 * time.Millisecond, most: 30 * time.Second, jitter: func() float64 { return 0.999999 }}
	last := time.Duration(0)
	for range 12 {
		d := p.next()
		if d < last || d > 30*time.Second {
			t.Fatalf("%v after %v", d, last)
		}
		last = d
	}
	if last < 29*time.Second {
		t.Errorf("the cap is %v", last)
	}
	p.reset()
	p.jitter = func() float64 { return 0 }
	if d := p.next(); d != 20*time.Millisecond {
		t.Errorf("the least wait after a reset is %v: a pause of zero would be a hot loop", d)
	}
}

func TestTroubleIsLoggedOnceInAnInterval(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Unix(0, 0)
	log := newThrottle(slog.New(slog.NewTextHandler(&out, nil)), time.Second, func() time.Time { return now })
	for range 1000 {
		log.say(context.Background(), slog.LevelWarn, "trouble")
		now = now.Add(2 * time.Millisecond)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 || !strings.Contains(out.String(), "not_logged=499") {
		t.Errorf("%d lines in two seconds: %s", lines, out.String())
	}
}

func TestTheLowWaterMarkTrailsTheNewestClaim(t *testing.T) {
	t.Parallel()
	var l lowWater
	now := time.Unix(1000, 0)
	for no := int64(1); no <= 100; no++ {
		l.claimed(no)
		if m := l.mark(now); m > max(no-20, 0) { // 100 ms a claim: two seconds are 20 claims
			t.Fatalf("the mark is %d after %d was claimed", m, no)
		}
		now = now.Add(100 * time.Millisecond)
	}
	if m := l.mark(now); m < 50 {
		t.Errorf("the mark stays at %d", m)
	}
}

func TestEveryTransactionNamesItsIsolationAndTimeouts(t *testing.T) {
	t.Parallel()
	sql := begin(5*time.Second, 20*time.Second, false)
	for _, want := range []string{"isolation level read committed", "'lock_timeout', '5000'", "'idle_in_transaction_session_timeout', '20000'", "'synchronous_commit', 'off'"} {
		if !strings.Contains(sql, want) {
			t.Errorf("%q is not in %q", want, sql)
		}
	}
	if !strings.Contains(begin(time.Nanosecond, time.Second, true), "'lock_timeout', '1'") {
		t.Error("a time-out below a millisecond becomes 0, which means none")
	}
}
