// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package redisstream is the inbox.Source on Redis Streams: one owner's stream, read as one member of a consumer group.
package redisstream

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// Options says what to read and as whom. Durations may be scaled for tests with Scaled.
type Options struct {
	// Redis is where to connect. Required. The source makes two clients of it, one of them for
	// blocking reads alone, and sets their retries, time-outs and pool sizes itself.
	Redis *redis.Options
	// Stream is the key. Required; envelope.StreamKey makes it.
	Stream string
	// Group is the consumer group. Default: envelope.Group.
	Group string
	// Consumer is this reader's name in the group. It must be the same after a restart, and no other
	// running reader's. Default: the host name.
	Consumer string
	// IdleAfter is how long another consumer's entry waits unacknowledged before it is taken. Default: 30 s.
	IdleAfter time.Duration
	// DeadAfter is how long a consumer that holds nothing must be silent before its name is removed. Default: 1 h.
	DeadAfter time.Duration
	// StuckAfter is how old the oldest entry may be that a group still holds back. Default: 24 h.
	StuckAfter time.Duration
	// Logger takes what nobody could return. Default: discarded.
	Logger *slog.Logger
	// Now comes in as a function. Default: time.Now.
	Now func() time.Time
}

// Scaled returns o with its defaults filled and every duration divided by factor.
func (o Options) Scaled(factor float64) Options { panic("stub") }

// Source reads one stream.
type Source struct{ o Options }

// New checks the options and fills their defaults. It connects to nothing. Close frees the clients.
func New(o Options) (*Source, error) { panic("stub") }

// Close closes the connections; a blocked read ends.
func (s *Source) Close() error { panic("stub") }

// Prepare implements inbox.Source.
func (s *Source) Prepare(ctx context.Context) error { panic("stub") }

// Read implements inbox.Source.
func (s *Source) Read(ctx context.Context, kind inbox.Kind, limit inbox.Limit) (inbox.Page, error) {
	panic("stub")
}

// Ack implements inbox.Source.
func (s *Source) Ack(ctx context.Context, ids []string) error { panic("stub") }

// Tidy implements inbox.Source.
func (s *Source) Tidy(ctx context.Context) (inbox.Tidied, error) { panic("stub") }

// Position implements inbox.Source.
func (s *Source) Position(ctx context.Context) (inbox.Position, error) { panic("stub") }
