// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	debugShutdownWait = 2 * time.Second
	debugReadWait     = 5 * time.Second
	debugWriteWait    = 30 * time.Second
	readyWait         = 5 * time.Second
)

// DebugConfig says what the debug server serves.
type DebugConfig struct {
	// Addr is host:port to listen on; port 0 takes a free one.
	Addr string
	// Registry is what /metrics shows.
	Registry *prometheus.Registry
	// Logger gets each change of a check's status; default: none.
	Logger *slog.Logger
	// Checks are what /readyz asks.
	Checks []Check
}

// DebugServer serves /metrics (Prometheus), /healthz (the process is up: always 200) and /readyz (200 if every check is
// ok, 503 otherwise, and the status of each as JSON). It is plain HTTP without authentication: it belongs on loopback
// or an inner network.
type DebugServer struct {
	listener net.Listener
	server   *http.Server
}

// NewDebugServer listens, so that Addr is known before Run.
func NewDebugServer(cfg DebugConfig) (*DebugServer, error) {
	if cfg.Registry == nil {
		return nil, errors.New("debug server: no registry")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ready, err := newReadiness(cfg.Logger, cfg.Checks)
	if err != nil {
		return nil, fmt.Errorf("debug server: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("debug server: %w", err)
	}
	mux := http.NewServeMux()
	// A collector that fails must not take the other metrics with it.
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.Handle("GET /readyz", ready)
	return &DebugServer{listener: listener, server: &http.Server{
		Handler: mux, ReadHeaderTimeout: debugReadWait, ReadTimeout: debugReadWait, WriteTimeout: debugWriteWait,
	}}, nil
}

// Addr is where the server listens.
func (s *DebugServer) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx ends and then stops within 2 s; a stop is nil. Run may be called once.
func (s *DebugServer) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.server.Serve(s.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("debug server: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), debugShutdownWait)
	defer cancel()
	if err := s.server.Shutdown(stop); err != nil {
		_ = s.server.Close() // a scrape that hangs does not keep the process
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("debug server: %w", err)
	}
	return nil
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client went away: nobody is left to tell
}

// CheckReady asks the debug server at addr whether its service is ready: nil, or why not. It is the healthcheck
// subcommand of each binary, since an image from scratch has no other client. A host that is empty or unspecified
// (":8081", "0.0.0.0:8081") stands for loopback. It takes at most 5 s.
func CheckReady(ctx context.Context, addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("check readiness: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("check readiness: %w", err)
	}
	transport := &http.Transport{Proxy: nil, DisableKeepAlives: true} // loopback never goes through a proxy
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return fmt.Errorf("check readiness: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	var body readyAnswer
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return fmt.Errorf("check readiness: %s", resp.Status)
	}
	return fmt.Errorf("not ready: %s", body.summary())
}
