// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// Harness is what the suite needs of an implementation: one fresh stream without a group.
type Harness struct {
	// Open returns the stream as a reader of that name sees it. An entry of another reader is idle after 100 ms.
	Open func(t testing.TB, reader string) inbox.Source
	// Add appends entries and returns their ids.
	Add func(t testing.TB, values ...map[string]any) []string
	// Delete removes entries as a stranger would.
	Delete func(t testing.TB, ids ...string)
	// Flush loses stream and group.
	Flush func(t testing.TB)
	// Len returns how many entries the stream holds.
	Len func(t testing.TB) int
}

// RunSourceSuite runs what every inbox.Source must do, each test on a harness of its own.
func RunSourceSuite(t *testing.T, open func(t testing.TB) Harness) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Harness){
		"the group starts at the beginning":              startsAtTheBeginning,
		"an entry is new once":                           newOnce,
		"own entries come again until acknowledged":      ownAgain,
		"a round of own entries can begin again":         ownFromTheFirst,
		"another's entries are not own":                  notAnothers,
		"idle entries change hands, all in one sweep":    idleSweep,
		"entries that are not idle stay where they are":  notIdle,
		"deleted entries are reported and drain":         deletedDrain,
		"a blocked read ends with its context":           blockedReadEnds,
		"a blocked read gets what comes":                 blockedReadGets,
		"a blocked read of nothing is empty, not failed": blockedReadEmpty,
		"a page over its bytes is given up and not lost": tooLarge,
		"a lost group is said so, and made again":        lostGroup,
		"tidying keeps what is needed":                   tidyKeeps,
		"the position counts":                            position,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func values(n int) []map[string]any {
	out := make([]map[string]any, n)
	for i := range out {
		out[i] = map[string]any{"n": fmt.Sprint(i), "bytes": "\x00\xff"}
	}
	return out
}

func prepared(t testing.TB, h Harness, reader string) inbox.Source {
	t.Helper()
	s := h.Open(t, reader)
	for range 2 { // repeating it does no harm
		if err := s.Prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func read(t testing.TB, s inbox.Source, kind inbox.Kind, limit inbox.Limit) inbox.Page {
	t.Helper()
	p, err := s.Read(t.Context(), kind, limit)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ids(p inbox.Page) []string {
	out := make([]string, len(p.Entries))
	for i, e := range p.Entries {
		out[i] = e.ID
	}
	return out
}

func equal(t testing.TB, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func ack(t testing.TB, s inbox.Source, ids []string) {
	t.Helper()
	if err := s.Ack(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
}

// sweep reads one kind until it is done.
func sweep(t testing.TB, s inbox.Source, kind inbox.Kind, count int) (entries, deleted []string) {
	t.Helper()
	for range 10000 {
		p := read(t, s, kind, inbox.Limit{Count: count})
		entries, deleted = append(entries, ids(p)...), append(deleted, p.Deleted...)
		if p.Done {
			slices.Sort(deleted)
			return entries, slices.Compact(deleted)
		}
	}
	t.Fatal("the sweep does not end")
	return nil, nil
}

func startsAtTheBeginning(t *testing.T, h Harness) {
	t.Helper()
	want := h.Add(t, values(3)...)
	s := prepared(t, h, "a")
	p := read(t, s, inbox.New, inbox.Limit{Count: 10})
	equal(t, "entries added before the group", ids(p), want)
	if p.Entries[1].Values["n"] != "1" || p.Entries[1].Values["bytes"] != "\x00\xff" {
		t.Errorf("fields are %v", p.Entries[1].Values)
	}
}

func newOnce(t *testing.T, h Harness) {
	t.Helper()
	a, b := prepared(t, h, "a"), prepared(t, h, "b")
	want := h.Add(t, values(5)...)
	equal(t, "a's page", ids(read(t, a, inbox.New, inbox.Limit{Count: 3})), want[:3])
	equal(t, "b's page", ids(read(t, b, inbox.New, inbox.Limit{Count: 3})), want[3:])
	equal(t, "nothing more", ids(read(t, a, inbox.New, inbox.Limit{Count: 3})), []string{})
}

func ownAgain(t *testing.T, h Harness) {
	t.Helper()
	want := h.Add(t, values(7)...)
	read(t, prepared(t, h, "a"), inbox.New, inbox.Limit{Count: 10})
	again := prepared(t, h, "a") // the same name after a restart
	got, _ := sweep(t, again, inbox.Own, 3)
	equal(t, "own entries", got, want)
	ack(t, again, want[:5])
	ack(t, again, []string{"1-1"}) // unknown
	got, _ = sweep(t, again, inbox.Own, 3)
	equal(t, "own entries after an acknowledgement", got, want[5:])
}

func ownFromTheFirst(t *testing.T, h Harness) {
	t.Helper()
	want := h.Add(t, values(5)...)
	s := prepared(t, h, "a")
	read(t, s, inbox.New, inbox.Limit{Count: 5})
	equal(t, "the first page", ids(read(t, s, inbox.Own, inbox.Limit{Count: 3, First: true})), want[:3])
	equal(t, "the next", ids(read(t, s, inbox.Own, inbox.Limit{Count: 3})), want[3:])
	equal(t, "begun again", ids(read(t, s, inbox.Own, inbox.Limit{Count: 3, First: true})), want[:3])
}

func notAnothers(t *testing.T, h Harness) {
	t.Helper()
	h.Add(t, values(3)...)
	read(t, prepared(t, h, "a"), inbox.New, inbox.Limit{Count: 10})
	got, _ := sweep(t, prepared(t, h, "b"), inbox.Own, 10)
	equal(t, "own entries of another name", got, nil)
}

func idleSweep(t *testing.T, h Harness) {
	t.Helper()
	want := h.Add(t, values(50)...)
	read(t, prepared(t, h, "a"), inbox.New, inbox.Limit{Count: 50})
	b := prepared(t, h, "b")
	var got []string
	waitFor(t, func() bool {
		entries, _ := sweep(t, b, inbox.Idle, 7)
		got = append(got, entries...)
		return len(got) >= len(want)
	})
	slices.Sort(got)
	slices.Sort(want)
	equal(t, "reclaimed", got, want)
	own, _ := sweep(t, b, inbox.Own, 100)
	if len(own) != 50 {
		t.Errorf("%d of 50 reclaimed entries are the new reader's", len(own))
	}
}

func notIdle(t *testing.T, h Harness) {
	t.Helper()
	h.Add(t, values(3)...)
	a, b := prepared(t, h, "a"), prepared(t, h, "b")
	read(t, a, inbox.New, inbox.Limit{Count: 3})
	start := time.Now()
	got, _ := sweep(t, b, inbox.Idle, 10)
	if len(got) > 0 && time.Since(start) < 90*time.Millisecond {
		t.Errorf("took %v from a reader that was given them a moment ago", got)
	}
}

func deletedDrain(t *testing.T, h Harness) {
	t.Helper()
	all := h.Add(t, values(30)...)
	a := prepared(t, h, "a")
	read(t, a, inbox.New, inbox.Limit{Count: 30})
	h.Delete(t, all[:20]...)
	entries, deleted := sweep(t, a, inbox.Own, 7)
	want := slices.Clone(all[:20])
	slices.Sort(want)
	equal(t, "deleted", deleted, want)
	equal(t, "left", entries, all[20:])
	ack(t, a, all)
	entries, deleted = sweep(t, a, inbox.Own, 7)
	if len(entries)+len(deleted) != 0 {
		t.Errorf("still pending: %v %v", entries, deleted)
	}
}

func blockedReadEnds(t *testing.T, h Harness) {
	t.Helper()
	s := prepared(t, h, "a")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := s.Read(ctx, inbox.New, inbox.Limit{Count: 1, Block: time.Minute})
	if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took > 3*time.Second {
		t.Errorf("the read ended after %v with %v", took, err)
	}
}

func blockedReadGets(t *testing.T, h Harness) {
	t.Helper()
	s := prepared(t, h, "a")
	got := make(chan inbox.Page, 1)
	go func() {
		p, _ := s.Read(t.Context(), inbox.New, inbox.Limit{Count: 10, Block: 10 * time.Second})
		got <- p
	}()
	want := h.Add(t, values(1)...)
	select {
	case p := <-got:
		equal(t, "entries", ids(p), want)
	case <-time.After(9 * time.Second):
		t.Error("the reader was not woken")
	}
}

func blockedReadEmpty(t *testing.T, h Harness) {
	t.Helper()
	s := prepared(t, h, "a")
	for range 3 {
		p := read(t, s, inbox.New, inbox.Limit{Count: 1, Block: 20 * time.Millisecond})
		equal(t, "entries", ids(p), []string{})
	}
}

func tooLarge(t *testing.T, h Harness) {
	t.Helper()
	s := prepared(t, h, "a")
	large := map[string]any{"text": strings.Repeat("x", 1<<20)}
	want := h.Add(t, large, large, large)
	for name, limit := range map[string]inbox.Limit{
		"at once": {Count: 3, Bytes: 2 << 20}, "blocked": {Count: 3, Bytes: 2 << 20, Block: time.Second},
	} {
		if _, err := s.Read(t.Context(), inbox.New, limit); !errors.Is(err, inbox.ErrTooLarge) {
			t.Errorf("a read %s = %v, want ErrTooLarge", name, err)
		}
		var got []string
		for limit := (inbox.Limit{Count: 1, Bytes: 1, First: true}); ; limit.First = false { // one entry comes whatever its size
			p := read(t, s, inbox.Own, limit)
			if p.Done {
				break
			}
			got = append(got, ids(p)...)
		}
		equal(t, "own entries after a read "+name, got, want)
		want = append(want, h.Add(t, large, large, large)...)
	}
}

func lostGroup(t *testing.T, h Harness) {
	t.Helper()
	s := prepared(t, h, "a")
	h.Flush(t)
	for _, kind := range []inbox.Kind{inbox.New, inbox.Own, inbox.Idle} {
		if _, err := s.Read(t.Context(), kind, inbox.Limit{Count: 1}); !errors.Is(err, inbox.ErrNoGroup) {
			t.Errorf("Read(%d) = %v, want ErrNoGroup", kind, err)
		}
	}
	if _, err := s.Tidy(t.Context()); !errors.Is(err, inbox.ErrNoGroup) {
		t.Errorf("Tidy = %v, want ErrNoGroup", err)
	}
	if _, err := s.Position(t.Context()); !errors.Is(err, inbox.ErrNoGroup) {
		t.Errorf("Position = %v, want ErrNoGroup", err)
	}
	want := h.Add(t, values(2)...)
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, "entries after the repair", ids(read(t, s, inbox.New, inbox.Limit{Count: 10})), want)
}

func tidyKeeps(t *testing.T, h Harness) {
	t.Helper()
	s := prepared(t, h, "a")
	all := h.Add(t, values(30)...)
	read(t, s, inbox.New, inbox.Limit{Count: 20})
	ack(t, s, slices.Concat(all[:10], all[12:20]))
	tidied, err := s.Tidy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// 10 and 11 are pending, 20 and on unread; what lies between was acknowledged and waits for them.
	if tidied.Trimmed != 10 || h.Len(t) != 20 {
		t.Errorf("trimmed %d, %d are left, want 10 and 20", tidied.Trimmed, h.Len(t))
	}
	own, _ := sweep(t, s, inbox.Own, 10)
	equal(t, "pending", own, all[10:12])
}

func position(t *testing.T, h Harness) {
	t.Helper()
	s := prepared(t, h, "a")
	all := h.Add(t, values(10)...)
	read(t, s, inbox.New, inbox.Limit{Count: 6})
	ack(t, s, all[:4])
	p, err := s.Position(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p.Lag != 4 || p.Pending != 2 {
		t.Errorf("lag %d and pending %d, want 4 and 2", p.Lag, p.Pending)
	}
	ack(t, s, all[4:6])
	if p, err = s.Position(t.Context()); err != nil || p.Through != all[5] || p.Pending != 0 {
		t.Errorf("through %s (%v), want %s", p.Through, err, all[5])
	}
}

// waitFor tries until ok or ten seconds have passed.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	deadline, tick := time.NewTimer(10*time.Second), time.NewTicker(20*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("did not happen within ten seconds")
		case <-tick.C:
		}
	}
}
