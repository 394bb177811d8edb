// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"crypto/rand"
	"encoding/hex"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/noop"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	"github.com/counterfoil/counterfoil/pkg/outbox/redisstream"
)

// benchPool is a service pool as movers should have it, on a server with fsync on.
func benchPool(b *testing.B) *pgxpool.Pool {
	b.Helper()
	p := testdb.Postgres(b, devserver.PostgresOptions{})
	db := testdb.On(b, p, testdb.Auth).WithoutGuard(b)
	cfg, err := pgxpool.ParseConfig(db.URL("auth_service"))
	if err != nil {
		b.Fatal(err)
	}
	pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func keys(t testing.TB) *envelope.Keyring {
	t.Helper()
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	ring, err := envelope.ParseKeyring("k1:" + hex.EncodeToString(secret))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func redisPublisher(t testing.TB, r *testdb.RedisServer) *redisstream.Publisher {
	t.Helper()
	client := redis.NewClient(redisstream.ClientOptions(*r.Options()))
	t.Cleanup(func() { _ = client.Close() })
	p, err := redisstream.New(redisstream.Options{Client: client, Owner: "auth", Keys: keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func fill(b testing.TB, db *pgxpool.Pool, n int) {
	b.Helper()
	for done := 0; done < n; done += 5000 {
		appendAll(b, db, outboxtest.Events(min(5000, n-done))...)
	}
}

// BenchmarkDrain moves a backlog through seal, claim, XADD and settle; ns/op is for one event.
func BenchmarkDrain(b *testing.B) {
	for _, mode := range []string{"redis", "noop"} {
		b.Run(mode, func(b *testing.B) {
			db := benchPool(b)
			var pub outbox.Publisher = noop.Publisher{}
			if mode == "redis" {
				pub = redisPublisher(b, testdb.RedisWith(b, devserver.RedisOptions{}))
			}
			sealer, err := outbox.NewSealer(db, outbox.SealerOptions{})
			if err != nil {
				b.Fatal(err)
			}
			d, err := outbox.NewDispatcher(outbox.DispatcherOptions{Store: outbox.NewPostgres(db, outbox.PostgresOptions{}), Publisher: pub, Sealer: sealer})
			if err != nil {
				b.Fatal(err)
			}
			fill(b, db, b.N)
			before := walBytes(b, db)
			b.ResetTimer()
			ctx, stop := ctxUntil(b, func() bool { return d.Stats().Delivered >= int64(b.N) })
			defer stop()
			if err := d.Run(ctx); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(walBytes(b, db)-before)/float64(b.N), "WAL-B/event")
		})
	}
}

func walBytes(b testing.TB, db *pgxpool.Pool) int64 {
	b.Helper()
	var n int64
	if err := db.QueryRow(b.Context(), "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkAppend appends one event in a transaction of its own with a business statement before it.
func BenchmarkAppend(b *testing.B) {
	db := benchPool(b)
	for b.Loop() {
		inTx(b, db, func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			batch.Queue("SELECT 1")
			return outbox.AppendBatch(b.Context(), tx, batch, outboxtest.Event())
		})
	}
}
