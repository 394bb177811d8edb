// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inboxotel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxotel"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
)

// Every metric against a state made by hand (U59, U88, U89).
func TestMetricsShowAStateMadeByHand(t *testing.T) {
	t.Parallel()
	db, keys, stream := testdb.New(t, testdb.Admin), inboxtest.NewKeys(t, "k"), inboxtest.NewStream(nil)
	c, err := inbox.NewConsumer(inbox.ConsumerOptions{DB: db.Service, Name: "log", Handler: func(context.Context, pgx.Tx, []inbox.Event) error {
		return inbox.Permanent("test.no", errors.New("no"))
	}})
	if err != nil {
		t.Fatal(err)
	}
	catalog := inbox.Catalog{Subscriptions: []inbox.Subscription{c.Subscription(), {Consumer: "idle"}}}
	b, err := inbox.NewBridge(inbox.BridgeOptions{DB: db.Service, Source: stream.Source("a", time.Hour), Owner: "auth", Keys: keys, Catalog: catalog})
	if err != nil {
		t.Fatal(err)
	}
	ledger := uuid.New()
	for i := range 3 {
		stream.Add(inboxtest.Values(inboxtest.Sealed(t, keys, inboxtest.NewEvent(t, "auth", "user.updated"), ledger, int64(i+1))))
	}
	stream.Add(map[string]any{"x": "y"})
	if _, err := b.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	stream.Add(map[string]any{"unread": "1"}, map[string]any{"unread": "2"})
	ops, err := inbox.NewPostgres(db.Service, catalog)
	if err != nil {
		t.Fatal(err)
	}
	reader := sdkmetric.NewManualReader()
	registration, err := inboxotel.RegisterMetrics(inboxotel.MetricsOptions{
		Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"), Bridges: []*inbox.Bridge{b}, Consumers: []*inbox.Consumer{c}, Inbox: ops,
	})
	if err != nil {
		t.Fatal(err)
	}
	got := collect(t, reader)
	for series, want := range map[string]float64{
		"inbox.entries{outcome=received,owner=auth}":          3,
		"inbox.entries{outcome=forged,owner=auth}":            1,
		"inbox.entries{outcome=duplicate,owner=auth}":         0,
		"inbox.poison{owner=auth,reason=field.missing}":       1,
		"inbox.poison_open{kind=FORGED,reason=field.missing}": 1,
		"inbox.stream.lag{owner=auth}":                        2,
		"inbox.stream.pending{owner=auth}":                    0,
		"inbox.dead{code=test.no,consumer=log}":               3,
		"inbox.dead{code=,consumer=idle}":                     0,
		"inbox.depth{consumer=idle,state=pending}":            3,
		"inbox.rows{consumer=log,outcome=died}":               3,
		"inbox.rows{consumer=log,outcome=lost_fence}":         0,
		"inbox.oldest_lease_age{consumer=log}":                0,
		"inbox.oldest_retry_age{consumer=log}":                0,
	} {
		if v, ok := got[series]; !ok || v != want {
			t.Errorf("%s = %v (%v), want %v", series, v, ok, want)
		}
	}
	if got["inbox.oldest_pending_age{consumer=idle}"] <= 0 {
		t.Error("the pending age does not rise")
	}

	// What cannot be read is absent, and the rest is still there.
	stream.Flush()
	got = collect(t, reader)
	if _, ok := got["inbox.stream.lag{owner=auth}"]; ok {
		t.Error("the lag of an unreadable stream is shown")
	}
	if _, ok := got["inbox.dead{code=test.no,consumer=log}"]; !ok {
		t.Error("an unreadable stream hides the dead rows")
	}
	if err := registration.Unregister(); err != nil {
		t.Error(err)
	}
}

func collect(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	_ = reader.Collect(t.Context(), &data) // a part that cannot be read is an error here
	out := map[string]float64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				add(out, m.Name, d.DataPoints)
			case metricdata.Gauge[int64]:
				add(out, m.Name, d.DataPoints)
			case metricdata.Gauge[float64]:
				add(out, m.Name, d.DataPoints)
			}
		}
	}
	return out
}

func add[N int64 | float64](out map[string]float64, name string, points []metricdata.DataPoint[N]) {
	for _, p := range points {
		var attrs []string
		for _, kv := range p.Attributes.ToSlice() {
			attrs = append(attrs, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
		}
		out[name+"{"+strings.Join(attrs, ",")+"}"] = float64(p.Value)
	}
}

func TestASpanLinksToTheTracesOfItsEvents(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	handler := inboxotel.TraceHandler(tracer, "log", func(context.Context, pgx.Tx, []inbox.Event) error { return errors.New("ada@example.org") })
	parent := "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	batch := []inbox.Event{{ID: uuid.New(), Traceparent: parent}, {ID: uuid.New(), Traceparent: parent}, {ID: uuid.New(), Traceparent: "junk"}, {ID: uuid.New()}}
	if err := handler(t.Context(), nil, batch); err == nil {
		t.Error("the error is lost")
	}
	ended := spans.Ended()
	if len(ended) != 1 || len(ended[0].Links()) != 1 || ended[0].Links()[0].SpanContext.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Fatalf("spans %+v", ended)
	}
	if s := ended[0].Status(); s.Code != codes.Error || strings.Contains(s.Description, "ada") {
		t.Errorf("status %+v", s)
	}
}
