// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/redisstream"
)

// DeliveryOptions says what a Delivery works with. All fields but Logger and TimeScale are needed.
type DeliveryOptions struct {
	// DB is a pool of the movers' own (pgdb.MoverConfig), so that they and the calls do not wait for each other.
	DB *pgxpool.Pool
	// Redis says where the broker is. The client's own retries are turned off.
	Redis *redis.Options
	// Keys sign what goes out.
	Keys *envelope.Keyring
	// Logger gets changes of state; default none.
	Logger *slog.Logger
	// TimeScale divides every lease, backoff and poll; default 1. For tests.
	TimeScale float64
}

// Delivery carries Auth's committed events to the broker: it numbers them and adds them to the stream audit:{auth}. Any
// number of replicas may do so at once. Business calls do not wait for it and go on while the broker is away.
type Delivery struct {
	store      *outbox.Postgres
	dispatcher *outbox.Dispatcher
	client     *redis.Client
}

// NewDelivery puts the parts together. It does no I/O; the caller closes it.
func NewDelivery(o DeliveryOptions) (*Delivery, error) {
	sealer, err := outbox.NewSealer(o.DB, outbox.SealerOptions{})
	if err != nil {
		return nil, err
	}
	d := &Delivery{store: outbox.NewPostgres(o.DB, outbox.PostgresOptions{}), client: redis.NewClient(redisstream.ClientOptions(*o.Redis))}
	publisher, err := redisstream.New(redisstream.Options{Client: d.client, Owner: Owner, Keys: o.Keys})
	if err != nil {
		return nil, err
	}
	options := outbox.DispatcherOptions{Store: d.store, Publisher: publisher, Sealer: sealer, Logger: o.Logger}
	if o.TimeScale > 0 && o.TimeScale != 1 {
		options = options.Scaled(o.TimeScale)
	}
	d.dispatcher, err = outbox.NewDispatcher(options)
	return d, err
}

// Wake tells that something was committed.
func (d *Delivery) Wake() { d.dispatcher.Wake() }

// Outbox is the store that the operator's calls read and requeue in.
func (d *Delivery) Outbox() *outbox.Postgres { return d.store }

// Run delivers until ctx ends; what it holds then, it finishes or gives back.
func (d *Delivery) Run(ctx context.Context) error { return d.dispatcher.Run(ctx) }

// Broker says whether the broker answers. The service is ready without it.
func (d *Delivery) Broker(ctx context.Context) error {
	if err := d.client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("ping broker: %w", err)
	}
	return nil
}

// Close closes the connection to the broker, after Run has returned.
func (d *Delivery) Close() error { return d.client.Close() }
