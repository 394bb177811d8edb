// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// scale divides every duration of the consumers under test: a lease of 30 s lasts 1.5 s.
const scale = 20

// bundle is one receiver under test: a database, an owner's keys and ledger, and a stream in memory.
type bundle struct {
	t      testing.TB
	db     *testdb.DB
	keys   *envelope.Keyring
	ledger uuid.UUID
	seq    int64
	stream *inboxtest.Stream
	log    *slog.Logger
}

func setup(t testing.TB) *bundle {
	t.Helper()
	db := testdb.New(t, testdb.Admin)
	// The effects of the handlers under test.
	for _, sql := range []string{
		`CREATE TABLE effects (event_id uuid PRIMARY KEY, xact xid8 NOT NULL DEFAULT pg_current_xact_id())`,
		`CREATE TABLE runs (event_id uuid NOT NULL)`,
		`GRANT ALL ON effects, runs TO admin_service`,
	} {
		if _, err := db.Owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return &bundle{
		t: t, db: db, keys: inboxtest.NewKeys(t, "auth-1"), ledger: uuid.New(), stream: inboxtest.NewStream(nil),
		log: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelError})),
	}
}

// testWriter shows a logger's lines with the test.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", p)
	}
	return len(p), nil
}

// seal returns an authentic entry of a fresh event under the next number.
func (b *bundle) seal(change ...func(*auditv1.AuditEvent)) envelope.Entry {
	b.t.Helper()
	e := inboxtest.NewEvent(b.t, "auth", "user.updated")
	for _, c := range change {
		c(e)
	}
	b.seq++
	return inboxtest.Sealed(b.t, b.keys, e, b.ledger, b.seq)
}

// add seals n events, adds them to the stream, and returns their ids.
func (b *bundle) add(n int) []uuid.UUID {
	b.t.Helper()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		e := b.seal()
		ids[i] = e.EventID
		b.stream.Add(inboxtest.Values(e))
	}
	return ids
}

// resign signs e again after a change.
func (b *bundle) resign(e envelope.Entry) envelope.Entry {
	b.keys.Sign(&e, envelope.ToAdmin)
	return e
}

func known(_, eventType string, version int32) bool {
	return version == 1 && eventType != "auth.user.teleported.v1"
}

func catalog(consumers ...string) inbox.Catalog {
	c := inbox.Catalog{Known: known}
	for _, name := range consumers {
		c.Subscriptions = append(c.Subscriptions, inbox.Subscription{Consumer: name})
	}
	return c
}

// bridge returns a bridge of "auth" for the consumers "log" and "alerts", on a reader of that name.
func (b *bundle) bridge(reader string, change ...func(*inbox.BridgeOptions)) *inbox.Bridge {
	b.t.Helper()
	o := inbox.BridgeOptions{
		DB: b.db.Service, Source: b.stream.Source(reader, 50*time.Millisecond), Owner: "auth", Keys: b.keys,
		Catalog: catalog("log", "alerts"), ReclaimEvery: 50 * time.Millisecond, Logger: b.log,
	}
	for _, c := range change {
		c(&o)
	}
	bridge, err := inbox.NewBridge(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return bridge
}

// take passes until the bridge has taken nothing.
func (b *bundle) take(bridge *inbox.Bridge) int {
	b.t.Helper()
	total := 0
	for {
		n, err := bridge.Once(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		if n == 0 {
			return total
		}
		total += n
	}
}

// deliver puts n events into the inbox of "log".
func (b *bundle) deliver(n int) []uuid.UUID {
	b.t.Helper()
	events := make([]*auditv1.AuditEvent, n)
	for i := range events {
		events[i] = inboxtest.NewEvent(b.t, "auth", "user.updated")
	}
	return inboxtest.Deliver(b.t, b.db.Service, "log", events...)
}

// consumer returns a consumer "log" with scaled durations.
func (b *bundle) consumer(h inbox.Handler, change ...func(*inbox.ConsumerOptions)) *inbox.Consumer {
	b.t.Helper()
	o := inbox.ConsumerOptions{DB: b.db.Service, Name: "log", Handler: h, Logger: b.log}.Scaled(scale)
	for _, c := range change {
		c(&o)
	}
	c, err := inbox.NewConsumer(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// once makes one pass that must not meet trouble.
func (b *bundle) once(c *inbox.Consumer) int {
	b.t.Helper()
	n, err := c.Once(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return n
}

// run runs loops until the test ends or the returned function is called.
func (b *bundle) run(loops ...func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	for _, loop := range loops {
		done.Go(func() {
			if err := loop(ctx); err != nil {
				b.t.Error(err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	b.t.Cleanup(stop)
	return stop
}

// record is the handler of most tests: it notes each event once, as the audit log does.
func record(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
	for _, e := range batch {
		if _, err := tx.Exec(ctx, `INSERT INTO effects (event_id) VALUES ($1) ON CONFLICT DO NOTHING`, e.ID); err != nil {
			return err
		}
	}
	return nil
}

func (b *bundle) count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	if err := b.db.Super.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Super.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) want(what string, got, want int) {
	b.t.Helper()
	if got != want {
		b.t.Errorf("%s: %d, want %d", what, got, want)
	}
}

func (b *bundle) states() map[inbox.State]int {
	b.t.Helper()
	rows, err := b.db.Super.Query(b.t.Context(), `SELECT state, count(*) FROM consumer_inbox WHERE consumer = 'log' GROUP BY 1`)
	if err != nil {
		b.t.Fatal(err)
	}
	type depth struct {
		State inbox.State
		Count int
	}
	depths, err := pgx.CollectRows(rows, pgx.RowToStructByPos[depth])
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[inbox.State]int{}
	for _, d := range depths {
		out[d.State] = d.Count
	}
	return out
}

// eventually waits for a condition; its last error is what the test fails with.
func eventually(t testing.TB, within time.Duration, ok func() error) {
	t.Helper()
	deadline, tick := time.NewTimer(within), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("after %v: %v", within, err)
		case <-tick.C:
		}
	}
}

// allProcessed is nil once every row of "log" is PROCESSED and there are n.
func (b *bundle) allProcessed(n int) func() error {
	return func() error {
		if s := b.states(); s[inbox.Processed] != n || len(s) != 1 {
			return fmt.Errorf("states are %v, want %d PROCESSED", s, n)
		}
		return nil
	}
}

func (b *bundle) operations(consumers ...string) *inbox.Postgres {
	b.t.Helper()
	p, err := inbox.NewPostgres(b.db.Service, catalog(consumers...))
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// in runs fn in a transaction of the service's.
func in[T any](b *bundle, fn func(tx pgx.Tx) (T, error)) T {
	b.t.Helper()
	var out T
	err := pgx.BeginFunc(b.t.Context(), b.db.Service, func(tx pgx.Tx) (err error) {
		out, err = fn(tx)
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// smallPool returns a pool of its own on the service's role.
func (b *bundle) smallPool(conns int32, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	b.t.Helper()
	c := b.db.Service.Config()
	c.MaxConns = conns
	for _, f := range change {
		f(c)
	}
	p, err := pgxpool.NewWithConfig(b.t.Context(), c)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(p.Close)
	return p
}

var errBoom = errors.New("boom")
