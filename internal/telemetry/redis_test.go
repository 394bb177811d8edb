// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// Not parallel: the client's logger is the process's.
func TestRedisClientIsQuietUnlessDebugging(t *testing.T) {
	for level, want := range map[slog.Level]bool{slog.LevelInfo: false, slog.LevelDebug: true} {
		var out bytes.Buffer
		RouteRedis(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: level})))
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
		ctx, cancel := context.WithCancel(t.Context())
		if err := client.Ping(ctx).Err(); err == nil {
			t.Error("something answers on port 1")
		}
		cancel()
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		if got := strings.Contains(out.String(), `"msg":"redis client"`); got != want {
			t.Errorf("at %v the client's text is logged: %v, want %v: %s", level, got, want, out.String())
		}
	}
}
