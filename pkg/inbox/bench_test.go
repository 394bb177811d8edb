// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	"github.com/counterfoil/counterfoil/pkg/inbox/redisstream"
)

// BenchmarkDrain takes a backlog over from a real stream for two consumers and then has each apply
// it with a handler that does nothing: what is measured is this package.
func BenchmarkDrain(b *testing.B) {
	db := testdb.New(b, testdb.Admin)
	rs := testdb.Redis(b)
	keys, ledger := inboxtest.NewKeys(b, "k"), uuid.New()
	stream := envelope.StreamKey("auth")
	pipe := rs.Client.Pipeline()
	for i := range b.N {
		e := inboxtest.Sealed(b, keys, inboxtest.NewEvent(b, "auth", "user.updated"), ledger, int64(i+1))
		pipe.Do(b.Context(), append([]any{"XADD", stream, "*"}, e.Fields()...)...)
		if i%500 == 499 || i == b.N-1 {
			if _, err := pipe.Exec(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	nothing := func(context.Context, pgx.Tx, []inbox.Event) error { return nil }
	var consumers []*inbox.Consumer
	var catalog inbox.Catalog
	for _, name := range []string{"audit-log", "security-alerts"} {
		c, err := inbox.NewConsumer(inbox.ConsumerOptions{DB: db.Service, Name: name, Handler: nothing})
		if err != nil {
			b.Fatal(err)
		}
		consumers = append(consumers, c)
		catalog.Subscriptions = append(catalog.Subscriptions, c.Subscription())
	}
	src, err := redisstream.New(redisstream.Options{Redis: rs.Options(), Stream: stream, Consumer: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = src.Close() })
	br, err := inbox.NewBridge(inbox.BridgeOptions{DB: db.Service, Source: src, Owner: "auth", Keys: keys, Catalog: catalog})
	if err != nil {
		b.Fatal(err)
	}
	wal := func() (bytes float64) {
		if err := db.Super.QueryRow(b.Context(), "SELECT wal_bytes FROM pg_stat_wal").Scan(&bytes); err != nil {
			b.Fatal(err)
		}
		return bytes
	}
	if _, err := db.Super.Exec(b.Context(), "CHECKPOINT"); err != nil {
		b.Fatal(err)
	}
	w0 := wal()
	b.ResetTimer()
	start := time.Now()
	for taken := 0; taken < b.N; {
		n, err := br.Once(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		taken += n
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "takeover/s")
	w1 := wal()
	for i, c := range consumers {
		start = time.Now()
		for done := 0; done < b.N; {
			n, err := c.Once(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			done += n
		}
		b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), fmt.Sprintf("consumer%d/s", i+1))
	}
	b.StopTimer()
	b.ReportMetric((w1-w0)/float64(b.N), "takeoverWAL/ev")
	b.ReportMetric((wal()-w1)/float64(b.N), "consumersWAL/ev")
}
