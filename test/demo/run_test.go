// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/demo/scenario"
)

// screen is what the demo prints, readable meanwhile.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
	on   string // calls do once it is printed
	do   func()
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.do != nil && strings.Contains(string(p), s.on) {
		s.do()
		s.do = nil
	}
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// nothingLeft checks that no service of a run listens any more and that no database of it is left.
func nothingLeft(t *testing.T, printed string) {
	t.Helper()
	ports := regexp.MustCompile(`(?:auth|app|admin)-\d (127\.0\.0\.1:\d+)`).FindAllStringSubmatch(printed, -1)
	if len(ports) != 6 {
		t.Errorf("%d processes are named, want 6", len(ports))
	}
	for _, port := range ports {
		if conn, err := net.DialTimeout("tcp", port[1], time.Second); err == nil {
			_ = conn.Close()
			t.Errorf("%s is still served", port[0])
		}
	}
}

// The demo ends with its one line, the number of actions in it is at least what the day holds, and nothing is left.
func TestDemo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Postgres and Redis")
	}
	var out screen
	if err := run(t.Context(), false, 4, &out); err != nil {
		t.Fatalf("%s\n%v", out.String(), err) // a long text is read from its end
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	match := regexp.MustCompile(`^demo: ok actions=(\d+) recorded=(\d+) missing=0 duplicates=0$`).FindStringSubmatch(lines[len(lines)-1])
	if match == nil || match[1] != match[2] || len(match[1]) < 3 {
		t.Errorf("the last line is %q", lines[len(lines)-1])
	}
	for _, want := range []string{
		"app.member.added × 500", "auth.user.locked", "REFRESH_TOKEN_REUSED", "ETAG_MISMATCH", "PROJECT_ROLE_REQUIRED", "app.project.restored",
		"SIGKILL to admin-0", "SIGKILL to Redis", "repeated_login_failures", "the same in the outbox",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not printed", want)
		}
	}
	nothingLeft(t, out.String())
}

// Interrupted in the worst moment, with Redis killed and calls under way, it says so and leaves nothing running.
func TestInterruptedDemoLeavesNothing(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Postgres and Redis")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	out := screen{on: "SIGKILL to Redis", do: func() { cancel(errors.New("somebody pressed Ctrl-C")) }}
	err := run(ctx, false, 4, &out)
	if err == nil || !strings.Contains(err.Error(), "interrupted: somebody pressed Ctrl-C") {
		t.Errorf("ended with %v", err)
	}
	nothingLeft(t, out.String())
	logs := regexp.MustCompile(`(?m)^log: (.*)$`).FindAllStringSubmatch(out.String(), -1)
	if len(logs) < 8 { // six services, Postgres, Redis
		t.Errorf("%d logs are named", len(logs))
	}
	for _, log := range logs {
		if _, err := os.Stat(log[1]); err != nil {
			t.Errorf("the log is not there: %v", err)
		}
	}
	if len(logs) > 0 { // what a person would look into and then delete
		if err := os.RemoveAll(filepath.Dir(logs[0][1])); err != nil {
			t.Error(err)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := verdict(&out, nil); code != 0 || out.Len() > 0 {
		t.Errorf("of success: %d, %q", code, out.String())
	}
	if code := verdict(&out, errors.New("missing=1 [id]\naltered=1 [id]")); code != 1 || out.String() != "demo: FAILED missing=1 [id]; altered=1 [id]\n" {
		t.Errorf("of failure: %d, %q", code, out.String())
	}
}

func TestEnough(t *testing.T) {
	t.Parallel()
	step := func(background bool, action string, count int) scenario.Step {
		return scenario.Step{Background: background, Events: map[string]int{action: count}}
	}
	for name, c := range map[string]struct {
		steps []scenario.Step
		want  bool
	}{
		"forty over both":       {[]scenario.Step{step(false, "auth.a", 1), step(false, "app.b", 39)}, true},
		"one less":              {[]scenario.Step{step(false, "auth.a", 1), step(false, "app.b", 38)}, false},
		"one owner":             {[]scenario.Step{step(false, "app.b", 90)}, false},
		"the import is not it":  {[]scenario.Step{step(false, "auth.a", 1), step(false, "app.b", 500)}, false},
		"the traffic is not it": {[]scenario.Step{step(false, "auth.a", 1), step(true, "app.b", 60)}, false},
	} {
		if got := enough(c.steps) == nil; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestAddressesAreMovedByTheVariablesOfCompose(t *testing.T) {
	if got := address("admin db"); got != "127.0.0.1:7203" {
		t.Errorf("%s", got)
	}
	t.Setenv("ADMIN_DB_PORT", "17203")
	if got := address("admin db"); got != "127.0.0.1:17203" {
		t.Errorf("moved: %s", got)
	}
}
