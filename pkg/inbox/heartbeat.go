// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// heartbeat renews the lease of one worker's batch, on a connection of its own: a pool that handlers
// use up cannot keep it waiting. The connection is made when a batch first outlasts a renewal.
type heartbeat struct {
	c     *Consumer
	begin string

	mu     sync.Mutex
	conn   *pgx.Conn
	called time.Time // when the present call of the handler began; zero between calls
}

func newHeartbeat(c *Consumer) *heartbeat {
	return &heartbeat{c: c, begin: begin(c.o.Renew, c.o.IdleTimeout, false)}
}

// start renews b until the function that it returns is called.
func (h *heartbeat) start(ctx context.Context, b batch) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(h.c.o.Renew)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				h.renew(ctx, b)
			}
		}
	})
	return func() { cancel(); done.Wait() }
}

// calling notes that a call of the handler begins or ended.
func (h *heartbeat) calling(now bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.called = time.Time{}
	if now {
		h.called = h.c.o.Now()
	}
}

// overdue says that the handler ignores the end of its budget. Its lease is left to expire then, so
// that another process goes on.
func (h *heartbeat) overdue() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.called.IsZero() && h.c.o.Now().Sub(h.called) > h.c.o.IdleTimeout
}

// renew extends what the batch still holds. Finished rows carry no token and are not touched. A
// renewal that fails is tried again at the next tick: a lease outlasts two of them.
func (h *heartbeat) renew(ctx context.Context, b batch) {
	if h.overdue() {
		h.c.log.say(ctx, slog.LevelError, "a handler ignores the end of its budget; its lease is left to expire")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, h.c.o.Renew)
	defer cancel()
	if err := h.tryRenew(ctx, b); err != nil {
		h.drop()
		h.c.log.say(ctx, slog.LevelWarn, "a lease could not be renewed", slog.String("error", err.Error()))
	}
}

func (h *heartbeat) tryRenew(ctx context.Context, b batch) error {
	if h.conn == nil {
		conn, err := h.connect(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		h.conn = conn
	}
	tx, err := h.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: h.begin})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer rollback(ctx, tx)
	if _, err := tx.Exec(ctx, sqlRenew, h.c.o.Name, b.ids(), [16]byte(b.token), h.c.o.Lease); err != nil {
		return fmt.Errorf("renew: %w", err)
	}
	return tx.Commit(ctx)
}

// connect makes a connection as the pool does.
func (h *heartbeat) connect(ctx context.Context) (*pgx.Conn, error) {
	pool := h.c.o.DB.Config()
	config := pool.ConnConfig.Copy()
	if pool.BeforeConnect != nil {
		if err := pool.BeforeConnect(ctx, config); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, config)
}

func (h *heartbeat) drop() {
	if h.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = h.conn.Close(ctx)
	h.conn = nil
}

// close ends the connection. No renewal may be running.
func (h *heartbeat) close() { h.drop() }
