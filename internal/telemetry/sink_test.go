// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"
)

// blockedLog takes nothing until it is opened.
type blockedLog struct {
	logs
	open chan struct{}
}

func (l *blockedLog) Write(p []byte) (int, error) {
	<-l.open
	return l.logs.Write(p)
}

// within fails the test unless do returns in time.
func within(t *testing.T, limit time.Duration, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s took longer than %v", what, limit)
	}
}

// U13: a log that takes nothing holds nobody up and fills no memory. What it takes in the end is in order, and says what is
// missing; what was dropped is counted meanwhile.
func TestABlockedLogHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	out := &blockedLog{open: make(chan struct{})}
	tel := setup(t, Config{Stderr: out})
	const lines = 20_000
	text := strings.Repeat("x", 200)
	within(t, 10*time.Second, "20 000 lines into a blocked log", func() {
		for i := range lines {
			tel.Logger.InfoContext(t.Context(), "line", slog.Int("n", i), slog.String("text", text))
		}
	})
	if got := scrape(t, tel); !strings.Contains(got, `telemetry_failures_total{`) || !strings.Contains(got, `what="log"`) {
		t.Error("dropped lines are not counted")
	}
	within(t, 6*time.Second, "a shutdown with a blocked log", func() {
		if err := tel.Shutdown(t.Context()); err == nil {
			t.Error("the shutdown does not say that lines are not written")
		}
	})

	close(out.open)
	type line struct {
		Message string `json:"msg"`
		N       int
		Lines   int
	}
	var last line
	within(t, 10*time.Second, "writing what waited", func() {
		for last.Message != "log lines were dropped" {
			<-time.After(time.Millisecond)
			text := strings.TrimSpace(out.String())
			_ = json.Unmarshal([]byte(text[strings.LastIndex(text, "\n")+1:]), &last) // half a line is not there yet
		}
	})
	written := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last.Lines+len(written)-1 != lines || len(written) < 1000 || len(out.String()) > 2*sinkBytes {
		t.Errorf("%d lines of %d bytes are written and %d said to be missing, of %d", len(written)-1, len(out.String()), last.Lines, lines)
	}
	for i, text := range written[:len(written)-1] {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil || l.N != i {
			t.Fatalf("line %d is %s", i, text)
		}
	}

	tel.Logger.InfoContext(t.Context(), "line", slog.Int("n", lines))
	if !strings.Contains(out.String(), `"n":`+strconv.Itoa(lines)) {
		t.Error("a log that works again is not written to at once")
	}
}

// A log that works has each line before its caller goes on: what a process said before it died is there.
func TestAWorkingLogIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer // unguarded: the race detector sees a line that is written later
	to := &sink{to: &out, wait: time.Minute}
	for i := range 1000 {
		line := strconv.Itoa(i) + "\n"
		if n, err := to.Write([]byte(line)); n != len(line) || err != nil || !strings.HasSuffix(out.String(), line) {
			t.Fatalf("line %d is not there yet: %d, %v", i, n, err)
		}
	}
}
