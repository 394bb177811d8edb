// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// claims counts the claims of batches that a pool sends.
type claims struct{ n atomic.Int64 }

func (c *claims) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (c *claims) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *claims) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *claims) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if strings.Contains(data.SQL, "FOR UPDATE SKIP LOCKED") && len(data.Args) == 10 && data.Args[4] != 1 {
		c.n.Add(1)
	}
}

func (c *claims) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A worker goes on while pages are full, whether of rows or of bytes. One that took all that was due does not
// look again until it is woken, and what was added while it worked wakes it.
func TestAWorkerLooksAgainOnlyWhenThereMayBeMore(t *testing.T) {
	t.Parallel()
	const rows = 25
	for name, c := range map[string]struct {
		change func(*inbox.ConsumerOptions)
		claims int64
	}{
		"all on one page":  {func(*inbox.ConsumerOptions) {}, 1},
		"pages of rows":    {func(o *inbox.ConsumerOptions) { o.PageRows = 10 }, 3},
		"pages of one row": {func(o *inbox.ConsumerOptions) { o.PageBytes = 1 }, rows + 3}, // never known to be all
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			var seen claims
			pool := b.smallPool(3, func(config *pgxpool.Config) { config.ConnConfig.Tracer = &seen })
			b.deliver(rows)
			late := false
			var consumer *inbox.Consumer
			consumer = b.consumer(func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
				if !late {
					late = true
					b.deliver(1)
					consumer.Wake()
				}
				return record(ctx, tx, batch)
			}, func(o *inbox.ConsumerOptions) {
				o.DB, o.Poll, o.Workers = pool, time.Hour, 1
				c.change(o)
			})
			b.run(consumer.Run)
			eventually(t, 20*time.Second, b.allProcessed(rows+1))
			b.deliver(1)
			consumer.Wake()
			eventually(t, 20*time.Second, b.allProcessed(rows+2))
			// The late row may have made a page of its own; without the rule there is an empty claim after each wake-up, too.
			most := c.claims + 2
			if n := seen.n.Load(); n > most {
				t.Errorf("%d claims, want at most %d", n, most)
			}
		})
	}
}
