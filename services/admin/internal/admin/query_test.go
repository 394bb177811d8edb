// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// walk reads all pages and returns the ids in the order served. between runs after each page.
func (b bundle) walk(t *testing.T, filter string, size int, between func()) []uuid.UUID {
	t.Helper()
	var ids []uuid.UUID
	q := Query{Filter: filter, Limit: size}
	for {
		records, more, err := b.service.List(t.Context(), b.caller, q)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) > size {
			t.Fatalf("a page has %d records, want at most %d", len(records), size)
		}
		for _, r := range records {
			ids = append(ids, r.EventID)
			q.Before = r.EventID
		}
		if !more {
			return ids
		}
		if len(records) == 0 {
			t.Fatal("an empty page says that there are more")
		}
		between()
	}
}

// With 1000 records of one instant and pages of 7, the union is exact and nothing repeats (BC-64), while other records
// arrive between the pages.
func TestPagesAreExactUnderConcurrentInserts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	instant := time.Now().Add(-time.Minute).UTC().Truncate(time.Millisecond)
	want := map[uuid.UUID]bool{}
	var batch []inbox.Event
	for range 1000 {
		e := newEvent(t, at(instant))
		want[e.ID] = true
		batch = append(batch, e)
	}
	b.project(t, batch...)

	ids := b.walk(t, `owner = "auth"`, 7, func() {
		// One is newer than every page, one older than most, one of the same instant.
		b.project(t, newEvent(t), newEvent(t, at(instant.Add(-time.Second))), newEvent(t, at(instant)))
	})
	seen := map[uuid.UUID]bool{}
	for i, id := range ids {
		if seen[id] {
			t.Fatalf("%s is served twice", id)
		}
		seen[id] = true
		if i > 0 && bytes.Compare(ids[i-1][:], id[:]) <= 0 {
			t.Fatalf("%s comes after %s: newest first", id, ids[i-1])
		}
		delete(want, id)
	}
	if len(want) > 0 {
		t.Errorf("%d records that were there at the first page were not served", len(want))
	}
}

func TestPageIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var batch []inbox.Event
	for range 12 {
		e := newEvent(t)
		e.Payload = append(slices.Clone(e.Payload), padding(700<<10)...)
		batch = append(batch, e)
	}
	b.project(t, batch...)
	for _, full := range []bool{false, true} {
		q := Query{Filter: `owner = "auth"`, Limit: 1000, Payloads: full}
		var served, pages int
		for more := true; more; pages++ {
			records, next, err := b.service.List(t.Context(), b.caller, q)
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for _, r := range records {
				size += proto.Size(r.Event)
				if full {
					size += len(r.Payload)
				}
				q.Before = r.EventID
			}
			if size > 3<<20 {
				t.Errorf("a page has %d bytes", size)
			}
			served += len(records)
			more = next
		}
		if served != len(batch) || pages < 3 {
			t.Errorf("full=%v: %d records on %d pages, want %d on several", full, served, pages, len(batch))
		}
	}
}

// One record that is larger than a page is served alone, and the pages go on behind it.
func TestPageServesARecordLargerThanItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	small := newEvent(t)
	large := newEvent(t)
	large.Payload = append(slices.Clone(large.Payload), padding(4<<20)...)
	b.project(t, small, large)
	ids := b.walk(t, `owner = "auth"`, 10, func() {})
	if !slices.Equal(ids, []uuid.UUID{large.ID, small.ID}) {
		t.Errorf("served %v", ids)
	}
}

// padding is an unknown field of n bytes that do not compress.
func padding(n int) []byte {
	content := make([]byte, n)
	state := uint32(1)
	for i := range content {
		state = state*1664525 + 1013904223
		content[i] = byte(state >> 24)
	}
	field := []byte{0x82, 0x7d} // field 2000, bytes
	for size := n; ; size >>= 7 {
		if size < 0x80 {
			return append(append(field, byte(size)), content...)
		}
		field = append(field, byte(size)|0x80)
	}
}

