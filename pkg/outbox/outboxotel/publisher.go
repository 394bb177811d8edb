// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package outboxotel gives an outbox metrics and spans, so that package outbox
// itself needs no telemetry library.
//
// A value that cannot be read is absent, never zero. No event id, resource or
// person is ever an attribute of a metric. Spans link to the calls that appended
// the events and are not their children: a call's trace does not last as long as
// a broker's outage.
package outboxotel

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/counterfoil/counterfoil/pkg/outbox"
)

// scope names the instrumentation.
const scope = "github.com/counterfoil/counterfoil/pkg/outbox"

// maxLinks bounds the links of one span, as the SDK does by default.
const maxLinks = 128

// PublisherOptions configures Publisher. Both providers are required.
type PublisherOptions struct {
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	// Destination names the stream, for spans. Default the publisher's name.
	Destination string
	// Now is this process's clock. Default time.Now.
	Now func() time.Time
}

// Publisher wraps next: a root span and a latency sample for each page. The span
// links to the events that the broker accepted, so an event that took four tries
// has one publish span.
func Publisher(next outbox.Publisher, o PublisherOptions) (outbox.Publisher, error) {
	if o.Destination == "" {
		o.Destination = next.Name()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	meter := o.MeterProvider.Meter(scope)
	latency, err := meter.Float64Histogram("counterfoil_outbox_publish_duration_seconds",
		metric.WithUnit("s"), metric.WithDescription("Time that the broker took for a page."),
		metric.WithExplicitBucketBoundaries(.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10))
	if err != nil {
		return nil, fmt.Errorf("outbox metrics: %w", err)
	}
	faults, err := meter.Int64Counter("counterfoil_outbox_publish_faults_total",
		metric.WithDescription("Entries that a publish did not deliver, by code."))
	if err != nil {
		return nil, fmt.Errorf("outbox metrics: %w", err)
	}
	return &publisher{next: next, o: o, tracer: o.TracerProvider.Tracer(scope), latency: latency, faults: faults}, nil
}

type publisher struct {
	next    outbox.Publisher
	o       PublisherOptions
	tracer  trace.Tracer
	latency metric.Float64Histogram
	faults  metric.Int64Counter
}

// Name implements outbox.Publisher.
func (p *publisher) Name() string { return p.next.Name() }

// Publish implements outbox.Publisher.
func (p *publisher) Publish(ctx context.Context, msgs []outbox.Message) []outbox.Result {
	ctx, span := p.tracer.Start(ctx, "publish "+p.o.Destination, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(
			attribute.String("messaging.destination.name", p.o.Destination),
			attribute.String("messaging.operation.name", "publish"),
			attribute.Int("messaging.batch.message_count", len(msgs))))
	defer span.End()
	start := p.o.Now()
	results := p.next.Publish(ctx, msgs)
	p.latency.Record(ctx, p.o.Now().Sub(start).Seconds())

	byCode := make(map[string]int64)
	links := 0
	for i := range min(len(results), len(msgs)) {
		if !results[i].Accepted() {
			byCode[results[i].Fault.Code]++
			continue
		}
		if links < maxLinks && addLink(ctx, span, &msgs[i]) {
			links++
		}
	}
	for code, n := range byCode {
		p.faults.Add(ctx, n, metric.WithAttributes(attribute.String("code", code)))
		span.SetStatus(codes.Error, code)
	}
	return results
}

// addLink links span to the call that appended m, if that call was traced.
func addLink(ctx context.Context, span trace.Span, m *outbox.Message) bool {
	if m.Traceparent == "" {
		return false
	}
	carrier := propagation.MapCarrier{"traceparent": m.Traceparent, "tracestate": m.Tracestate}
	remote := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.WithoutCancel(ctx), carrier))
	if !remote.IsRemote() {
		return false
	}
	span.AddLink(trace.Link{SpanContext: remote})
	return true
}
