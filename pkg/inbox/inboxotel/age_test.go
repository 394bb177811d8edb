// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inboxotel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxotel"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// U73: a consumer shows how far behind each owner it is. An event that was applied counts once, at its age; one that was not
// does not count.
func TestTheAgeOfAppliedEventsIsMeasured(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	failed := errors.New("not now")
	var answer error
	reader := sdkmetric.NewManualReader()
	handler, err := inboxotel.MeasureAge(
		sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"), "log", func() time.Time { return now },
		func(context.Context, pgx.Tx, []inbox.Event) error { return answer })
	if err != nil {
		t.Fatal(err)
	}
	event := func(owner string, age time.Duration) inbox.Event {
		return inbox.Event{ID: uuid.New(), Owner: owner, Audit: &auditv1.AuditEvent{OccurTime: timestamppb.New(now.Add(-age))}}
	}
	batch := []inbox.Event{event("auth", 40*time.Millisecond), event("auth", time.Hour), event("app", -time.Minute)} // the last clock is ahead
	answer = failed
	if err := handler(t.Context(), nil, batch); !errors.Is(err, failed) {
		t.Errorf("the handler's error is %v", err)
	}
	if got := ages(t, reader); len(got) != 0 {
		t.Errorf("what failed was measured: %v", got)
	}
	answer = nil
	if err := handler(t.Context(), nil, batch); err != nil {
		t.Fatal(err)
	}
	got := ages(t, reader)
	if a := got["auth"]; a.Count != 2 || a.Sum != 3600.04 || a.BucketCounts[1] != 1 {
		t.Errorf("auth: %+v", a)
	}
	if a := got["app"]; a.Count != 1 || a.Sum != 0 {
		t.Errorf("app: %+v", a)
	}
}

// ages returns the histogram of the consumer "log", by owner.
func ages(t *testing.T, reader sdkmetric.Reader) map[string]metricdata.HistogramDataPoint[float64] {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	out := map[string]metricdata.HistogramDataPoint[float64]{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			histogram, ok := m.Data.(metricdata.Histogram[float64])
			if !ok || m.Name != "inbox.event.age" {
				continue
			}
			for _, p := range histogram.DataPoints {
				owner, _ := p.Attributes.Value("owner")
				if consumer, _ := p.Attributes.Value("consumer"); consumer.AsString() == "log" {
					out[owner.AsString()] = p
				}
			}
		}
	}
	return out
}
