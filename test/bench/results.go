// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/proto"
)

// results is bench.json.
type results struct {
	Machine      string             `json:"machine"`
	Drain        *drainResult       `json:"drain,omitempty"`
	Latency      []latencyResult    `json:"latency,omitempty"`
	LatencyFresh []latencyResult    `json:"latency_fresh,omitempty"` // right after the migration
	Business     *businessResult    `json:"business,omitempty"`
	Large        *largeResult       `json:"large,omitempty"`
	Idle         map[string]float64 `json:"idle_cpu_percent,omitempty"` // of one core, by service
}

// drainResult is the backlog's way to audit_logs: medians over the rounds, highest memory of any.
type drainResult struct {
	Events                  int                `json:"events"`
	EventsPerSecond         float64            `json:"events_per_second"`
	FloorEventsPerSecond    float64            `json:"floor_events_per_second,omitempty"`
	RatioToFloor            float64            `json:"ratio_to_floor,omitempty"`
	EveryConsumerPerSecond  float64            `json:"every_consumer_events_per_second"`
	EventsPerSecondAll      []float64          `json:"events_per_second_all"`
	FloorEventsPerSecondAll []float64          `json:"floor_events_per_second_all,omitempty"`
	PayloadBytes            int                `json:"payload_bytes"`
	WALBytesPerEvent        float64            `json:"wal_bytes_per_event"`
	WALBytesPerEventNoFPI   float64            `json:"wal_bytes_per_event_without_full_page_images"`
	FsyncsPerEvent          float64            `json:"fsyncs_per_event"`
	PeakMemoryMB            map[string]float64 `json:"peak_memory_mb"`
	// CPU says more than rates do on a machine that others use, too.
	CPUMicrosPerEvent      map[string]float64 `json:"cpu_us_per_event"`
	CPUMicrosPerEventAll   float64            `json:"cpu_us_per_event_all"`
	FloorCPUMicrosPerEvent float64            `json:"floor_cpu_us_per_event,omitempty"`
}

func newDrainResult(events int, mine []drained, floors []floorRun) *drainResult {
	d := &drainResult{
		Events: events, PayloadBytes: meanPayload(1000), PeakMemoryMB: peaks(mine), CPUMicrosPerEvent: cpuPerEvent(mine, events),
		EventsPerSecondAll:     each(mine, func(d drained) float64 { return d.rate }),
		EveryConsumerPerSecond: median(each(mine, func(d drained) float64 { return d.allRate })),
		WALBytesPerEvent:       median(each(mine, func(d drained) float64 { return d.wal.bytes })),
		FsyncsPerEvent:         median(each(mine, func(d drained) float64 { return d.wal.syncs })),
	}
	d.EventsPerSecond = median(d.EventsPerSecondAll)
	for _, us := range d.CPUMicrosPerEvent {
		d.CPUMicrosPerEventAll += us
	}
	if len(floors) > 0 {
		d.FloorEventsPerSecondAll = each(floors, func(f floorRun) float64 { return f.rate })
		d.FloorEventsPerSecond = median(d.FloorEventsPerSecondAll)
		d.RatioToFloor = d.EventsPerSecond / d.FloorEventsPerSecond
		d.FloorCPUMicrosPerEvent = median(each(floors, func(f floorRun) float64 { return 1e6 * f.cpu / float64(events) }))
	}
	return d
}

// latencyResult is the time from commit to recorded at one rate, and how the calls themselves fared.
type latencyResult struct {
	Rate    int     `json:"rate"`
	Load    string  `json:"load"` // append or grpc: see main.go
	P50     float64 `json:"p50_ms"`
	P95     float64 `json:"p95_ms"`
	P99     float64 `json:"p99_ms"`
	Max     float64 `json:"max_ms"`
	Events  int     `json:"events"`
	CallP50 float64 `json:"call_p50_ms"` // of the business transaction or call, from when it was to begin
	CallP99 float64 `json:"call_p99_ms"`
	LateP99 float64 `json:"generator_late_p99_ms"` // a load that does not leave in time is no open loop
	// CPU is the time of each process for an event, the call and its client ("bench") included.
	CPU map[string]float64 `json:"cpu_us_per_event"`
}

