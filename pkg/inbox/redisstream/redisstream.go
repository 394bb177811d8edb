// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package redisstream is the inbox.Source on Redis Streams: one owner's stream, read as one member of
// a consumer group. It uses only commands that Redis 7.0 has.
//
// It does not promise that what the broker accepted arrives: a broker that loses entries loses them
// here too. Entries that someone deleted after they were given out are reported by their ids.
package redisstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// slack is what a reply may take on top of the time that the command itself may block.
const slack = 3 * time.Second

// Options says what to read and as whom. Durations may be scaled for tests with Scaled.
type Options struct {
	// Redis is where to connect. Required. The source makes two clients of it, one of them for
	// bounded and blocking reads alone, and sets their retries, time-outs and pool sizes itself. With a Dialer of
	// your own, pages are bounded in entries only.
	Redis *redis.Options
	// Stream is the key. Required; envelope.StreamKey makes it.
	Stream string
	// Group is the consumer group. Default: envelope.Group.
	Group string
	// Consumer is this reader's name in the group. It must be the same after a restart, so that what
	// was pending is read again, and no other running reader's. Default: the host name.
	Consumer string
	// IdleAfter is how long another reader's entry waits unacknowledged before it is taken. Default: 30 s.
	IdleAfter time.Duration
	// DeadAfter is how long a reader that holds nothing must be silent before its name is removed. Default: 1 h.
	DeadAfter time.Duration
	// StuckAfter is how old the oldest entry may be that a group still needs. Default: 24 h.
	StuckAfter time.Duration
	// Now comes in as a function. Default: time.Now.
	Now func() time.Time
}

// Scaled returns o with its defaults filled and every duration divided by factor, for tests that
// speak of simulated minutes. A factor of 1 or less only fills defaults.
func (o Options) Scaled(factor float64) Options {
	o = o.filled()
	if factor > 1 {
		for _, d := range []*time.Duration{&o.IdleAfter, &o.DeadAfter, &o.StuckAfter} {
			*d = max(time.Duration(float64(*d)/factor), time.Millisecond)
		}
	}
	return o
}

