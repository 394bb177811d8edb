// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/pkg/audit"
)

func TestTheBacklogHoldsEventsThatAreRecorded(t *testing.T) {
	t.Parallel()
	types := map[string]int{}
	for n := range 1000 {
		e := dayAtAuth(n)
		if err := audit.Check(e); err != nil {
			t.Fatalf("event %d: %v", n, err)
		}
		types[e.GetEventType()]++
	}
	want := map[string]int{
		"auth.login.succeeded.v1": 600, "auth.session.refreshed.v1": 199, "auth.session.ended.v1": 120, "auth.user.updated.v1": 50,
		"auth.login.failed.v1": 30, "auth.role.granted.v1": 1,
	}
	for name, n := range want {
		if types[name] != n {
			t.Errorf("%d of 1000 events are %s, want %d", types[name], name, n)
		}
	}
	if size := meanPayload(1000); size < 380 || size > 440 {
		t.Errorf("an event has %d bytes, want about 400 as the floor's", size)
	}
	e := projectCreated(uuid.New(), uuid.New(), "p-1")
	if err := audit.Check(e); err != nil {
		t.Error(err)
	}
	if size := proto.Size(e); size < 350 || size > 450 {
		t.Errorf("the business event has %d bytes, want about 400", size)
	}
}

func TestPercentileIsTheSmallestValueThatCoversEnough(t *testing.T) {
	t.Parallel()
	var values []time.Duration
	for n := 100; n > 0; n-- {
		values = append(values, time.Duration(n)*time.Millisecond)
	}
	for p, want := range map[int]float64{50: 50, 95: 95, 99: 99, 100: 100, 1: 1} {
		if got := percentile(values, p); milliseconds(got) != want {
			t.Errorf("p%d of 1 to 100 ms is %v", p, got)
		}
	}
	if got := percentile(values[:3], 99); got != 100*time.Millisecond {
		t.Errorf("p99 of three values is %v, want the largest", got)
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("p50 of nothing is %v", got)
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 100}, 3}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
	if got := medianRatio([]float64{90, 10, 80}, []float64{100, 10, 160}); got != 0.9 {
		t.Errorf("median ratio is %v, want 0.9", got)
	}
}

func TestTheLoadDoesNotWaitForSlowCalls(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	started := make(chan int, 100)
	call := func(_ context.Context, n int) error {
		started <- n
		if len(started) == 20 {
			close(release) // only now is any call answered
		}
		<-release
		if n == 7 {
			return errors.New("refused")
		}
		return nil
	}
	load := openLoop(t.Context(), 1000, 20*time.Millisecond, call)
	if len(load.answered) != 19 || load.failed != 1 || load.err == nil || len(load.late) != 20 {
		t.Fatalf("%d answered, %d failed (%v), %d left; want 19, 1 and 20", len(load.answered), load.failed, load.err, len(load.late))
	}
	if least := percentile(load.answered, 100); least < 18*time.Millisecond {
		t.Errorf("the first call took %v, counted from when it was to leave it waited for the last", least)
	}
}

func TestTheFloorsRateIsReadFromItsLastLine(t *testing.T) {
	t.Parallel()
	rate, err := floorRate("drain: 100000 events in 3.05s = 32800 events/s")
	if err != nil || rate != 32800 {
		t.Errorf("rate %v, %v", rate, err)
	}
	for _, line := range []string{"outbox COPY fill  100 /s", "panic: no database", "drain: 1 events in 0s = + events/s", ""} {
		if rate, err := floorRate(line); err == nil {
			t.Errorf("%q gives a rate of %v", line, rate)
		}
	}
}

func TestResultsHaveTheFormThatOthersRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bench.json")
	r := &results{
		Drain:   &drainResult{Events: 1, EventsPerSecond: 2, FloorEventsPerSecond: 4, RatioToFloor: 0.5},
		Latency: []latencyResult{{Rate: 200, P50: 1, P95: 2, P99: 3, Max: 4}},
		Business: newBusinessResult(
			map[string][]float64{"plain": {100}, "batch": {95}, "append": {72}, "row": {97}, "guarded": {90.25}},
			map[string][]time.Duration{"plain": {time.Millisecond}, "batch": {2 * time.Millisecond}},
			map[string][]float64{"plain": {10}, "batch": {12}}),
	}
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Drain    map[string]any
		Latency  []map[string]any
		Business map[string]any
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"events": 1, "events_per_second": 2, "floor_events_per_second": 4, "ratio_to_floor": 0.5} {
		if got.Drain[name] != want {
			t.Errorf("drain.%s is %v, want %v", name, got.Drain[name], want)
		}
	}
	for name, want := range map[string]float64{"rate": 200, "p50_ms": 1, "p95_ms": 2, "p99_ms": 3, "max_ms": 4} {
		if got.Latency[0][name] != want {
			t.Errorf("latency[0].%s is %v, want %v", name, got.Latency[0][name], want)
		}
	}
	for name, want := range map[string]float64{
		"plain_per_second": 100, "audited_per_second": 95, "ratio": 0.95, "ratio_append": 0.72, "ratio_row": 0.97, "ratio_guarded": 0.95, "audited_p99_ms": 2,
	} {
		if got.Business[name] != want {
			t.Errorf("business.%s is %v, want %v", name, got.Business[name], want)
		}
	}

	var table bytes.Buffer
	r.print(&table)
	for _, want := range []string{"ratio to the floor", "0.50", "200/s", "AppendBatch", "0.95", "0.72"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, table.String())
		}
	}
}

func TestProcessesAreWatched(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Log("no /proc here: nothing is watched")
		return
	}
	self := os.Getpid()
	if mb := peakMemory(self); mb < 1 || mb > 10_000 {
		t.Errorf("peak memory of this process is %v MB", mb)
	}
	before := cpuTime(self)
	deadline := time.Now().Add(10 * time.Second)
	for cpuTime(self) < before+3*clockTick && time.Now().Before(deadline) {
		percentile(make([]time.Duration, 10_000), 50)
	}
	if used := cpuTime(self) - before; used < 3*clockTick || used > time.Minute {
		t.Errorf("CPU of work that went on was %v", used)
	}
}
