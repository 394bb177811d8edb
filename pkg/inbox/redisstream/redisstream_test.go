// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package redisstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

func open(t testing.TB, r *testdb.RedisServer, stream, consumer string, change ...func(*redisstream.Options)) *redisstream.Source {
	t.Helper()
	o := redisstream.Options{Redis: r.Options(), Stream: stream, Consumer: consumer, IdleAfter: 100 * time.Millisecond}
	for _, c := range change {
		c(&o)
	}
	s, err := redisstream.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func add(t testing.TB, r *testdb.RedisServer, stream string, n int) []string {
	t.Helper()
	pipe := r.Client.Pipeline()
	for i := range n {
		pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: []any{"n", fmt.Sprint(i)}})
	}
	cmds, err := pipe.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, n)
	for i, c := range cmds {
		ids[i] = c.(*redis.StringCmd).Val()
	}
	return ids
}

func TestRedisStreamsPassTheSuite(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	inboxtest.RunSourceSuite(t, func(testing.TB) inboxtest.Harness {
		stream := "audit:{" + uuid.NewString() + "}"
		return inboxtest.Harness{
			Open: func(t testing.TB, reader string) inbox.Source { t.Helper(); return open(t, r, stream, reader) },
			Add: func(t testing.TB, all ...map[string]any) []string {
				t.Helper()
				ids := make([]string, len(all))
				for i, v := range all {
					var err error
					if ids[i], err = r.Client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: v}).Result(); err != nil {
						t.Fatal(err)
					}
				}
				return ids
			},
			Delete: func(t testing.TB, ids ...string) {
				t.Helper()
				if err := r.Client.XDel(t.Context(), stream, ids...).Err(); err != nil {
					t.Fatal(err)
				}
			},
			Flush: func(t testing.TB) {
				t.Helper()
				if err := r.Client.Del(t.Context(), stream).Err(); err != nil {
					t.Fatal(err)
				}
			},
			Len: func(t testing.TB) int { t.Helper(); return int(r.Client.XLen(t.Context(), stream).Val()) },
		}
	})
}

