// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inboxotel

import (
	"context"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// maxLinks bounds the links of one span: a batch may hold hundreds of events.
const maxLinks = 128

// TraceHandler wraps a handler in one span for each call, "inbox process <consumer>", with a link to the
// trace of each event, at most 128. A batch belongs to no one call, so the events' traces are
// links and not parents. Errors are recorded by their presence only, since their text may hold values.
func TraceHandler(tracer trace.Tracer, consumer string, next inbox.Handler) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		ctx, span := tracer.Start(ctx, "inbox process "+consumer, trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithLinks(links(batch)...), trace.WithAttributes(
				attribute.String("messaging.operation.type", "process"),
				attribute.String("messaging.consumer.group.name", consumer),
				attribute.Int("messaging.batch.message_count", len(batch)),
			))
		defer span.End()
		err := next(ctx, tx, batch)
		if err != nil {
			span.SetStatus(codes.Error, "the handler failed")
		}
		return err
	}
}

// links returns one link for each distinct trace of the batch.
func links(batch []inbox.Event) []trace.Link {
	var out []trace.Link
	seen := map[trace.TraceID]bool{}
	for _, e := range batch {
		if e.Traceparent == "" || len(out) == maxLinks {
			continue
		}
		ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{
			"traceparent": e.Traceparent, "tracestate": e.Tracestate,
		})
		sc := trace.SpanContextFromContext(ctx)
		if !sc.IsValid() || seen[sc.TraceID()] {
			continue
		}
		seen[sc.TraceID()] = true
		out = append(out, trace.Link{SpanContext: sc, Attributes: []attribute.KeyValue{attribute.String("messaging.message.id", e.ID.String())}})
	}
	return out
}
