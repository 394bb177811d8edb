// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package dispatch puts together what carries an owner's committed events to its Redis Stream: sealer, dispatcher and
// publisher, with metrics and spans. The parts and what they promise are package outbox's.
package dispatch

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxotel"
	"github.com/counterfoil/counterfoil/pkg/outbox/redisstream"
)

// Config says whose events are carried from where to where. All fields are required.
type Config struct {
	Owner string
	// DB is a pool that no call of the API waits for; see pgdb.MoverConfig.
	DB *pgxpool.Pool
	// Broker comes from redisstream.ClientOptions: one that repeats by itself is refused.
	Broker *redis.Client
	// Keys are what entries are authenticated under; the receiver has the same.
	Keys      *envelope.Keyring
	Telemetry *telemetry.Telemetry
	// TimeScale divides every lease, backoff, poll and budget; 1 in production.
	TimeScale float64
}

// New returns a dispatcher that is not running yet. It reaches neither the database nor the broker: either may be away.
func New(c Config) (*outbox.Dispatcher, error) {
	stream, err := redisstream.New(redisstream.Options{Client: c.Broker, Owner: c.Owner, Keys: c.Keys})
	if err != nil {
		return nil, err
	}
	publisher, err := outboxotel.Publisher(stream, outboxotel.PublisherOptions{
		TracerProvider: c.Telemetry.TracerProvider, MeterProvider: c.Telemetry.MeterProvider, Destination: stream.Stream(),
	})
	if err != nil {
		return nil, err
	}
	sealer, err := outbox.NewSealer(c.DB, outbox.SealerOptions{})
	if err != nil {
		return nil, err
	}
	store := outbox.NewPostgres(c.DB, outbox.PostgresOptions{})
	options := outbox.DispatcherOptions{Store: store, Publisher: publisher, Sealer: sealer, Logger: c.Telemetry.Logger}
	dispatcher, err := outbox.NewDispatcher(options.Scaled(c.TimeScale))
	if err != nil {
		return nil, err
	}
	_, err = outboxotel.Register(c.Telemetry.MeterProvider, outboxotel.MetricsOptions{Reader: store, Dispatcher: dispatcher})
	return dispatcher, err
}
