// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxotel_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxotel"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	parent  = "00-" + traceID + "-b7ad6b7169203331-01"
)

// BC-71: an event that took several tries has one publish span, of a trace of its own, that links to its call.
func TestSpansLinkOnceToTheCall(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	broker := &outboxtest.Publisher{}
	p, err := outboxotel.Publisher(broker, outboxotel.PublisherOptions{
		TracerProvider: trace.NewTracerProvider(trace.WithSpanProcessor(spans)), MeterProvider: metric.NewMeterProvider(),
	})
	if err != nil {
		t.Fatal(err)
	}
	msgs := []outbox.Message{{EventID: uuid.New(), Traceparent: parent}, {EventID: uuid.New()}, {EventID: uuid.New(), Traceparent: "nonsense"}}
	broker.Reply(outboxtest.Refuse(outbox.FaultBroker, "broker.oom"))
	for range 3 {
		p.Publish(t.Context(), msgs)
	}
	broker.Reply(nil)
	if res := p.Publish(t.Context(), msgs); len(res) != 3 || !res[0].Accepted() || p.Name() != "fake" {
		t.Fatalf("the wrapper answers %+v as %q", res, p.Name())
	}
	links := 0
	for _, s := range spans.Ended() {
		if s.Parent().IsValid() || s.SpanContext().TraceID().String() == traceID {
			t.Errorf("span %s hangs in the call's trace", s.Name())
		}
		for _, l := range s.Links() {
			links++
			if l.SpanContext.TraceID().String() != traceID {
				t.Errorf("a link to %v", l.SpanContext.TraceID())
			}
		}
	}
	if links != 1 || len(spans.Ended()) != 4 {
		t.Errorf("%d links in %d spans, want one in four", links, len(spans.Ended()))
	}
}

type reader struct{ err error }

func (r *reader) Backlog(context.Context) (outbox.Snapshot, error) {
	return outbox.Snapshot{Depth: map[outbox.Status]int64{outbox.StatusPending: 7}, OldestUndelivered: 90 * time.Second, Head: 12}, r.err
}

func (r *reader) Status(context.Context) (outbox.Snapshot, error) {
	return outbox.Snapshot{Depth: map[outbox.Status]int64{outbox.StatusPending: 99, outbox.StatusFailed: 2}, DeadByReason: map[string]int64{"outbox.too_large": 2}}, r.err
}

type statser struct{ s outbox.Stats }

func (s statser) Stats() outbox.Stats { return s.s }

// collect returns every value by name, with its attributes.
func collect(t *testing.T, r *metric.ManualReader) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &rm); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	add := func(name string, points []metricdata.DataPoint[float64]) {
		for _, p := range points {
			key := name
			for _, kv := range p.Attributes.ToSlice() {
				key += "," + string(kv.Key) + "=" + kv.Value.String()
			}
			out[key] = p.Value
		}
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Gauge[float64]:
				add(m.Name, d.DataPoints)
			case metricdata.Sum[float64]:
				add(m.Name, d.DataPoints)
			}
		}
	}
	return out
}

// U23, U88: the values are there, and what cannot be read is absent, never zero.
func TestMetrics(t *testing.T) {
	t.Parallel()
	manual := metric.NewManualReader()
	src := &reader{}
	now := time.Now()
	stop, err := outboxotel.Register(metric.NewMeterProvider(metric.WithReader(manual)), outboxotel.MetricsOptions{
		Reader: src, Dispatcher: statser{outbox.Stats{Delivered: 5, Lost: 1, CircuitOpen: true, ConsecutiveFailures: 3}},
		Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	got := collect(t, manual)
	for name, want := range map[string]float64{
		"counterfoil_outbox_entries,status=PENDING": 7, "counterfoil_outbox_entries,status=FAILED": 2,
		"counterfoil_outbox_oldest_undelivered_seconds": 90, "counterfoil_outbox_ledger_head": 12,
		"counterfoil_outbox_dead_entries,code=outbox.too_large": 2, "counterfoil_outbox_outcomes_total,status=DELIVERED": 5,
		"counterfoil_outbox_lost_claims_total": 1, "counterfoil_outbox_circuit_open": 1, "counterfoil_outbox_consecutive_failures": 3,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
		}
	}
	if _, ok := got["counterfoil_outbox_last_success_timestamp_seconds"]; ok {
		t.Error("a success that never was has a time")
	}
	for name := range got {
		if strings.Contains(name, "_id=") {
			t.Errorf("%s has an id as an attribute", name)
		}
	}
	src.err = errors.New("down")
	now = now.Add(time.Hour)
	got = collect(t, manual)
	for name := range got {
		if strings.HasPrefix(name, "counterfoil_outbox_entries") || strings.HasPrefix(name, "counterfoil_outbox_oldest") {
			t.Errorf("%s is %v though the outbox cannot be read", name, got[name])
		}
	}
	if got["counterfoil_outbox_read_failures_total"] != 2 {
		t.Errorf("%v read failures, want 2", got["counterfoil_outbox_read_failures_total"])
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := outboxotel.Register(metric.NewMeterProvider(), outboxotel.MetricsOptions{}); err == nil {
		t.Error("nothing to read was accepted")
	}
}
