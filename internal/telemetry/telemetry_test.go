// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// logs is a log that tests read.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func setup(t *testing.T, cfg Config) *Telemetry {
	t.Helper()
	if cfg.Service == "" {
		cfg.Service = "auth"
	}
	tel, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Shutdown(context.Background()) })
	return tel
}

func scrape(t *testing.T, tel *Telemetry) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(tel.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("scrape: %d %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestLoggerNamesServiceAndSpan(t *testing.T) {
	t.Parallel()
	var out logs
	tel := setup(t, Config{Version: "v1", Stderr: &out, Level: slog.LevelInfo})
	ctx, span := tel.Tracer("t").Start(t.Context(), "s")
	defer span.End()
	tel.Logger.With(slog.Int("a", 1)).InfoContext(ctx, "hello", slog.Int("b", 2))
	tel.Logger.WithGroup("g").InfoContext(t.Context(), "no span")
	tel.Logger.DebugContext(ctx, "below the level")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	var first, second map[string]any
	if err := errors.Join(json.Unmarshal([]byte(lines[0]), &first), json.Unmarshal([]byte(lines[1]), &second)); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"service": "auth", "version": "v1", "a": 1.0, "b": 2.0,
		"trace_id": span.SpanContext().TraceID().String(), "span_id": span.SpanContext().SpanID().String(),
	} {
		if first[key] != want {
			t.Errorf("%s is %v, want %v", key, first[key], want)
		}
	}
	if _, has := second["trace_id"]; has || second["service"] != "auth" {
		t.Errorf("without a span: %s", lines[1])
	}
}

func TestSetupRefuses(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{"no name": {}, "ratio": {Service: "x", SampleRatio: 2}, "negative": {Service: "x", SampleRatio: -1}} {
		if _, err := Setup(t.Context(), cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Two services in one process, as in tests, must not share or fight over anything.
func TestSetupTwiceInOneProcess(t *testing.T) {
	t.Parallel()
	a, b := setup(t, Config{Service: "a"}), setup(t, Config{Service: "b"})
	for _, tel := range []*Telemetry{a, b} {
		c, err := tel.Meter("x").Int64Counter("things")
		if err != nil {
			t.Fatal(err)
		}
		c.Add(t.Context(), 1)
	}
	if got := scrape(t, b); !strings.Contains(got, "things_total 1") || !strings.Contains(got, "go_goroutines") || !strings.Contains(got, `service_name="b"`) {
		t.Errorf("got %s", got)
	}
}

func TestSamplingKeepsTheCallersDecision(t *testing.T) {
	t.Parallel()
	tel := setup(t, Config{SampleRatio: 1e-12})
	_, span := tel.Tracer("t").Start(t.Context(), "new")
	if span.SpanContext().IsSampled() || !span.SpanContext().IsValid() {
		t.Error("a new trace must have ids and not be sampled")
	}
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true})
	_, child := tel.Tracer("t").Start(trace.ContextWithSpanContext(t.Context(), parent), "child")
	if !child.SpanContext().IsSampled() {
		t.Error("the caller's decision is lost")
	}
}

// A value that cannot be read is absent: not zero, not the earlier value, not half of a reading.
func TestGaugesThatCannotBeReadAreAbsent(t *testing.T) {
	t.Parallel()
	tel := setup(t, Config{})
	mode := "ok"
	err := tel.Gauges(func(ctx context.Context, observe Observe) error {
		observe("backlog", 3, attribute.String("status", "PENDING"))
		switch mode {
		case "fails":
			return errors.New("database is away")
		case "panics":
			panic("boom")
		case "hangs":
			<-ctx.Done()
			return ctx.Err()
		case "less":
			return nil
		}
		observe("oldest_age", 0)
		observe("nobody registered this", 1)
		return nil
	}, Gauge{Name: "backlog", Description: "Rows."}, Gauge{Name: "oldest_age", Unit: "s"})
	if err != nil {
		t.Fatal(err)
	}
	has := func(metric string) bool { return strings.Contains(scrape(t, tel), "\n"+metric) }
	if !has(`backlog{status="PENDING"} 3`) || !has("oldest_age_seconds 0") {
		t.Fatalf("got %s", scrape(t, tel))
	}
	for _, mode = range []string{"fails", "panics", "hangs"} {
		if has("backlog{") || has("oldest_age_seconds ") {
			t.Errorf("%s: a value is shown: %s", mode, scrape(t, tel))
		}
	}
	mode = "less"
	if !has("backlog{") || has("oldest_age_seconds ") {
		t.Errorf("a value that was not stated is shown: %s", scrape(t, tel))
	}
	if !has(`telemetry_failures_total{what="gauges:backlog"}`) {
		t.Error("failures are not counted")
	}
	if tel.Gauges(nil) == nil {
		t.Error("no gauge was accepted")
	}
}

// blackHole accepts connections and answers nothing.
func blackHole(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu    sync.Mutex
		conns []net.Conn
	)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return "http://" + l.Addr().String()
}

// BC-72: a collector that answers nothing costs neither time, nor memory, nor a shutdown.
func TestBlackHoledCollector(t *testing.T) {
	t.Parallel()
	var out logs
	tel := setup(t, Config{OTLPEndpoint: blackHole(t), Stderr: &out})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	for range 200_000 {
		_, span := tel.Tracer("t").Start(t.Context(), "s")
		span.End()
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("200 000 spans took %s", took)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	began = time.Now()
	err := tel.Shutdown(t.Context())
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("shutdown took %s", took)
	}
	if n := strings.Count(out.String(), "not being exported"); n > 1 {
		t.Errorf("%d log lines about one outage", n)
	}
	t.Logf("shutdown said: %v", err)
}

func TestShutdownNeedsNoLivingContextAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	tel := setup(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(tel.Shutdown(ctx), tel.Shutdown(ctx)); err != nil {
		t.Error(err)
	}
}
