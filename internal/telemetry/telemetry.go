// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package telemetry gives a service its logger, tracer and meter, and a debug server with metrics, liveness and
// readiness.
//
// Telemetry never stands in the way of the work: export is asynchronous, its queue is bounded and drops, and so do log lines
// that nobody takes (U13); Shutdown takes less than 5 s even if the collector answers nothing (BC-72). Nothing is set globally: the service hands the
// providers on. A value that cannot be read is absent from the metrics, never zero.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	shutdownWait = 4 * time.Second
	exportWait   = 3 * time.Second
	spanQueue    = 2048
	spanBatch    = 512
)

// Config says who reports and where to.
type Config struct {
	// Service names the logger, tracer and metrics: the service's one constant.
	Service string
	// Version is reported beside it; may be empty.
	Version string
	// Stderr receives the log, one JSON object per line; default: none. While it takes nothing, lines are kept up to 1 MiB and
	// then dropped: a log that is stuck holds a caller up for 0.25 s once, and no event.
	Stderr io.Writer
	// Level is the lowest level that is logged; default Info.
	Level slog.Level
	// OTLPEndpoint is the URL of a collector (http://host:4317), the value of OTEL_EXPORTER_OTLP_ENDPOINT. Empty: spans
	// are made, so that ids exist, and go nowhere. The exporter reads headers and certificates from the other
	// OTEL_EXPORTER_OTLP_* variables of the process.
	OTLPEndpoint string
	// SampleRatio is the share of new traces that is exported; 0 means all. A caller's decision is kept.
	SampleRatio float64
}

// Telemetry holds what Setup made.
type Telemetry struct {
	Logger         *slog.Logger
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Propagator is W3C trace context. Baggage is left out: it would carry strangers' text into events.
	Propagator propagation.TextMapPropagator
	// Registry holds the metrics of MeterProvider and those of the Go runtime and process.
	Registry *prometheus.Registry

	failures metric.Int64Counter
	shutdown []func(context.Context) error
}

// Setup makes the telemetry of one service. It does not wait for a collector, and fails only on a configuration that
// can never work. It sets no globals but the logger of go-redis, which has no other: see RouteRedis.
func Setup(ctx context.Context, cfg Config) (*Telemetry, error) {
	if cfg.Service == "" {
		return nil, errors.New("telemetry: no service name")
	}
	if cfg.SampleRatio < 0 || cfg.SampleRatio > 1 {
		return nil, fmt.Errorf("telemetry: sample ratio %v is not between 0 and 1", cfg.SampleRatio)
	}
	t := &Telemetry{
		Propagator: propagation.TraceContext{},
		Registry:   prometheus.NewRegistry(),
	}
	res := resource.NewSchemaless(attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version))
	if err := t.setupMetrics(res); err != nil {
		return nil, err
	}
	t.setupLogs(cfg)
	RouteRedis(t.Logger)
	if err := t.setupTraces(ctx, cfg, res); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Telemetry) setupMetrics(res *resource.Resource) error {
	exporter, err := promexporter.New(promexporter.WithRegisterer(t.Registry), promexporter.WithoutScopeInfo())
	if err != nil {
		return fmt.Errorf("telemetry: prometheus exporter: %w", err)
	}
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := t.Registry.Register(c); err != nil {
			return fmt.Errorf("telemetry: runtime metrics: %w", err)
		}
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(exporter))
	t.MeterProvider = provider
	t.shutdown = append(t.shutdown, provider.Shutdown)
	t.failures, err = t.Meter("telemetry").Int64Counter("telemetry_failures",
		metric.WithDescription("Gauges that could not be read, span batches that could not be exported and log lines that were dropped, by what failed."))
	if err != nil {
		return fmt.Errorf("telemetry: failure counter: %w", err)
	}
	return nil
}

func (t *Telemetry) setupTraces(ctx context.Context, cfg Config, res *resource.Resource) error {
	ratio := cfg.SampleRatio
	if ratio == 0 {
		ratio = 1
	}
	options := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(res), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(ratio))),
	}
	if cfg.OTLPEndpoint != "" {
		exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(cfg.OTLPEndpoint), otlptracegrpc.WithTimeout(exportWait),
			otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false})) // a queue that waits is a queue that grows
		if err != nil {
			return fmt.Errorf("telemetry: OTLP exporter: %w", err)
		}
		options = append(options, sdktrace.WithBatcher(&quietExporter{SpanExporter: exporter, telemetry: t},
			sdktrace.WithMaxQueueSize(spanQueue), sdktrace.WithMaxExportBatchSize(spanBatch), sdktrace.WithExportTimeout(exportWait)))
	}
	provider := sdktrace.NewTracerProvider(options...)
	t.TracerProvider = provider
	t.shutdown = append(t.shutdown, provider.Shutdown)
	return nil
}

// Meter returns a meter; name is the package that measures.
func (t *Telemetry) Meter(name string) metric.Meter { return t.MeterProvider.Meter(name) }

// Tracer returns a tracer; name is the package that traces.
func (t *Telemetry) Tracer(name string) trace.Tracer { return t.TracerProvider.Tracer(name) }

// Shutdown sends what is queued and stops. It returns within 5 s whatever the collector does, and does not need a ctx
// that is still alive; what was not sent by then is dropped, and the error says so. Calling it again does nothing.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownWait)
	defer cancel()
	steps := t.shutdown
	t.shutdown = nil
	done := make(chan error, 1)
	go func() {
		var err error
		for _, step := range slices.Backward(steps) { // metrics last: they count what the traces lose
			err = errors.Join(err, step(ctx))
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("telemetry shutdown: %w", err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("telemetry shutdown: %w", ctx.Err())
	}
}

// quietExporter counts failed exports and logs when they begin and end. The SDK would print each one as plain text
// through a global handler.
type quietExporter struct {
	sdktrace.SpanExporter
	telemetry *Telemetry
	failing   atomic.Bool
}

func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.telemetry.failed(ctx, "traces")
		if !e.failing.Swap(true) {
			e.telemetry.Logger.WarnContext(ctx, "traces are not being exported", slog.String("error", err.Error()))
		}
		return nil
	}
	if e.failing.Swap(false) {
		e.telemetry.Logger.InfoContext(ctx, "traces are being exported again")
	}
	return nil
}

func (t *Telemetry) failed(ctx context.Context, what string) {
	t.failures.Add(ctx, 1, metric.WithAttributes(attribute.String("what", what)))
}
