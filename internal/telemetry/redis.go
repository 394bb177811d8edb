// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// RouteRedis sends what go-redis would print on standard error to logger at DEBUG. What its callers need to know they
// get as errors, and log once; the client repeats it for each attempt to connect. The client has one logger for the
// whole process, so this is called once, by main's set-up.
func RouteRedis(logger *slog.Logger) { redis.SetLogger(redisLogger{logger}) }

type redisLogger struct{ to *slog.Logger }

// Printf implements the logger that go-redis asks for.
func (l redisLogger) Printf(ctx context.Context, format string, v ...any) {
	if l.to.Enabled(ctx, slog.LevelDebug) {
		l.to.DebugContext(ctx, "redis client", slog.String("text", fmt.Sprintf(format, v...)))
	}
}
