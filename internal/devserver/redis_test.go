// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestRedisKeepsWhatItsPersistenceKeeps(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r, err := StartRedis(ctx, RedisOptions{Dir: scratch(t), Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	client := client(t, r, "", "")
	if err := client.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	r.Kill()
	if err := client.Get(ctx, "k").Err(); err == nil {
		t.Error("answers after Kill")
	}
	if err := r.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if v, err := client.Get(ctx, "k").Result(); v != "v" || err != nil {
		t.Errorf("after Kill and Start: %q, %v", v, err)
	}
	if err := r.Pause(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if err := client.Get(short, "k").Err(); err == nil {
		t.Error("a frozen server answered")
	}
	r.Resume()
	if v, err := client.Get(ctx, "k").Result(); v != "v" || err != nil {
		t.Errorf("after Resume: %q, %v", v, err)
	}
	if err := r.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func TestRedisACL(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r, err := StartRedis(ctx, RedisOptions{
		Dir: scratch(t),
		ACL: []string{"user default off", "user auth on >secret %W~audit:{auth} +xadd +ping"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	if err := client(t, r, "", "").Ping(ctx).Err(); err == nil {
		t.Error("the default user got in")
	}
	auth := client(t, r, "auth", "secret")
	if err := auth.XAdd(ctx, &redis.XAddArgs{Stream: "audit:{auth}", Values: []string{"a", "b"}}).Err(); err != nil {
		t.Error(err)
	}
	if err := auth.XAdd(ctx, &redis.XAddArgs{Stream: "audit:{app}", Values: []string{"a", "b"}}).Err(); err == nil {
		t.Error("the owner wrote into another's stream")
	}
}

// A server that nobody can log in to without a password refuses so while it still loads, too. It is started when it has loaded.
func TestRedisIsStartedWhenItHasLoaded(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r, err := StartRedis(ctx, RedisOptions{
		Dir:      scratch(t),
		ACL:      []string{"user default off -@all +@stream ~*", "user auth on >secret ~audit:{auth} +xadd"},
		Settings: map[string]string{"appendonly": "yes", "appendfsync": "no", "auto-aof-rewrite-percentage": "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kill)
	auth := client(t, r, "auth", "secret")
	add := &redis.XAddArgs{Stream: "audit:{auth}", Values: []string{"a", "b"}}
	for range 20 {
		if _, err := auth.Pipelined(ctx, func(p redis.Pipeliner) error {
			for range 10000 {
				p.XAdd(ctx, add)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.Kill()
	if err := r.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := auth.XAdd(ctx, add).Err(); err != nil {
		t.Errorf("the first command after the start: %v", err)
	}
}