func (l *latencyResult) fill(times []time.Duration) {
	l.P50, l.P95 = milliseconds(percentile(times, 50)), milliseconds(percentile(times, 95))
	l.P99, l.Max = milliseconds(percentile(times, 99)), milliseconds(percentile(times, 100))
}

func (l latencyResult) String() string {
	return fmt.Sprintf("%d/s: p50 %.1f, p95 %.1f, p99 %.1f, max %.1f ms over %d events (calls p50 %.1f, p99 %.1f ms; left late p99 %.1f ms); CPU µs an event: %s",
		l.Rate, l.P50, l.P95, l.P99, l.Max, l.Events, l.CallP50, l.CallP99, l.LateP99, byName(l.CPU, "%.0f"))
}

// largeResult is the memory of a drain of large events.
type largeResult struct {
	Events       int                `json:"events"`
	PayloadBytes int                `json:"payload_bytes"`
	PeakMemoryMB map[string]float64 `json:"peak_memory_mb"`
}

// businessResult compares transactions at 16 writers. Ratios are medians over turns that follow each other.
type businessResult struct {
	Plain        float64 `json:"plain_per_second"`
	Audited      float64 `json:"audited_per_second"` // AppendBatch
	Append       float64 `json:"audited_append_per_second"`
	Ratio        float64 `json:"ratio"`         // AppendBatch to plain
	RatioAppend  float64 `json:"ratio_append"`  // Append to plain
	RatioRow     float64 `json:"ratio_row"`     // a second row with no rule, index or check, to plain: what any outbox costs at least
	RatioGuard   float64 `json:"ratio_guarded"` // AppendBatch under the guard to AppendBatch without
	PlainP99     float64 `json:"plain_p99_ms"`
	AuditedP99   float64 `json:"audited_p99_ms"`
	AuditedP99By string  `json:"audited_by"`
	// CPUMicros is the service's and Postgres' time for a transaction, by kind.
	CPUMicros map[string]float64 `json:"cpu_us_per_transaction"`
}

func newBusinessResult(perKind map[string][]float64, times map[string][]time.Duration, cpu map[string][]float64) *businessResult {
	medians := map[string]float64{}
	for kind, all := range cpu {
		medians[kind] = median(all)
	}
	return &businessResult{
		CPUMicros: medians,
		Plain:     median(perKind["plain"]), Audited: median(perKind["batch"]), Append: median(perKind["append"]),
		Ratio: medianRatio(perKind["batch"], perKind["plain"]), RatioAppend: medianRatio(perKind["append"], perKind["plain"]),
		RatioRow: medianRatio(perKind["row"], perKind["plain"]), RatioGuard: medianRatio(perKind["guarded"], perKind["batch"]),
		PlainP99: milliseconds(percentile(times["plain"], 99)), AuditedP99: milliseconds(percentile(times["batch"], 99)),
		AuditedP99By: "AppendBatch",
	}
}

func (r *businessResult) String() string {
	return fmt.Sprintf("plain %.0f/s, AppendBatch %.0f/s (%.2f), Append %.0f/s (%.2f), guard %.2f; p99 plain %.1f ms, AppendBatch %.1f ms; CPU µs: %s",
		r.Plain, r.Audited, r.Ratio, r.Append, r.RatioAppend, r.RatioGuard, r.PlainP99, r.AuditedP99, byName(r.CPUMicros, "%.0f"))
}

// write writes bench.json.
func (r *results) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil { //nolint:gosec // results are for everybody
		return fmt.Errorf("write results: %w", err)
	}
	return nil
}

