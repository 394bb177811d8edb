// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// F19: under a snapshot that somebody holds, a pass does not walk what is
// finished: dead index entries cannot be removed, so they must not be met.
func TestHeldSnapshotDoesNotSlowThePass(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	holder, err := p.db.Super.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(t.Context()) }()
	if _, err := holder.Exec(t.Context(), "SELECT count(*) FROM audit_outbox"); err != nil {
		t.Fatal(err)
	}
	db := p.oneConn()
	d := p.dispatcherOn(db, func(o *outbox.DispatcherOptions) {
		o.Store = outbox.NewPostgres(db, outbox.PostgresOptions{FullScan: time.Hour})
	})
	const total = 6000
	for range total / 500 {
		appendAll(t, p.db.Service, outboxtest.Events(500)...)
		for {
			n, err := d.Once(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
		}
	}
	before := indexReads(t, db)
	const passes = 20
	for range passes {
		appendAll(t, p.db.Service, outboxtest.Event())
		if _, err := d.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	perPass := (indexReads(t, db) - before) / passes
	t.Logf("%d index entries read in a pass, %d entries dead", perPass, total)
	if perPass > 1000 {
		t.Errorf("a pass reads %d index entries: it walks what is finished", perPass)
	}
}

// oneConn is a pool of one connection, which can hand in its own statistics.
func (p *path) oneConn() *pgxpool.Pool {
	return p.pool(map[string]string{"application_name": "one"}, 1)
}

// indexReads returns how many entries db's connection has read from the two queue indexes.
func indexReads(t *testing.T, db *pgxpool.Pool) int64 {
	t.Helper()
	one[string](t, db, "SELECT pg_stat_force_next_flush()::text")
	return one[int64](t, db, "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE indexrelname IN ('audit_outbox_unsealed_idx', 'audit_outbox_open_idx')")
}

// BC-07 at a tenth of its size: with a long tail of delivered rows and a deep
// backlog, a claim reads its page and no more, without statistics too.
func TestClaimReadsItsPageOnly(t *testing.T) {
	t.Parallel()
	p := newPath(t)
	_, err := p.db.Super.Exec(t.Context(), `
INSERT INTO audit_outbox (event_id, occur_time, schema_version, event_type, operation, resource_type, resource_id, payload, ledger_id, ledger_seq, status)
SELECT gen_random_uuid(), now(), 1, 'auth.x.v1', 'CREATE', 'x', n::text, '\\x00', (SELECT ledger_id FROM audit_ledger), n,
       CASE WHEN n <= 50000 THEN 'DELIVERED' ELSE 'PENDING' END
FROM generate_series(1, 60000) n`)
	if err != nil {
		t.Fatal(err)
	}
	db := p.oneConn()
	store := outbox.NewPostgres(db, outbox.PostgresOptions{})
	var slowest time.Duration
	for range 10 {
		start := time.Now()
		page, err := store.Claim(t.Context(), outbox.ClaimRequest{Owner: "x", Token: uuid.New(), Rows: 500, Bytes: 8 << 20, Lease: time.Minute, AloneAfter: 3})
		if err != nil || len(page.Messages) != 500 {
			t.Fatalf("claimed %d, %v", len(page.Messages), err)
		}
		slowest = max(slowest, time.Since(start))
	}
	before := indexReads(t, db)
	if _, err := store.Claim(t.Context(), outbox.ClaimRequest{Owner: "x", Token: uuid.New(), Rows: 500, Bytes: 8 << 20, Lease: time.Minute, AloneAfter: 3}); err != nil {
		t.Fatal(err)
	}
	read := indexReads(t, db) - before
	t.Logf("a claim reads %d entries and takes %v at most", read, slowest)
	if read > 6500 {
		t.Errorf("a claim of 500 reads %d index entries", read)
	}
}
