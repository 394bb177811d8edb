// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// readWait bounds one reading of gauges, so that a database that hangs does not hang the scrape.
const readWait = 3 * time.Second

// Gauge names a value that is read when metrics are collected.
type Gauge struct {
	Name        string // snake_case, without unit suffix
	Unit        string // UCUM: "s", "By", or "" for a count
	Description string
}

// Observe states the value of one of the registered gauges. Attributes must be few and bounded: never an id.
type Observe func(gauge string, value float64, attrs ...attribute.KeyValue)

// Gauges registers gauges that one call of read fills at each collection, within 3 s.
//
// If read fails, none of its gauges has a value in that collection, not even those that it had stated before it failed,
// and telemetry_failures_total{what="gauges:<first name>"} counts one more: unknown is shown as absent, never as zero
// or as the value of an earlier reading.
func (t *Telemetry) Gauges(read func(ctx context.Context, observe Observe) error, gauges ...Gauge) error {
	if len(gauges) == 0 {
		return fmt.Errorf("register gauges: none named")
	}
	meter := t.Meter("telemetry")
	instruments := make(map[string]metric.Float64ObservableGauge, len(gauges))
	observables := make([]metric.Observable, 0, len(gauges))
	for _, g := range gauges {
		instrument, err := meter.Float64ObservableGauge(g.Name, metric.WithUnit(g.Unit), metric.WithDescription(g.Description))
		if err != nil {
			return fmt.Errorf("register gauge %s: %w", g.Name, err)
		}
		instruments[g.Name] = instrument
		observables = append(observables, instrument)
	}
	collect := func(ctx context.Context, to metric.Observer) error {
		observations, err := collected(ctx, read)
		if err != nil {
			t.failed(ctx, "gauges:"+gauges[0].Name)
			return nil //nolint:nilerr // counted above; the SDK would print it as plain text through a global handler
		}
		for _, o := range observations {
			if instrument, ok := instruments[o.gauge]; ok {
				to.ObserveFloat64(instrument, o.value, metric.WithAttributes(o.attrs...))
			}
		}
		return nil
	}
	if _, err := meter.RegisterCallback(collect, observables...); err != nil {
		return fmt.Errorf("register gauges: %w", err)
	}
	return nil
}

type observation struct {
	gauge string
	value float64
	attrs []attribute.KeyValue
}

func collected(ctx context.Context, read func(context.Context, Observe) error) (out []observation, err error) {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	err = read(ctx, func(gauge string, value float64, attrs ...attribute.KeyValue) {
		out = append(out, observation{gauge, value, attrs})
	})
	return out, err
}
