// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"strings"
)

type traceKey struct{}

type traceContext struct{ parent, state string }

// ContextWithTrace returns a context whose Append and AppendBatch store the
// given W3C trace context with each event, so that the spans of later hops can
// link to the call that made it. A trace is never a reason to refuse an event: a
// traceparent that is not 55 bytes of printable ASCII is left out with its tracestate,
// and so is a tracestate of over 512 bytes or of anything else.
func ContextWithTrace(ctx context.Context, traceparent, tracestate string) context.Context {
	if len(traceparent) != 55 || !printable(traceparent) {
		return ctx
	}
	if len(tracestate) > 512 || !printable(tracestate) {
		tracestate = ""
	}
	return context.WithValue(ctx, traceKey{}, traceContext{traceparent, tracestate})
}

// printable says that s is ASCII without control characters.
func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// traceFrom returns the trace context of ctx; empty if there is none.
func traceFrom(ctx context.Context) traceContext {
	t, _ := ctx.Value(traceKey{}).(traceContext)
	return t
}
