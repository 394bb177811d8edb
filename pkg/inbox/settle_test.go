// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// lines is a log that a test reads while loops write.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) options(o *inbox.ConsumerOptions) {
	o.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelError}))
}

// refuseSettle makes the database refuse, with an error code, to end the lease of one event without its being PROCESSED;
// allow undoes it.
func (b *bundle) refuseSettle(id uuid.UUID, code string) (allow func()) {
	b.t.Helper()
	b.exec(`CREATE FUNCTION refuse_settle() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE 'this row stays as it is' USING ERRCODE = '` + code + `'; END $$`)
	b.exec(`CREATE TRIGGER refuse_settle BEFORE UPDATE ON consumer_inbox FOR EACH ROW
		WHEN (old.event_id = '` + id.String() + `' AND new.lease_token IS NULL AND new.state <> 'PROCESSED') EXECUTE FUNCTION refuse_settle()`)
	return func() { b.exec(`DROP TRIGGER refuse_settle ON consumer_inbox`) }
}

const refusedOutcome = "an outcome cannot be written; its row stays leased until the lease expires"

// A failure that the database refuses to record, for a reason that time does not mend, holds up no other event: it is told
// at ERROR and dropped, and the row is tried again when its lease has expired.
func TestARefusedFailureHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.deliver(10)
	bad := ids[3]
	allow := b.refuseSettle(bad, "23514")
	var log lines
	c := b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		for _, e := range batch {
			if e.ID == bad {
				return inbox.Permanent("test.bad", errBoom)
			}
		}
		return record(ctx, tx, batch)
	}, log.options, func(o *inbox.ConsumerOptions) { o.Workers = 1 })
	b.run(c.Run)
	eventually(t, 20*time.Second, func() error {
		if s := b.states(); s[inbox.Processed] != 9 || s[inbox.Processing] != 1 {
			return fmt.Errorf("states are %v, want 9 PROCESSED and the refused one leased", s)
		}
		return nil
	})
	b.deliver(5)
	eventually(t, 20*time.Second, func() error {
		starts := b.count(`SELECT attempts FROM consumer_inbox WHERE event_id = $1`, bad)
		if s := b.states(); s[inbox.Processed] != 14 || starts < 2 {
			return fmt.Errorf("states are %v and the refused one was started %d times, want 14 PROCESSED and 2 starts", s, starts)
		}
		return nil
	})
	if told := log.String(); !strings.Contains(told, refusedOutcome) || !strings.Contains(told, bad.String()) {
		t.Errorf("the log says %s", told)
	}
	allow()
	eventually(t, 20*time.Second, func() error {
		if s := b.states(); s[inbox.Dead] != 1 {
			return fmt.Errorf("states are %v, want the bad one DEAD", s)
		}
		return nil
	})
	b.want("effects", b.count(`SELECT count(*) FROM effects`), 14)
}

// Of rows that are given back together one is refused: the others are free at once.
func TestARefusedGiveBackCostsItsNeighboursNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad := b.deliver(5)[2]
	b.refuseSettle(bad, "P0001")
	var log lines
	c := b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { return &pgconn.PgError{Code: "57P01"} },
		log.options, func(o *inbox.ConsumerOptions) { o.Lease, o.IdleTimeout = time.Hour, 30*time.Minute })
	for range 2 { // the second pass pays what the first owes
		_, _ = c.Once(t.Context())
	}
	b.want("given back", b.count(`SELECT count(*) FROM consumer_inbox WHERE state = 'PENDING' AND attempts = 0 AND lease_token IS NULL`), 4)
	b.want("rows still leased", b.count(`SELECT count(*) FROM consumer_inbox WHERE state = 'PROCESSING' AND event_id = $1`, bad), 1)
	if told := log.String(); strings.Count(told, refusedOutcome) != 1 || !strings.Contains(told, bad.String()) {
		t.Errorf("the log says %s", told)
	}
}

// What the database has trouble with is owed until it lands, and nothing of it is dropped.
func TestATroubledGiveBackIsOwed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	allow := b.refuseSettle(b.deliver(5)[2], "53100")
	var log lines
	c := b.consumer(func(context.Context, pgx.Tx, []inbox.Event) error { return &pgconn.PgError{Code: "57P01"} },
		log.options, func(o *inbox.ConsumerOptions) { o.Lease, o.IdleTimeout = time.Hour, 30*time.Minute })
	for range 3 {
		if _, err := c.Once(t.Context()); err == nil {
			t.Error("no trouble")
		}
		b.want("rows still leased", b.states()[inbox.Processing], 5)
	}
	allow()
	_, _ = c.Once(t.Context()) // pays the debt first
	b.want("given back", int(c.Stats().GivenBack), 5)
	if told := log.String(); strings.Contains(told, refusedOutcome) {
		t.Errorf("the log says %s", told)
	}
}
