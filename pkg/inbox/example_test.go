// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/redisstream"
)

// A receiver, whole: one consumer, one bridge, both until a signal.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db, err := pgxpool.New(ctx, "postgres://admin@localhost/admin")
	if err != nil {
		fmt.Println(err)
		return
	}
	consumer, err := inbox.NewConsumer(inbox.ConsumerOptions{
		DB: db, Name: "audit-log",
		Handler: func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
			for _, e := range batch {
				_, err := tx.Exec(ctx, `INSERT INTO log (event_id, payload) VALUES ($1, $2) ON CONFLICT DO NOTHING`, e.ID, e.Payload)
				if err != nil {
					return fmt.Errorf("insert log: %w", err)
				}
			}
			return nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	keys, err := envelope.ParseKeyring("auth-1:" + "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		fmt.Println(err)
		return
	}
	source, err := redisstream.New(redisstream.Options{Redis: &redis.Options{Addr: "localhost:6379"}, Stream: envelope.StreamKey("auth")})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = source.Close() }()
	bridge, err := inbox.NewBridge(inbox.BridgeOptions{
		DB: db, Source: source, Owner: "auth", Keys: keys,
		Catalog: inbox.Catalog{Subscriptions: []inbox.Subscription{consumer.Subscription()}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	stop() // a real program waits for the signal
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return bridge.Run(ctx) })
	group.Go(func() error { return consumer.Run(ctx) })
	fmt.Println("stopped:", group.Wait())
	// Output: stopped: <nil>
}

// An error that no further attempt can cure sends its event to DEAD at once, under a code.
func ExamplePermanent() {
	handler := func(_ context.Context, _ pgx.Tx, batch []inbox.Event) error {
		for _, e := range batch {
			if e.Audit.GetAuditId() != e.ID.String() {
				return inbox.Permanent("audit.id_mismatch", fmt.Errorf("event %s holds another id", e.ID))
			}
		}
		return nil
	}
	fmt.Println(handler(context.Background(), nil, []inbox.Event{{ID: uuid.Nil}}))
	// Output: audit.id_mismatch: event 00000000-0000-0000-0000-000000000000 holds another id
}

// A handler that acts outside its transaction is refused without a key that the other side honours.
func ExampleNewConsumer_outsideEffects() {
	_, err := inbox.NewConsumer(inbox.ConsumerOptions{
		DB: new(pgxpool.Pool), Name: "mail", OutsideEffects: true,
		Handler: func(context.Context, pgx.Tx, []inbox.Event) error { return errors.New("not reached") },
	})
	fmt.Println(err)
	// Output: inbox: consumer "mail" acts outside its transaction and has no IdempotencyKey: after a crash its effect would happen twice
}

// An operator's replay and the record of it commit together.
func ExamplePostgres_Replay() {
	replay := func(ctx context.Context, db *pgxpool.Pool, ops *inbox.Postgres, events []uuid.UUID, actor, reason string) error {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			out, err := ops.Replay(ctx, tx, "audit-log", events)
			if err != nil {
				return fmt.Errorf("replay: %w", err)
			}
			_, err = tx.Exec(ctx, `INSERT INTO operations (actor, reason, events) VALUES ($1, $2, $3)`, actor, reason, out.Changed)
			return err
		})
		if err == nil {
			ops.WakeAll()
		}
		return err
	}
	_ = replay
}
