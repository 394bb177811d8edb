// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// The effect takes place once, however often the handler runs (U40), and the bytes are those that were appended.
func TestProjectRecordsOnceAndByteForByte(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t)
	// A field that this release does not know must survive: the payload is what the ledger hashed.
	e.Payload = protowire.AppendBytes(protowire.AppendTag(e.Payload, 2000, protowire.BytesType), []byte("later"))
	b.project(t, e)
	b.project(t, e)
	b.project(t, newEvent(t), e, newEvent(t))

	if n := b.count(t, "SELECT count(*) FROM audit_logs WHERE event_id = $1", e.ID); n != 1 {
		t.Errorf("the event is recorded %d times, want 1", n)
	}
	if n := b.count(t, "SELECT count(*) FROM audit_logs"); n != 3 {
		t.Errorf("%d events are recorded, want 3", n)
	}
	record, err := b.service.Get(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(record.Payload, e.Payload) {
		t.Error("the recorded payload is not the one that was received")
	}
	if record.LedgerID != e.LedgerID || record.LedgerSeq != e.LedgerSeq || record.RecordTime.IsZero() {
		t.Errorf("ledger position or record time is not recorded: %+v", record)
	}
}

// Columns say what the payload says, in the short names that filters use, and nothing personal.
func TestProjectFillsColumns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t, func(e *auditv1.AuditEvent) {
		e.Outcome, e.Reason = auditv1.Outcome_OUTCOME_DENIED, "LOCKED_OUT"
		e.Resource.Version = 0
		e.Context.TraceId = strings.Repeat("ab", 16)
	})
	b.project(t, e)
	var operation, outcome, reason, actor, trace string
	var version *int64
	err := b.Super.QueryRow(t.Context(),
		"SELECT operation, outcome, reason, actor_id, trace_id, resource_version FROM audit_logs").
		Scan(&operation, &outcome, &reason, &actor, &trace, &version)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{operation, outcome, reason, actor, trace}
	want := []string{"CREATE", "DENIED", "LOCKED_OUT", "u-1", strings.Repeat("ab", 16)}
	if !slices.Equal(got, want) {
		t.Errorf("columns are %q, want %q", got, want)
	}
	if version != nil {
		t.Errorf("an event about no row has version %d", *version)
	}
	if n := b.count(t, "SELECT count(*) FROM audit_logs l WHERE to_jsonb(l) - 'payload' @> '{}' AND (to_jsonb(l) - 'payload')::text LIKE '%Ada%'"); n != 0 {
		t.Error("a display name stands in a column")
	}
}

// Other bytes under a recorded id are never taken for the recorded event, and trying again cannot help.
func TestProjectRefusesOtherBytesForGood(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t)
	b.project(t, e)
	e.Payload = append(slices.Clone(e.Payload), 0x98, 0x7d, 0x01) // one unknown field more
	err := pgdb.InTx(t.Context(), b.Service, func(tx pgx.Tx) error {
		return Project(t.Context(), tx, []inbox.Event{newEvent(t), e})
	})
	if err == nil || !strings.Contains(err.Error(), "audit_log.other_bytes") {
		t.Fatalf("got %v, want a permanent error", err)
	}
	if n := b.count(t, "SELECT count(*) FROM audit_logs"); n != 1 {
		t.Errorf("%d events are recorded, want 1: the batch is rolled back", n)
	}
}

// A large batch is copied in. It must record the same columns as a small one, and one event that is recorded already must
// not keep the others out.
func TestProjectOfALargeBatchRecordsTheSame(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var batch []inbox.Event
	for range copyRows {
		batch = append(batch, newEvent(t), newEvent(t, func(e *auditv1.AuditEvent) { e.Resource.Version = 0 }))
	}
	b.project(t, batch...)
	const columns = "SELECT (to_jsonb(l) - 'record_time')::text FROM audit_logs l ORDER BY event_id"
	copied := b.texts(t, columns)
	if len(copied) != len(batch) {
		t.Fatalf("%d events are recorded, want %d", len(copied), len(batch))
	}
	b.project(t, append(batch, newEvent(t))...)
	if n := b.count(t, "SELECT count(*) FROM audit_logs"); n != int64(len(batch)+1) {
		t.Errorf("%d events are recorded, want %d: what is recorded kept out what is new", n, len(batch)+1)
	}

	one := setup(t)
	for _, e := range batch {
		one.project(t, e)
	}
	if !slices.Equal(copied, one.texts(t, columns)) {
		t.Error("the columns of a copied event differ from those of an inserted one")
	}

	forged := slices.Clone(batch)
	forged[9].Payload = append(slices.Clone(forged[9].Payload), 0x98, 0x7d, 0x01)
	err := pgdb.InTx(t.Context(), b.Service, func(tx pgx.Tx) error { return Project(t.Context(), tx, forged) })
	if err == nil || !strings.Contains(err.Error(), "audit_log.other_bytes") {
		t.Errorf("got %v for other bytes, want a permanent error", err)
	}
}

func (b bundle) texts(t *testing.T, sql string) []string {
	t.Helper()
	rows, err := b.Super.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Two workers that hold the same events in other orders wait for each other and do not deadlock. Both are made to meet
// at an event that a third one holds: with rows written in the order of the batch, each would then want what the other has.
func TestProjectOfTheSameBatchByTwoWorkers(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"inserted": 3, "copied": copyRows} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			projectInTwoOrders(t, size)
		})
	}
}

func projectInTwoOrders(t *testing.T, size int) {
	t.Helper()
	b := setup(t)
	batch := make([]inbox.Event, size)
	for i := range batch {
		batch[i] = newEvent(t)
	}
	slices.SortFunc(batch, func(a, b inbox.Event) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	reversed := slices.Clone(batch)
	slices.Reverse(reversed)

	third, err := b.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = third.Rollback(context.Background()) }()
	if err := Project(t.Context(), third, batch[1:2]); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	for _, order := range [][]inbox.Event{batch, reversed} {
		group.Go(func() error {
			tx, err := b.Service.Begin(t.Context()) // not InTx: that would hide a deadlock
			if err != nil {
				return err
			}
			if err := Project(t.Context(), tx, order); err != nil {
				return errors.Join(err, tx.Rollback(t.Context()))
			}
			return tx.Commit(t.Context())
		})
	}
	b.waitForLocks(t, "transactionid", 2)
	if err := third.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := b.count(t, "SELECT count(*) FROM audit_logs"); n != int64(len(batch)) {
		t.Errorf("%d events are recorded, want %d", n, len(batch))
	}
}

// The log can be added to and nothing else, by the service's role and by the owner of the tables.
func TestAuditLogIsAppendOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.project(t, newEvent(t))
	for _, sql := range []string{
		"UPDATE audit_logs SET action = 'x'", "DELETE FROM audit_logs", "TRUNCATE audit_logs",
		"UPDATE ledger_entries SET owner = 'x'", "DELETE FROM ledger_entries",
	} {
		for role, pool := range map[string]interface {
			pgdb.Beginner
		}{"service": b.Service, "owner": b.Owner} {
			err := pgdb.InTx(t.Context(), pool, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), sql)
				return err
			})
			if pgdb.Code(err) != "42501" {
				t.Errorf("%s as %s: got %v, want insufficient_privilege", sql, role, err)
			}
		}
	}
}
