// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package redisstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	"github.com/counterfoil/counterfoil/pkg/inbox/redisstream"
)

// Large entries around a deleted one: the sweep reports it all the same, though the server names it once.
func TestALargeSweepReportsDeletedEntries(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	const stream = "audit:{auth}"
	dead, s := open(t, r, stream, "dead"), open(t, r, stream, "b", func(o *redisstream.Options) { o.IdleAfter = time.Millisecond })
	prepare(t, s)
	ids := addLarge(t, r, stream, 5)
	read(t, dead, inbox.New, 5)
	if err := r.Client.XDel(t.Context(), stream, ids[1]).Err(); err != nil {
		t.Fatal(err)
	}
	var lost []string
	eventually(t, func() error {
		for _, kind := range []inbox.Kind{inbox.Idle, inbox.Own} {
			p, err := s.Read(t.Context(), kind, inbox.Limit{Count: 5, Bytes: 2 << 20, First: true})
			if err != nil && !errors.Is(err, inbox.ErrTooLarge) {
				t.Fatal(err)
			}
			lost = append(lost, p.Deleted...)
		}
		if pending := r.Client.XPending(t.Context(), stream, envelope.Group).Val(); pending.Count != 4 || pending.Consumers["b"] != 4 {
			return fmt.Errorf("pending: %+v, want 4 of b", pending)
		}
		return nil
	})
	if !slices.Equal(lost, ids[1:2]) {
		t.Errorf("reported %v, want %v", lost, ids[1:2])
	}
}

// A sweep names deleted entries once: they are counted although the takeover of its other entries fails.
func TestDeletedEntriesOfAFailedPageAreCounted(t *testing.T) {
	t.Parallel()
	r, db := testdb.Redis(t), testdb.New(t, testdb.Admin)
	keys, stream, ledger := inboxtest.NewKeys(t, "k"), envelope.StreamKey("auth"), uuid.New()
	dead, src := open(t, r, stream, "dead"), open(t, r, stream, "b", func(o *redisstream.Options) { o.IdleAfter = time.Millisecond })
	bridge, err := inbox.NewBridge(inbox.BridgeOptions{
		DB: db.Service, Source: src, Owner: "auth", Keys: keys, LockTimeout: 10 * time.Millisecond, ReclaimEvery: time.Nanosecond,
		Catalog: inbox.Catalog{Subscriptions: []inbox.Subscription{{Consumer: "log"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bridge.Once(t.Context()); err != nil { // makes group and position
		t.Fatal(err)
	}
	var ids []string
	for i := range 2 {
		e := inboxtest.Sealed(t, keys, inboxtest.NewEvent(t, "auth", "user.updated"), ledger, int64(i+1))
		id, err := r.Client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: e.Fields()}).Result()
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	read(t, dead, inbox.New, 2)
	if err := r.Client.XDel(t.Context(), stream, ids[0]).Err(); err != nil {
		t.Fatal(err)
	}
	tx, err := db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM ledger_positions FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if _, err := bridge.Once(t.Context()); err == nil {
			return errors.New("the takeover does not fail")
		}
		return nil
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := bridge.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := bridge.Stats(); s.Deleted != 1 || s.Received != 1 {
		t.Errorf("counted %+v, want one deleted and one received", s.Takeover)
	}
}

// What bounds a page bounds no other answer: where the group stands is known and the stream is tidied, however large its
// entries are.
func TestTheBoundOfAPageBoundsNoOtherAnswer(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	const stream = "audit:{auth}"
	s := open(t, r, stream, "a")
	prepare(t, s)
	add(t, r, stream, 2)
	if _, err := s.Read(t.Context(), inbox.New, inbox.Limit{Count: 2, Bytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	addLarge(t, r, stream, 2)
	if _, err := s.Position(t.Context()); err != nil {
		t.Errorf("Position = %v", err)
	}
	if _, err := s.Tidy(t.Context()); err != nil {
		t.Errorf("Tidy = %v", err)
	}
}

// addLarge adds n entries of 1 MiB.
func addLarge(t testing.TB, r *testdb.RedisServer, stream string, n int) []string {
	t.Helper()
	ids := make([]string, n)
	for i := range ids {
		var err error
		ids[i], err = r.Client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: []any{"text", strings.Repeat("x", 1<<20)}}).Result()
		if err != nil {
			t.Fatal(err)
		}
	}
	return ids
}
