// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import "context"

type traceKey struct{}

type traceContext struct{ parent, state string }

// ContextWithTrace returns a context whose Append and AppendBatch store the
// given W3C trace context with each event, so that the spans of later hops can
// link to the call that made it. Values over the W3C sizes (55 and 512 bytes)
// are left out: a trace is never a reason to refuse an event.
func ContextWithTrace(ctx context.Context, traceparent, tracestate string) context.Context {
	if len(traceparent) != 55 {
		return ctx
	}
	if len(tracestate) > 512 {
		tracestate = ""
	}
	return context.WithValue(ctx, traceKey{}, traceContext{traceparent, tracestate})
}

// traceFrom returns the trace context of ctx; empty if there is none.
func traceFrom(ctx context.Context) traceContext {
	t, _ := ctx.Value(traceKey{}).(traceContext)
	return t
}