func prepare(t testing.TB, s *redisstream.Source) {
	t.Helper()
	if err := s.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, s *redisstream.Source, kind inbox.Kind, count int) inbox.Page {
	t.Helper()
	p, err := s.Read(t.Context(), kind, inbox.Limit{Count: count})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// 10,000 pending where only the last 5 are idle enough: one sweep finds them, through empty pages (BC-50).
func TestOneSweepFindsTheLastIdleEntries(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	const stream = "audit:{auth}"
	s := open(t, r, stream, "b", func(o *redisstream.Options) { o.IdleAfter = time.Hour })
	prepare(t, s)
	ids := add(t, r, stream, 10000)
	if err := r.Client.XReadGroup(t.Context(), &redis.XReadGroupArgs{
		Group: envelope.Group, Consumer: "a", Streams: []string{stream, ">"}, Count: 10000,
	}).Err(); err != nil {
		t.Fatal(err)
	}
	last := ids[9995:]
	if err := r.Client.Do(t.Context(), append([]any{"XCLAIM", stream, envelope.Group, "a", 0},
		last[0], last[1], last[2], last[3], last[4], "IDLE", 2*time.Hour.Milliseconds())...).Err(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for done := false; !done; {
		p := read(t, s, inbox.Idle, 100)
		for _, e := range p.Entries {
			got = append(got, e.ID)
		}
		done = p.Done
	}
	if !slices.Equal(got, last) {
		t.Errorf("claimed %v, want %v", got, last)
	}
}

// Deleted and trimmed entries of a dead consumer are reported by the sweep; the others change hands (BC-38, T15).
func TestTheSweepReportsDeletedAndTrimmedEntries(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	const stream = "audit:{auth}"
	dead, s := open(t, r, stream, "dead"), open(t, r, stream, "b", func(o *redisstream.Options) { o.IdleAfter = time.Millisecond })
	prepare(t, s)
	ids := add(t, r, stream, 100)
	read(t, dead, inbox.New, 100)
	if err := r.Client.XTrimMinID(t.Context(), stream, ids[20]).Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.Client.XDel(t.Context(), stream, ids[20:70]...).Err(); err != nil {
		t.Fatal(err)
	}
	seen, lost := map[string]bool{}, map[string]bool{}
	eventually(t, func() error {
		p := read(t, s, inbox.Idle, 10)
		for _, e := range p.Entries {
			seen[e.ID] = true
		}
		for _, id := range p.Deleted {
			lost[id] = true
		}
		if len(seen) != 30 || len(lost) != 70 {
			return fmt.Errorf("%d seen, %d lost, want 30 and 70", len(seen), len(lost))
		}
		return nil
	})
}

// Trimming honours every group, and names the one that does not move (BC-41, BC-42).
func TestTidyKeepsWhatAnyGroupNeeds(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	const stream = "audit:{auth}"
	now := time.Now
	s := open(t, r, stream, "a", func(o *redisstream.Options) { o.Now = func() time.Time { return now() } })
	prepare(t, s)
	ids := add(t, r, stream, 100)
	if err := r.Client.XGroupCreate(t.Context(), stream, "slow", ids[29]).Err(); err != nil {
		t.Fatal(err)
	}
	read(t, s, inbox.New, 100)
	if err := s.Ack(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	tidied, err := s.Tidy(t.Context())
	if err != nil || tidied.Trimmed != 30 || len(tidied.Stuck) != 0 {
		t.Fatalf("Tidy = %+v, %v", tidied, err)
	}
	now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	if tidied, err = s.Tidy(t.Context()); err != nil || !slices.Equal(tidied.Stuck, []string{"slow"}) {
		t.Errorf("Tidy = %+v, %v, want slow to be stuck", tidied, err)
	}
	if err := r.Client.XGroupDestroy(t.Context(), stream, "slow").Err(); err != nil {
		t.Fatal(err)
	}
	if tidied, err = s.Tidy(t.Context()); err != nil || tidied.Trimmed != 70 || r.Client.XLen(t.Context(), stream).Val() != 0 {
		t.Errorf("Tidy = %+v, %v", tidied, err)
	}
}

// The lag agrees with the real remainder, also behind trimming and with a slow group (BC-55, U59).
func TestLagIsTheRealRemainder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(t *testing.T, r *testdb.RedisServer, s *redisstream.Source, stream string, ids []string)
		want int64
	}{
		"nothing read": {func(*testing.T, *testdb.RedisServer, *redisstream.Source, string, []string) {}, 100},
		"unread entries trimmed": {func(t *testing.T, r *testdb.RedisServer, s *redisstream.Source, stream string, ids []string) {
			t.Helper()
			read(t, s, inbox.New, 10)
			r.Client.XTrimMinID(t.Context(), stream, ids[60])
		}, 40},
		"read entries kept for a slow group": {func(t *testing.T, r *testdb.RedisServer, s *redisstream.Source, stream string, ids []string) {
			t.Helper()
			r.Client.XGroupCreate(t.Context(), stream, "slow", "0")
			read(t, s, inbox.New, 70)
		}, 30},
		"all read": {func(t *testing.T, _ *testdb.RedisServer, s *redisstream.Source, _ string, _ []string) {
			t.Helper()
			read(t, s, inbox.New, 100)
		}, 0},
		"all trimmed": {func(t *testing.T, r *testdb.RedisServer, _ *redisstream.Source, stream string, _ []string) {
			t.Helper()
			r.Client.XTrimMaxLen(t.Context(), stream, 0)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, stream := testdb.Redis(t), "audit:{auth}"
			s := open(t, r, stream, "a")
			prepare(t, s)
			c.do(t, r, s, stream, add(t, r, stream, 100))
			p, err := s.Position(t.Context())
			if err != nil || p.Lag != c.want {
				t.Errorf("lag %d (%v), want %d", p.Lag, err, c.want)
			}
		})
	}
}

// Twenty restarts under new names: the list stays bounded and nothing that a name holds is lost (T16).
func TestDeadNamesAreRemovedUnlessTheyHoldSomething(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	const stream = "audit:{auth}"
	survivor := open(t, r, stream, "survivor", func(o *redisstream.Options) { o.DeadAfter = 50 * time.Millisecond })
	prepare(t, survivor)
	for i := range 20 {
		s := open(t, r, stream, fmt.Sprintf("replica-%d", i))
		ids := add(t, r, stream, 1)
		read(t, s, inbox.New, 1)
		if i != 7 { // it dies with an entry in hand
			if err := s.Ack(t.Context(), ids); err != nil {
				t.Fatal(err)
			}
		}
	}
	read(t, survivor, inbox.New, 1)
	removed := int64(0)
	eventually(t, func() error {
		tidied, err := survivor.Tidy(t.Context())
		removed += tidied.ConsumersRemoved
		if err != nil || removed != 19 {
			return fmt.Errorf("removed %d (%w), want 19", removed, err)
		}
		return nil
	})
	p, err := survivor.Position(t.Context())
	if err != nil || p.Pending != 1 || p.Consumers > 2 { // 7.0 lists a reader only once it was given something
		t.Errorf("position %+v (%v), want one pending entry and at most two names", p, err)
	}
}

// Five bridges at the same instant on a fresh stream: all are members of one group, none fails (BC-52).
func TestManyReadersMayPrepareAtOnce(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	for round := range 50 {
		stream := fmt.Sprintf("audit:{%d}", round)
		var wg sync.WaitGroup
		for i := range 5 {
			s := open(t, r, stream, fmt.Sprint(i))
			wg.Go(func() {
				if err := s.Prepare(t.Context()); err != nil {
					t.Error(err)
				}
				if _, err := s.Read(t.Context(), inbox.New, inbox.Limit{Count: 1}); err != nil {
					t.Error(err)
				}
				_ = s.Close()
			})
		}
		wg.Wait()
	}
}

// Stopping while blocked is quick and leaves no connection behind (BC-47); other commands work while a read
// blocks (BC-46).
func TestBlockedReadsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	const stream = "audit:{auth}"
	for range 30 {
		s := open(t, r, stream, "a")
		prepare(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := s.Read(ctx, inbox.New, inbox.Limit{Count: 1, Block: time.Minute})
			done <- err
		}()
		if err := s.Ack(t.Context(), []string{"1-1"}); err != nil {
			t.Errorf("acknowledging while a read blocks: %v", err)
		}
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("the read did not end")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		info, err := r.Client.Info(t.Context(), "clients").Result()
		if err != nil || !strings.Contains(info, "blocked_clients:0") {
			return fmt.Errorf("clients: %s (%w)", info, err)
		}
		return nil
	})
}

