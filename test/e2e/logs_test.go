// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// clog makes a service's log a pipe that is full and that nobody reads, until the end of the test.
func clog(t *testing.T, s *harness.Service) {
	t.Helper()
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := s.LogPath()
	if err := errors.Join(os.Rename(path, path+".before"), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	pipe, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK, 0) // both ends: opening it to write waits for nobody
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(pipe) })
	for chunk := make([]byte, 4096); len(chunk) > 0; {
		n, err := syscall.Write(pipe, chunk)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			chunk = chunk[:len(chunk)/2] // full but for less than a chunk
		case err != nil || n == 0:
			t.Fatal(n, err)
		}
	}
	// Once the service has it open, the log of before takes the pipe's place, for whoever reads what went wrong.
	if err := errors.Join(s.Launch(), os.Rename(path+".before", path)); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// (U13) Diagnostic logs may be lost, events may not: all three services run with logs that take not one byte, through an outage
// about which they have much to say. Calls succeed, and everything is recorded.
func TestLogsThatTakeNothing(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{TimeScale: 10, Env: map[string]string{"LOG_LEVEL": "DEBUG"}})
	var cancel context.CancelFunc
	o.ctx, cancel = context.WithTimeout(o.ctx, 2*time.Minute) // a service that hangs gives no answer
	t.Cleanup(cancel)
	for _, name := range harness.Services() {
		clog(t, o.system.Service(name, 0))
	}
	load := func() {
		t.Helper()
		out := o.load(200, 4, time.Millisecond)
		for _, err := range out.failed {
			t.Errorf("a call failed: %v", err)
		}
		if out.p99 > 2*time.Second {
			t.Errorf("p99 %v", out.p99)
		}
	}
	load()
	o.system.Redis.Kill()
	load()
	if err := o.system.Redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	load()
	report := o.quiet(t, 90*time.Second)
	if report.Recorded != report.Events || report.Events < 600 {
		t.Errorf("%+v", report)
	}
}
