// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// defaultCheckTimeout holds where a check names none.
const defaultCheckTimeout = 2 * time.Second

// Check is one condition of readiness.
type Check struct {
	// Name is shown at /readyz, such as "database".
	Name string
	// Probe returns nil if all is well. Its error is logged, not shown.
	Probe func(ctx context.Context) error
	// Timeout bounds Probe; default 2 s. A probe that has not answered by then is unknown, which is not ok.
	Timeout time.Duration
	// Informational checks are shown and logged but do not make the service unready: a broker that is away, for a
	// service that works without it.
	Informational bool
}

// status of a check.
type status string

const (
	statusOK      status = "ok"
	statusFailed  status = "failed"
	statusUnknown status = "unknown"
)

// readiness answers /readyz. A probe runs at most once at a time and those who ask meanwhile share its answer, so that
// one that hangs costs one goroutine.
type readiness struct {
	logger *slog.Logger
	checks []*checkState
}

type checkState struct {
	Check
	mu      sync.Mutex
	current *probing // nil while no probe runs
	last    status
}

// probing is one run of a probe; its result may be read once done is closed.
type probing struct {
	done   chan struct{}
	status status
	err    error
}

type readyAnswer struct {
	Ready  bool          `json:"ready"`
	Checks []checkAnswer `json:"checks"`
}

type checkAnswer struct {
	Name          string `json:"name"`
	Status        status `json:"status"`
	Informational bool   `json:"informational,omitempty"`
}

func (a readyAnswer) summary() string {
	var bad []string
	for _, c := range a.Checks {
		if c.Status != statusOK && !c.Informational {
			bad = append(bad, c.Name+" "+string(c.Status))
		}
	}
	if len(bad) == 0 {
		return "no reason given"
	}
	return strings.Join(bad, ", ")
}

func newReadiness(logger *slog.Logger, checks []Check) (*readiness, error) {
	r := &readiness{logger: logger}
	for _, c := range checks {
		if c.Name == "" || c.Probe == nil {
			return nil, errors.New("a check needs a name and a probe")
		}
		if c.Timeout <= 0 {
			c.Timeout = defaultCheckTimeout
		}
		r.checks = append(r.checks, &checkState{Check: c})
	}
	return r, nil
}

// ServeHTTP asks all checks at once and waits for the slowest, or its time-out.
func (r *readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	answer := readyAnswer{Ready: true, Checks: make([]checkAnswer, len(r.checks))}
	var wg sync.WaitGroup
	for i, c := range r.checks {
		wg.Go(func() {
			answer.Checks[i] = checkAnswer{Name: c.Name, Status: r.ask(req.Context(), c), Informational: c.Informational}
		})
	}
	wg.Wait()
	for _, c := range answer.Checks {
		answer.Ready = answer.Ready && (c.Status == statusOK || c.Informational)
	}
	code := http.StatusOK
	if !answer.Ready {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, answer)
}

// ask runs one probe and logs a change of its status.
func (r *readiness) ask(ctx context.Context, c *checkState) status {
	now, err := c.probe(ctx)
	c.mu.Lock()
	changed := c.last != now
	c.last = now
	c.mu.Unlock()
	if !changed {
		return now
	}
	attrs := []slog.Attr{slog.String("check", c.Name), slog.String("status", string(now))}
	level := slog.LevelInfo
	if err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	r.logger.LogAttrs(ctx, level, "readiness changed", attrs...)
	return now
}

// probe returns the answer of the run in progress, or of a new one.
func (c *checkState) probe(ctx context.Context) (status, error) {
	c.mu.Lock()
	run := c.current
	if run == nil {
		run = &probing{done: make(chan struct{})}
		c.current = run
		go c.run(context.WithoutCancel(ctx), run) // whoever asked first may go away
	}
	c.mu.Unlock()
	timer := time.NewTimer(c.Timeout)
	defer timer.Stop()
	select {
	case <-run.done:
		return run.status, run.err
	case <-timer.C:
		return statusUnknown, fmt.Errorf("no answer within %s", c.Timeout)
	}
}

func (c *checkState) run(ctx context.Context, run *probing) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			run.status, run.err = statusUnknown, fmt.Errorf("the probe panicked: %v", p)
		}
		c.mu.Lock()
		c.current = nil
		c.mu.Unlock()
		close(run.done)
	}()
	switch err := c.Probe(ctx); {
	case err == nil:
		run.status = statusOK
	case ctx.Err() != nil:
		run.status, run.err = statusUnknown, err // out of time: nothing is known
	default:
		run.status, run.err = statusFailed, err
	}
}
