// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// setupLogs makes the JSON logger of a service: attributes service and version on each line, trace_id and span_id where
// the context has a span. Its lines go through a sink, which counts those it drops.
func (t *Telemetry) setupLogs(cfg Config) {
	if cfg.Stderr == nil {
		t.Logger = slog.New(slog.DiscardHandler)
		return
	}
	to := &sink{
		to: cfg.Stderr, wait: sinkWait, count: func() { t.failed(context.Background(), "log") },
		dropped: func(lines int) {
			newLogger(cfg, cfg.Stderr).WarnContext(context.Background(), "log lines were dropped", slog.Int("lines", lines))
		},
	}
	t.Logger = newLogger(cfg, to)
	t.shutdown = append(t.shutdown, to.flush)
}

func newLogger(cfg Config, to io.Writer) *slog.Logger {
	json := slog.NewJSONHandler(to, &slog.HandlerOptions{Level: cfg.Level})
	logger := slog.New(traceHandler{json}).With(slog.String("service", cfg.Service))
	if cfg.Version != "" {
		logger = logger.With(slog.String("version", cfg.Version))
	}
	return logger
}

// traceHandler adds the ids of the current span to each record.
type traceHandler struct {
	slog.Handler
}

func (h traceHandler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r = r.Clone()
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, r)
}

func (h traceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return traceHandler{h.Handler.WithAttrs(attrs)}
}

func (h traceHandler) WithGroup(name string) slog.Handler {
	return traceHandler{h.Handler.WithGroup(name)}
}
