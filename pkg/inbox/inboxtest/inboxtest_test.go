// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inboxtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
)

func TestTheStreamInMemoryPassesTheSuite(t *testing.T) {
	t.Parallel()
	inboxtest.RunSourceSuite(t, func(testing.TB) inboxtest.Harness {
		s := inboxtest.NewStream(nil)
		return inboxtest.Harness{
			Open:   func(_ testing.TB, reader string) inbox.Source { return s.Source(reader, 100*time.Millisecond) },
			Add:    func(_ testing.TB, v ...map[string]any) []string { return s.Add(v...) },
			Delete: func(_ testing.TB, ids ...string) { s.Delete(ids...) },
			Flush:  func(testing.TB) { s.Flush() },
			Len:    func(testing.TB) int { return s.Len() },
		}
	})
}

func TestEventsOfTheKitAreValid(t *testing.T) {
	t.Parallel()
	if err := audit.Check(inboxtest.NewEvent(t, "auth", "user.registered")); err != nil {
		t.Fatal(err)
	}
}

// The kit as its users have it: deliver, consume, look.
func TestDeliverAndApplyTwice(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Admin)
	if _, err := db.Owner.Exec(t.Context(), `CREATE TABLE seen (event_id uuid PRIMARY KEY); GRANT ALL ON seen TO admin_service`); err != nil {
		t.Fatal(err)
	}
	handler := func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		for _, e := range batch {
			if _, err := tx.Exec(ctx, `INSERT INTO seen VALUES ($1) ON CONFLICT DO NOTHING`, e.ID); err != nil {
				return err
			}
		}
		return nil
	}
	one, other := inboxtest.NewEvent(t, "auth", "user.registered"), inboxtest.NewEvent(t, "app", "project.created")
	inboxtest.ApplyTwice(t, db.Service, handler, one, other)
	ids := inboxtest.Deliver(t, db.Service, "seen", one, other)
	inboxtest.RequireState(t, db.Service, "seen", ids[0], inbox.Pending)
	c, err := inbox.NewConsumer(inbox.ConsumerOptions{DB: db.Service, Name: "seen", Handler: handler})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Once(t.Context()); n != 2 || err != nil {
		t.Fatalf("processed %d (%v), want 2", n, err)
	}
	for _, id := range ids {
		inboxtest.RequireState(t, db.Service, "seen", id, inbox.Processed)
	}
	var n int
	if err := db.Service.QueryRow(t.Context(), `SELECT count(*) FROM seen`).Scan(&n); err != nil || n != 2 {
		t.Fatalf("%d effects (%v), want 2", n, err)
	}
}
