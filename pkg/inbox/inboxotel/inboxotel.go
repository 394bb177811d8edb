// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package inboxotel shows an inbox in OpenTelemetry: metrics of bridges, consumers and the database, and spans of
// handlers that link to the calls that made the events.
package inboxotel

import (
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// MetricsOptions says what to observe. Nil and empty fields are left out.
type MetricsOptions struct {
	// Meter makes the instruments. Required.
	Meter metric.Meter
	// Bridges are the bridges of this process.
	Bridges []*inbox.Bridge
	// Consumers are the consumers of this process.
	Consumers []*inbox.Consumer
	// Inbox is read for depths and ages at each collection; on an error they are absent, never zero.
	Inbox *inbox.Postgres
}

// RegisterMetrics registers all instruments. Unregister the result to stop.
func RegisterMetrics(o MetricsOptions) (metric.Registration, error) { panic("stub") }

// TraceHandler wraps a handler in a span for each batch, with a link to the trace of each event.
func TraceHandler(tracer trace.Tracer, consumer string, next inbox.Handler) inbox.Handler {
	panic("stub")
}
