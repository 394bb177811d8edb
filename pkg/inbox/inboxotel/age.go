// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inboxotel

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// ageBuckets are bounds in seconds: from what a healthy path takes to an outage of a day.
var ageBuckets = []float64{0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400}

// MeasureAge wraps a handler and records how old each event is when it has been applied: how far behind its owner the consumer
// is (U73). The histogram is "inbox.event.age", by owner and consumer.
//
// An age counts from the event's own time, within its owner's transaction, by that owner's clock; a clock that is ahead gives 0.
// It is taken before the consumer's transaction commits: where that fails, the event is counted again when it is applied again.
func MeasureAge(meter metric.Meter, consumer string, now func() time.Time, next inbox.Handler) (inbox.Handler, error) {
	ages, err := meter.Float64Histogram("inbox.event.age", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(ageBuckets...),
		metric.WithDescription("How old events are when a consumer has applied them, by their own time"))
	if err != nil {
		return nil, fmt.Errorf("make histogram: %w", err)
	}
	return func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		if err := next(ctx, tx, batch); err != nil {
			return err
		}
		applied := now()
		of := map[string]metric.MeasurementOption{} // by owner: made once for a batch
		for _, e := range batch {
			if of[e.Owner] == nil {
				of[e.Owner] = with("owner", e.Owner, "consumer", consumer)
			}
			age := max(applied.Sub(e.Audit.GetOccurTime().AsTime()), 0)
			ages.Record(ctx, age.Seconds(), of[e.Owner])
		}
		return nil
	}, nil
}