// A stream that is deleted, or a server that is flushed, while a reader is blocked: the next entry is
// read within seconds (BC-39, BC-54).
func TestABridgeRecoversFromAFlushWhileBlocked(t *testing.T) {
	t.Parallel()
	r, db := testdb.Redis(t), testdb.New(t, testdb.Admin)
	keys, stream := inboxtest.NewKeys(t, "k"), envelope.StreamKey("auth")
	src := open(t, r, stream, "a")
	bridge, err := inbox.NewBridge(inbox.BridgeOptions{
		DB: db.Service, Source: src, Owner: "auth", Keys: keys,
		Catalog: inbox.Catalog{Subscriptions: []inbox.Subscription{{Consumer: "log"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := bridge.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer stop()
	ledger := uuid.New()
	for i, harm := range []func() error{
		func() error { return nil },
		func() error { return r.Client.FlushAll(t.Context()).Err() },
		func() error { return r.Client.Del(t.Context(), stream).Err() },
		func() error { return r.Client.XGroupDestroy(t.Context(), stream, envelope.Group).Err() },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		e := inboxtest.Sealed(t, keys, inboxtest.NewEvent(t, "auth", "user.updated"), ledger, int64(i+1))
		if err := r.Client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: e.Fields()}).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			var n int
			if err := db.Super.QueryRow(t.Context(), `SELECT count(*) FROM inbox_events`).Scan(&n); err != nil || n != i+1 {
				return fmt.Errorf("%d events after harm %d (%w)", n, i, err)
			}
			return nil
		})
	}
}

// No stream may be read as if it were empty when its options are wrong.
func TestNewRefusesWhatIsIncomplete(t *testing.T) {
	t.Parallel()
	if _, err := redisstream.New(redisstream.Options{Stream: "s"}); err == nil {
		t.Error("no address is accepted")
	}
	if _, err := redisstream.New(redisstream.Options{Redis: &redis.Options{}}); err == nil {
		t.Error("no stream is accepted")
	}
}

func eventually(t testing.TB, ok func() error) {
	t.Helper()
	deadline, tick := time.NewTimer(10*time.Second), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatal(err)
		case <-tick.C:
		}
	}
}