// Bytes that are not UTF-8 are stored as they came and served as U+FFFD: one bad row does not fail a page (BC-19).
func TestInvalidUTF8IsServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := newEvent(t)
	e := newEvent(t, func(e *auditv1.AuditEvent) {
		e.Context.UserAgent = "aXz"
		e.Actor.DisplayName.GetValue().(*auditv1.Personal_Plain).Plain = "aXz"
		e.Metadata = map[string]string{"note": "aXz"}
	})
	e.Payload = bytes.ReplaceAll(e.Payload, []byte("aXz"), []byte("a\xc5z"))
	b.project(t, before, e, newEvent(t))
	records, _, err := b.service.List(t.Context(), b.caller, Query{Filter: `owner = "auth"`, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 3 {
		t.Fatalf("%d records are served, want 3", len(records))
	}
	got := records[1].Event
	for what, text := range map[string]string{
		"user agent": got.GetContext().GetUserAgent(), "name": got.GetActor().GetDisplayName().GetPlain(), "metadata": got.GetMetadata()["note"],
	} {
		if text != "a\uFFFDz" {
			t.Errorf("%s is %q", what, text)
		}
	}
	if records[1].Unreadable || !bytes.Equal(records[1].Payload, e.Payload) {
		t.Error("the stored bytes were changed, or the record counts as unreadable")
	}
	if _, err := proto.Marshal(got); err != nil {
		t.Errorf("what is served cannot be sent: %v", err)
	}
}

// A payload that does not decode is served from the columns, marked as such.
func TestUnreadablePayloadIsServedFromColumns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t)
	e.Payload = []byte{0xff, 0xff, 0xff}
	b.project(t, e)
	record, err := b.service.Get(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !record.Unreadable {
		t.Error("the record is not marked as unreadable")
	}
	if got := record.Event; got.GetAuditId() != e.ID.String() || got.GetAction() != "auth.user.created" ||
		got.GetOperation() != auditv1.Operation_OPERATION_CREATE || got.GetOutcome() != auditv1.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("served from columns: %v", got)
	}
}

func TestGetOfAnUnknownRecordIsNotFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.service.Get(t.Context(), uuid.New()); apperr.KindOf(err) != apperr.KindNotFound {
		t.Errorf("got %v, want NOT_FOUND", err)
	}
}

// The first page of a listing is recorded, with its filter whole; the pages that follow are not.
func TestListingIsRecordedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	filter := `owner = "auth" OR actor.id = "` + strings.Repeat("é", 800) + `"`
	for range 3 {
		b.project(t, newEvent(t))
	}
	b.walk(t, filter, 1, func() {})
	records, _, err := b.service.List(t.Context(), b.caller, Query{Filter: `action = "admin.audit_log.viewed"`, Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(records) != 2 { // this listing is the newest of them
		t.Fatalf("%d listings are recorded, want 2", len(records))
	}
	m := records[1].Event.GetMetadata()
	if whole := m["filter"] + m["filter_2"] + m["filter_3"] + m["filter_4"]; whole != filter {
		t.Errorf("the recorded filter is %q", whole)
	}
	if records[1].Event.GetActor().GetId() != b.caller.UserID {
		t.Errorf("the actor is %v", records[1].Event.GetActor())
	}
}

// A listing of which no record can be written is served all the same.
func TestListingIsServedWhenItCannotBeRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t)
	b.project(t, e)
	b.breakLedger(t)
	records, _, err := b.service.List(t.Context(), b.caller, Query{Limit: 10})
	if err != nil || len(records) != 1 {
		t.Errorf("got %d records and %v, want the one record", len(records), err)
	}
}

// breakLedger makes every attempt to record one of Admin's own events fail.
func (b bundle) breakLedger(t *testing.T) {
	t.Helper()
	if _, err := b.Super.Exec(t.Context(), "DELETE FROM audit_ledger"); err != nil {
		t.Fatal(err)
	}
}

// Admin's own numbers are dense from 1 under concurrent operations, a rolled-back one leaves no hole, and each number
// has its leaf.
func TestOwnNumbersAreDense(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 10 {
				if (i+j)%4 == 0 {
					_ = b.inTx(context.Background(), func(tx pgx.Tx) error {
						event, err := b.service.events.logViewed(b.caller, "")
						if err != nil {
							return err
						}
						if err := record(context.Background(), tx, event); err != nil {
							return err
						}
						return fmt.Errorf("changed my mind")
					})
					continue
				}
				b.service.Refused(context.Background(), b.caller, "/x/Y", "ROLE_REQUIRED")
			}
		})
	}
	all.Wait()
	logs := b.count(t, "SELECT count(*) FROM audit_logs")
	for what, sql := range map[string]string{
		"highest number": "SELECT max(ledger_seq) FROM audit_logs WHERE owner = 'admin'",
		"head":           "SELECT head FROM audit_ledger",
		"leaves":         "SELECT count(*) FROM ledger_entries e JOIN audit_logs l USING (event_id, ledger_id, ledger_seq)",
	} {
		if n := b.count(t, sql); n != logs || n == 0 {
			t.Errorf("%s is %d, want %d", what, n, logs)
		}
	}
}
