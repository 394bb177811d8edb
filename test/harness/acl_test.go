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

// (U17) Each service reaches its own streams with the commands that it uses, and nothing else.
func TestAccessList(t *testing.T) {
	t.Parallel()
	passwords := newSecrets().redis
	server := testdb.RedisWith(t, devserver.RedisOptions{ACL: accessList(passwords)})
	ctx := t.Context()
	clients := map[string]*redis.Client{}
	for user, password := range passwords {
		clients[user] = redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: password, MaxRetries: -1})
		t.Cleanup(func() { _ = clients[user].Close() })
		if err := clients[user].Ping(ctx).Err(); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
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
	if err := server.Client.Ping(ctx).Err(); err == nil {
		t.Error("the default user may connect")
	}
}
