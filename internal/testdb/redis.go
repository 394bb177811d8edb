// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package testdb

import (
	"path/filepath"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/devserver"
)

// RedisServer is one test's Redis server. It is killed and deleted when the test ends.
type RedisServer struct {
	*devserver.Redis
	// Client connects as the default user and does not repeat a failed command.
	Client *redis.Client
}

// Redis starts a server without persistence for this test alone (some 20 ms): names of streams are fixed, so tests cannot
// share one.
func Redis(t testing.TB) *RedisServer {
	t.Helper()
	return RedisWith(t, devserver.RedisOptions{})
}

// RedisWith starts a server with the given options for this test alone; Dir may be left empty. What shall outlive Kill
// needs {"appendonly": "yes", "appendfsync": "always"}.
func RedisWith(t testing.TB, opts devserver.RedisOptions) *RedisServer {
	t.Helper()
	requireServers(t)
	if opts.Dir == "" {
		opts.Dir = filepath.Join(Scratch(t), "redis")
	}
	r, err := devserver.StartRedis(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	s := &RedisServer{Redis: r}
	s.Client = redis.NewClient(s.Options())
	t.Cleanup(func() {
		_ = s.Client.Close() // the test may have closed it
		r.Kill()
	})
	return s
}

// Options returns new client options for the default user, without retries.
func (s *RedisServer) Options() *redis.Options {
	return &redis.Options{Addr: s.Addr(), MaxRetries: -1}
}