func (o Options) filled() Options {
	if o.Group == "" {
		o.Group = envelope.Group
	}
	if o.Consumer == "" {
		o.Consumer, _ = os.Hostname()
	}
	for d, standard := range map[*time.Duration]time.Duration{
		&o.IdleAfter: 30 * time.Second, &o.DeadAfter: time.Hour, &o.StuckAfter: 24 * time.Hour,
	} {
		if *d == 0 {
			*d = standard
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Source reads one stream. It implements inbox.Source.
type Source struct {
	o        Options
	commands *redis.Client
	reads    *redis.Client // a pool of its own: a blocked read keeps its connection (BC-46), and only pages are bounded
	bound    *bound        // of reads

	sweep string // where the sweep of idle entries goes on
	after string // the last own entry of this round
}

// New checks the options and fills their defaults. It connects to nothing. Close frees the connections.
func New(o Options) (*Source, error) {
	o = o.filled()
	switch {
	case o.Redis == nil:
		return nil, errors.New("redisstream: Options.Redis is required")
	case o.Stream == "":
		return nil, errors.New("redisstream: Options.Stream is required")
	case o.Consumer == "":
		return nil, errors.New("redisstream: Options.Consumer is required: this host has no name")
	}
	b := new(bound)
	return &Source{o: o, commands: client(o.Redis, nil), reads: client(o.Redis, b), bound: b, sweep: "0-0", after: "0-0"}, nil
}

// client returns a client whose connections hold to b, unless b is nil.
func client(from *redis.Options, b *bound) *redis.Client {
	o := *from
	o.PoolSize, o.MaxActiveConns = 4, 4
	o.MaxRetries = -1        // the bridge has its own backoff
	o.DisableIdentity = true // CLIENT SETINFO is a right that a reader need not have
	o.ContextTimeoutEnabled = true
	o.ReadTimeout, o.WriteTimeout = slack, slack
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if o.Dialer == nil && b != nil {
		o.DialTimeout = cmp.Or(o.DialTimeout, 5*time.Second) // the client's default, which a dialer must have
		o.Dialer = b.dialer(&o)
	}
	return redis.NewClient(&o)
}

// Close closes the connections. Reads that are under way end with an error.
func (s *Source) Close() error { return errors.Join(s.commands.Close(), s.reads.Close()) }

// Prepare implements inbox.Source. The group starts at the stream's beginning, never at "$": what was
// added before the first start, or before a repair, is read (BC-40, BC-56).
func (s *Source) Prepare(ctx context.Context) error {
	s.sweep, s.after = "0-0", "0-0"
	err := s.commands.XGroupCreateMkStream(ctx, s.o.Stream, s.o.Group, "0").Err()
	if err != nil && !redis.HasErrorPrefix(err, "BUSYGROUP") {
		return fmt.Errorf("create group: %w", err)
	}
	return nil
}

// Read implements inbox.Source.
func (s *Source) Read(ctx context.Context, kind inbox.Kind, limit inbox.Limit) (inbox.Page, error) {
	if limit.Count == 1 {
		limit.Bytes = 0
	}
	s.bound.bytes.Store(int64(limit.Bytes))
	switch kind {
	case inbox.Idle:
		return s.readIdle(ctx, limit)
	case inbox.Own:
		return s.readOwn(ctx, limit)
	case inbox.New:
		return s.readNew(ctx, limit)
	}
	return inbox.Page{}, fmt.Errorf("redisstream: no such kind of read: %d", kind)
}

// readIdle goes on with the sweep over pending entries. An empty page is not its end; only the
// cursor 0-0 is (BC-50). The server names deleted entries once and forgets them, so this answer is not
// given up: it asks for no more entries than have room, each as large as an event may be.
func (s *Source) readIdle(ctx context.Context, limit inbox.Limit) (inbox.Page, error) {
	count := limit.Count
	if limit.Bytes > 0 {
		count = min(count, max(limit.Bytes/audit.MaxPayload, 1))
	}
	messages, next, deleted, err := s.commands.XAutoClaimWithDeleted(ctx, &redis.XAutoClaimArgs{
		Stream: s.o.Stream, Group: s.o.Group, Consumer: s.o.Consumer, MinIdle: s.o.IdleAfter, Start: s.sweep, Count: int64(count),
	}).Result()
	if err != nil {
		return inbox.Page{}, wrap("xautoclaim", err)
	}
	s.sweep = next
	p := page(messages)
	p.Deleted = append(p.Deleted, deleted...)
	p.Done = next == "0-0"
	return p, nil
}

// readOwn goes on with this reader's own pending entries (BC-51). A round that ended begins anew.
func (s *Source) readOwn(ctx context.Context, limit inbox.Limit) (inbox.Page, error) {
	if limit.First {
		s.after = "0-0"
	}
	messages, err := s.readGroup(ctx, s.after, limit.Count, -1)
	if err != nil {
		return inbox.Page{}, err
	}
	p := page(messages)
	if len(messages) == 0 {
		p.Done, s.after = true, "0-0"
	} else {
		s.after = messages[len(messages)-1].ID
	}
	return p, nil
}

// readNew waits in a goroutine, since a blocked read does not watch its context (BC-47). What a read
// that was left behind gets is this reader's own, and is read again after the next start.
func (s *Source) readNew(ctx context.Context, limit inbox.Limit) (inbox.Page, error) {
	type result struct {
		messages []redis.XMessage
		err      error
	}
	if limit.Block <= 0 {
		messages, err := s.readGroup(ctx, ">", limit.Count, -1)
		p := page(messages)
		p.Done = len(messages) < limit.Count
		return p, err
	}
	block := max(limit.Block, time.Millisecond) // BLOCK 0 has no end
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), block+slack)
	got := make(chan result, 1)
	go func() {
		defer cancel()
		messages, err := s.readGroup(limited, ">", limit.Count, block)
		got <- result{messages, err}
	}()
	select {
	case <-ctx.Done():
		return inbox.Page{}, ctx.Err()
	case r := <-got:
		p := page(r.messages)
		p.Done = len(r.messages) < limit.Count
		return p, r.err
	}
}

func (s *Source) readGroup(ctx context.Context, from string, count int, block time.Duration) ([]redis.XMessage, error) {
	streams, err := s.reads.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: s.o.Group, Consumer: s.o.Consumer, Streams: []string{s.o.Stream, from}, Count: int64(count), Block: block,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap("xreadgroup", err)
	}
	if len(streams) == 0 {
		return nil, nil
	}
	return streams[0].Messages, nil
}

// page sorts out entries that were deleted while pending: they come without fields (BC-38).
func page(messages []redis.XMessage) inbox.Page {
	p := inbox.Page{Entries: make([]inbox.Entry, 0, len(messages))}
	for _, m := range messages {
		if m.Values == nil {
			p.Deleted = append(p.Deleted, m.ID)
			continue
		}
		p.Entries = append(p.Entries, inbox.Entry{ID: m.ID, Values: m.Values})
	}
	return p
}

// Ack implements inbox.Source.
func (s *Source) Ack(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	if err := s.commands.XAck(ctx, s.o.Stream, s.o.Group, ids...).Err(); err != nil {
		return wrap("xack", err)
	}
	return nil
}

// wrap marks the errors that a lost group or stream gives.
func wrap(command string, err error) error {
	for _, prefix := range []string{"NOGROUP", "UNBLOCKED"} {
		if redis.HasErrorPrefix(err, prefix) {
			return fmt.Errorf("%s: %w: %w", command, inbox.ErrNoGroup, err)
		}
	}
	if strings.Contains(err.Error(), "no such key") {
		return fmt.Errorf("%s: %w: %w", command, inbox.ErrNoGroup, err)
	}
	return fmt.Errorf("%s: %w", command, err)
}