// print shows the tables.
func (r *results) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format, args...) } // a terminal that is gone needs no table
	defer func() { _ = t.Flush() }()
	say("\n%s\n", r.Machine)
	if d := r.Drain; d != nil {
		say("\ndrain of %d events of %d bytes\t\n", d.Events, d.PayloadBytes)
		say("  to audit_logs\t%.0f events/s\n", d.EventsPerSecond)
		say("  through every consumer\t%.0f events/s\n", d.EveryConsumerPerSecond)
		if d.FloorEventsPerSecond > 0 {
			say("  floor\t%.0f events/s\n  ratio to the floor\t%.2f\n", d.FloorEventsPerSecond, d.RatioToFloor)
		}
		say("  WAL an event\t%.0f bytes (%.0f without full-page images)\n", d.WALBytesPerEvent, d.WALBytesPerEventNoFPI)
		say("  fsyncs an event\t%.4f\n", d.FsyncsPerEvent)
		say("  CPU an event\t%.0f µs: %s\n", d.CPUMicrosPerEventAll, byName(d.CPUMicrosPerEvent, "%.0f"))
		if d.FloorCPUMicrosPerEvent > 0 {
			say("  CPU an event of the floor\t%.0f µs\n", d.FloorCPUMicrosPerEvent)
		}
		say("  peak memory\t%s\n", byName(d.PeakMemoryMB, "%.0f MB"))
	}
	for _, part := range []struct {
		title string
		rows  []latencyResult
	}{{"commit → recorded", r.Latency}, {"commit → recorded, right after the migration", r.LatencyFresh}} {
		if len(part.rows) == 0 {
			continue
		}
		say("\n%s\tp50\tp95\tp99\tmax\tcall p50\tcall p99\n", part.title)
		for _, l := range part.rows {
			say("  %d/s\t%.1f ms\t%.1f ms\t%.1f ms\t%.1f ms\t%.1f ms\t%.1f ms\n", l.Rate, l.P50, l.P95, l.P99, l.Max, l.CallP50, l.CallP99)
		}
	}
	if b := r.Business; b != nil {
		say("\nbusiness transaction, %d writers\ttransactions/s\tratio\tp99\n", writers)
		say("  without an event\t%.0f\t1.00\t%.1f ms\n", b.Plain, b.PlainP99)
		say("  a second row, bare\t\t%.2f\t\n", b.RatioRow)
		say("  AppendBatch\t%.0f\t%.2f\t%.1f ms\n", b.Audited, b.Ratio, b.AuditedP99)
		say("  Append\t%.0f\t%.2f\t\n", b.Append, b.RatioAppend)
		say("  AppendBatch under the guard, to AppendBatch\t\t%.2f\t\n", b.RatioGuard)
		say("  CPU a transaction, µs\t%s\n", byName(b.CPUMicros, "%.0f"))
	}
	if l := r.Large; l != nil {
		say("\npeak memory with %d events of %d bytes\t%s\n", l.Events, l.PayloadBytes, byName(l.PeakMemoryMB, "%.0f MB"))
	}
	if r.Idle != nil {
		say("\nidle, of one core\t%s\n", byName(r.Idle, "%.2f %%"))
	}
}

func byName(values map[string]float64, format string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, name+" "+fmt.Sprintf(format, values[name]))
	}
	return strings.Join(parts, ", ")
}

func peaks(all []drained) map[string]float64 {
	out := map[string]float64{}
	for _, d := range all {
		for name, mb := range d.rss {
			out[name] = max(out[name], mb)
		}
	}
	return out
}

func cpuPerEvent(all []drained, events int) map[string]float64 {
	byName := map[string][]float64{}
	for _, d := range all {
		for name, seconds := range d.cpu {
			if name == "bench" {
				continue // it waits
			}
			byName[name] = append(byName[name], seconds*1e6/float64(events))
		}
	}
	out := map[string]float64{}
	for name, values := range byName {
		out[name] = median(values)
	}
	return out
}

// meanPayload is the size of an event of the backlog.
func meanPayload(n int) int {
	size := 0
	for i := range n {
		size += proto.Size(dayAtAuth(i))
	}
	return size / n
}

func each[T any](all []T, value func(T) float64) []float64 {
	out := make([]float64, len(all))
	for i, v := range all {
		out[i] = value(v)
	}
	return out
}

// median returns the middle value, or the mean of the two in the middle; 0 of nothing.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// medianRatio returns the median over turns of a turn's ratio: what else the machine did meanwhile, both felt.
func medianRatio(of, to []float64) float64 {
	ratios := make([]float64, 0, len(of))
	for i := range of {
		ratios = append(ratios, of[i]/to[i])
	}
	return median(ratios)
}

// percentile returns the smallest value that p percent of all do not exceed; 0 of nothing.
func percentile(values []time.Duration, p int) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max((len(sorted)*p+99)/100, 1)-1]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
