// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/internal/testdb"
)

// broker is a server with the deployment's access list that writes all down, and a client for each user.
func broker(t *testing.T) (*testdb.RedisServer, map[string]*redis.Client) {
	t.Helper()
	passwords := newSecrets().redis
	server := testdb.RedisWith(t, devserver.RedisOptions{
		ACL: accessList(passwords), Settings: map[string]string{"appendonly": "yes", "appendfsync": "always"},
	})
	clients := map[string]*redis.Client{}
	for user, password := range passwords {
		clients[user] = redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: password, MaxRetries: -1, DisableIdentity: true})
		t.Cleanup(func() { _ = clients[user].Close() })
		if err := clients[user].Ping(t.Context()).Err(); err != nil {
			t.Fatalf("%s: %v", user, err)
		}
	}
	return server, clients
}

// What a reader was given together and did not acknowledge is still pending after a restart, and so is what was read after it.
// A server that replays its log without the right to make transactions forgets the first, and nobody reads it again.
func TestARestartOfTheBrokerForgetsNoPendingEntry(t *testing.T) {
	t.Parallel()
	server, clients := broker(t)
	ctx, owner, admin := t.Context(), clients["auth"], clients["admin"]
	const stream, group = "audit:{auth}", "admin"
	if err := admin.Do(ctx, "xgroup", "create", stream, group, "0", "mkstream").Err(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if err := owner.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []string{"f", "v"}}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, count := range []int64{3, 1} {
		err := admin.XReadGroup(ctx, &redis.XReadGroupArgs{Group: group, Consumer: "c", Streams: []string{stream, ">"}, Count: count}).Err()
		if err != nil {
			t.Fatal(err)
		}
	}
	server.Kill()
	if err := server.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pending, err := admin.XPending(ctx, stream, group).Result()
	if err != nil || pending.Count != 4 {
		t.Errorf("pending after the restart: %+v (%v), want 4 entries", pending, err)
	}
}

// (U17) Each service reaches its own streams with the commands that it uses, and nothing else.
func TestAccessList(t *testing.T) {
	t.Parallel()
	server, clients := broker(t)
	ctx := t.Context()
	add := func(stream string) []any { return []any{"xadd", stream, "*", "f", "v"} }
	for _, c := range []struct {
		user    string
		allowed bool
		command []any
	}{
		{"auth", true, add("audit:{auth}")},
		{"auth", true, []any{"xread", "count", "1", "streams", "receipts:{auth}", "0"}},
		{"auth", true, []any{"xrevrange", "receipts:{auth}", "+", "-", "count", "1"}},
		{"auth", false, add("audit:{app}")},
		{"auth", false, []any{"xread", "streams", "audit:{auth}", "0"}},
		{"auth", false, []any{"xread", "streams", "receipts:{app}", "0"}},
		{"auth", false, add("receipts:{auth}")},
		{"auth", false, []any{"xtrim", "audit:{auth}", "maxlen", "0"}},
		{"auth", false, []any{"xdel", "audit:{auth}", "1-0"}},
		{"auth", false, []any{"del", "audit:{auth}"}},
		{"app", true, add("audit:{app}")},
		{"app", false, add("audit:{auth}")},
		{"admin", true, []any{"xgroup", "create", "audit:{auth}", "admin", "0"}},
		{"admin", true, []any{"xreadgroup", "group", "admin", "c", "streams", "audit:{auth}", ">"}},
		{"admin", true, []any{"xautoclaim", "audit:{auth}", "admin", "c", "0", "0"}},
		{"admin", true, []any{"xpending", "audit:{auth}", "admin"}},
		{"admin", true, []any{"xack", "audit:{auth}", "admin", "1-0"}},
		{"admin", true, []any{"xinfo", "groups", "audit:{auth}"}},
		{"admin", true, []any{"xtrim", "audit:{auth}", "minid", "0"}},
		{"admin", true, []any{"eval", "return redis.call('xlen', KEYS[1])", "1", "audit:{app}"}},
		{"admin", true, add("receipts:{auth}")},
		{"admin", true, add("receipts:{app}")},
		{"admin", true, []any{"info", "memory"}},
		{"admin", false, []any{"config", "get", "maxmemory-policy"}},
		{"admin", false, add("audit:{auth}")},
		{"admin", false, []any{"xdel", "audit:{auth}", "1-0"}},
		{"admin", false, []any{"xgroup", "destroy", "audit:{auth}", "admin"}},
		{"admin", false, []any{"xread", "streams", "receipts:{auth}", "0"}},
		{"admin", false, []any{"eval", "return redis.call('xadd', KEYS[1], '*', 'f', 'v')", "1", "audit:{app}"}},
		{"admin", false, []any{"flushall"}},
		{"app", false, []any{"config", "get", "*"}},
		{"app", false, []any{"acl", "list"}},
		{redisRoot, true, []any{"flushall"}},
	} {
		err := clients[c.user].Do(ctx, c.command...).Err()
		refused := err != nil && (strings.HasPrefix(err.Error(), "NOPERM") || strings.Contains(err.Error(), "can't run this command") ||
			strings.Contains(err.Error(), "No permissions") || strings.Contains(err.Error(), "can't access at least one of the keys"))
		if refused == c.allowed {
			t.Errorf("%s %v: %v", c.user, c.command, err)
		}
	}
	for _, password := range []string{"", "any"} {
		nobody := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: password, MaxRetries: -1, DisableIdentity: true})
		t.Cleanup(func() { _ = nobody.Close() })
		for _, command := range [][]any{{"ping"}, add("audit:{auth}"), {"xread", "streams", "audit:{auth}", "0"}} {
			if err := nobody.Do(ctx, command...).Err(); err == nil {
				t.Errorf("the default user may %v", command)
			}
		}
	}
	health := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "health", Password: "any", MaxRetries: -1, DisableIdentity: true})
	t.Cleanup(func() { _ = health.Close() })
	if err := health.Ping(ctx).Err(); err != nil {
		t.Errorf("the health check: %v", err)
	}
	if err := health.Do(ctx, "xlen", "audit:{auth}").Err(); err == nil {
		t.Error("the health check's user reads a stream")
	}
}
