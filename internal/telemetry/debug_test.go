// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// serve runs a debug server with checks until the test ends and returns its address and its stop.
func serve(t *testing.T, logger *slog.Logger, checks ...Check) (addr string, stop func() error) {
	t.Helper()
	s, err := NewDebugServer(DebugConfig{Addr: "127.0.0.1:0", Registry: setup(t, Config{}).Registry, Logger: logger, Checks: checks})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-result })
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return s.Addr(), stop
}

func get(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func ok(context.Context) error     { return nil }
func failed(context.Context) error { return errors.New("dial postgres://u:hunter2@h: refused") }

func TestReadiness(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	hanging := Check{Name: "h", Probe: func(context.Context) error { <-hang; return nil }, Timeout: 20 * time.Millisecond}
	late := Check{Name: "l", Probe: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, Timeout: 20 * time.Millisecond}
	panics := Check{Name: "p", Probe: func(context.Context) error { panic("boom") }}
	for name, tc := range map[string]struct {
		checks []Check
		code   int
		want   map[string]status
	}{
		"nothing to check":      {nil, 200, map[string]status{}},
		"all is well":           {[]Check{{Name: "db", Probe: ok}, {Name: "keys", Probe: ok}}, 200, map[string]status{"db": "ok", "keys": "ok"}},
		"one failed":            {[]Check{{Name: "db", Probe: failed}, {Name: "keys", Probe: ok}}, 503, map[string]status{"db": "failed", "keys": "ok"}},
		"the broker is away":    {[]Check{{Name: "db", Probe: ok}, {Name: "redis", Probe: failed, Informational: true}}, 200, map[string]status{"db": "ok", "redis": "failed"}},
		"no answer is not ok":   {[]Check{hanging}, 503, map[string]status{"h": "unknown"}},
		"out of time is not ok": {[]Check{late}, 503, map[string]status{"l": "unknown"}},
		"a panic is not ok":     {[]Check{panics}, 503, map[string]status{"p": "unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, _ := serve(t, nil, tc.checks...)
			for range 2 { // the second request meets a probe that still hangs
				code, body := get(t, addr, "/readyz")
				var answer readyAnswer
				if err := json.Unmarshal([]byte(body), &answer); err != nil {
					t.Fatal(err)
				}
				got := map[string]status{}
				for _, c := range answer.Checks {
					got[c.Name] = c.Status
				}
				if diff := cmp.Diff(tc.want, got); code != tc.code || answer.Ready != (tc.code == 200) || diff != "" {
					t.Errorf("%d %s %s", code, body, diff)
				}
				if strings.Contains(body, "hunter2") {
					t.Errorf("the answer shows an error's text: %s", body)
				}
				if err := CheckReady(t.Context(), addr); (err == nil) != (tc.code == 200) {
					t.Errorf("CheckReady: %v", err)
				}
			}
			if code, body := get(t, addr, "/healthz"); code != 200 || !strings.Contains(body, "ok") {
				t.Errorf("liveness depends on readiness: %d %s", code, body)
			}
			if code, body := get(t, addr, "/metrics"); code != 200 || !strings.Contains(body, "go_goroutines") {
				t.Errorf("metrics: %d", code)
			}
		})
	}
}

// Requests at the same time share one probe and its answer.
func TestProbesAreShared(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int32
	enter, leave := make(chan struct{}, 100), make(chan struct{})
	addr, _ := serve(t, nil, Check{Name: "db", Timeout: time.Minute, Probe: func(ctx context.Context) error {
		most.Store(max(most.Load(), running.Add(1)))
		defer running.Add(-1)
		enter <- struct{}{}
		select {
		case <-leave:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}})
	impatient, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- CheckReady(impatient, addr) }()
	<-enter
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := CheckReady(t.Context(), addr); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	if err := <-gone; err == nil {
		t.Error("a cancelled check is ready")
	}
	close(leave)
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d probes at once", most.Load())
	}
}

func TestAProbeOutlivesTheClientThatAskedFirst(t *testing.T) {
	t.Parallel()
	enter, leave := make(chan context.Context, 1), make(chan struct{})
	c := &checkState{Check: Check{Name: "db", Timeout: time.Minute, Probe: func(ctx context.Context) error {
		enter <- ctx
		<-leave
		return ctx.Err()
	}}}
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan status, 1)
	go func() {
		now, _ := c.probe(ctx)
		answer <- now
	}()
	probing := <-enter
	cancel()
	if probing.Err() != nil {
		t.Error("the probe's context ended with the client's")
	}
	close(leave)
	if got := <-answer; got != statusOK {
		t.Errorf("got %s", got)
	}
}

func TestChangesOfReadinessAreLoggedOnce(t *testing.T) {
	t.Parallel()
	var out logs
	var down atomic.Bool
	addr, _ := serve(t, slog.New(slog.NewJSONHandler(&out, nil)), Check{Name: "db", Probe: func(ctx context.Context) error {
		if down.Load() {
			return errors.New("refused")
		}
		return nil
	}})
	for range 3 {
		get(t, addr, "/readyz")
	}
	down.Store(true)
	for range 3 {
		get(t, addr, "/readyz")
	}
	if n := strings.Count(out.String(), "readiness changed"); n != 2 || !strings.Contains(out.String(), "refused") {
		t.Errorf("%d changes logged: %s", n, out.String())
	}
}

func TestDebugServerStops(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	addr, stop := serve(t, nil, Check{Name: "h", Probe: func(context.Context) error { <-hang; return nil }, Timeout: time.Minute})
	go CheckReady(t.Context(), addr) //nolint:errcheck // it is cut off
	began := time.Now()
	if err := stop(); err != nil || time.Since(began) > 4*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if err := CheckReady(t.Context(), addr); err == nil {
		t.Error("a server that has stopped is ready")
	}
}

func TestNewDebugServerRefuses(t *testing.T) {
	t.Parallel()
	registry := setup(t, Config{}).Registry
	for name, cfg := range map[string]DebugConfig{
		"no registry": {Addr: "127.0.0.1:0"}, "bad address": {Addr: "nowhere:nope", Registry: registry},
		"check without a name":  {Addr: "127.0.0.1:0", Registry: registry, Checks: []Check{{Probe: ok}}},
		"check without a probe": {Addr: "127.0.0.1:0", Registry: registry, Checks: []Check{{Name: "x"}}},
	} {
		if _, err := NewDebugServer(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCheckReadyAddresses(t *testing.T) {
	t.Parallel()
	addr, _ := serve(t, nil)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, spelled := range []string{addr, ":" + port, "0.0.0.0:" + port, "[::]:" + port, "localhost:" + port} {
		if err := CheckReady(t.Context(), spelled); err != nil {
			t.Errorf("%s: %v", spelled, err)
		}
	}
	for _, wrong := range []string{"", "no port", "127.0.0.1:1"} {
		if err := CheckReady(t.Context(), wrong); err == nil {
			t.Errorf("%q is ready", wrong)
		}
	}
}
