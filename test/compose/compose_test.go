// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package compose plays the demo against the system under Docker Compose. It starts a project of its own, on ports of
// its own and with secrets of its own, beside whatever `make up` runs, and removes it.
package compose

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/devserver"
)

// ports are the variables that move what compose.yaml publishes.
var ports = []string{
	"AUTH_PORT", "APP_PORT", "ADMIN_PORT", "AUTH_DEBUG_PORT", "APP_DEBUG_PORT", "ADMIN_DEBUG_PORT",
	"AUTH_DB_PORT", "APP_DB_PORT", "ADMIN_DB_PORT", "REDIS_PORT",
}

// TestDemoUnderCompose: up, the demo's day with its two crashes, up again over what runs, down; nothing is left.
func TestDemoUnderCompose(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds images and runs containers")
	}
	if err := exec.CommandContext(t.Context(), "docker", "info").Run(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no Docker engine answers, which CI=true demands: %v", err)
		}
		t.Skip("no Docker engine answers")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	env := environment(t)
	project := "counterfoil-test-" + strconv.Itoa(os.Getpid())
	env = append(env, "COMPOSE_PROJECT_NAME="+project)
	t.Cleanup(func() {
		run(context.WithoutCancel(t.Context()), t, root, env, "deploy/compose/down.sh")
		if left := output(context.WithoutCancel(t.Context()), t, "docker", "ps", "-aq", "--filter", "name="+project); left != "" {
			t.Errorf("containers are left: %s", left)
		}
	})

	run(t.Context(), t, root, env, "deploy/compose/up.sh")
	last := lastLine(run(t.Context(), t, root, env, "go", "run", "-buildvcs=false", "./test/demo", "-compose"))
	if !strings.HasPrefix(last, "demo: ok actions=") || !strings.HasSuffix(last, " missing=0 duplicates=0") {
		t.Errorf("the demo ended with %q", last)
	}
	again := run(t.Context(), t, root, env, "deploy/compose/up.sh")
	if !strings.Contains(again, "Counterfoil is up.") {
		t.Errorf("a second up ended with %q", lastLine(again))
	}
}

// environment gives every published port another number, and secrets a folder of their own.
func environment(t *testing.T) []string {
	t.Helper()
	env := append(os.Environ(), "SECRETS_DIR="+filepath.Join(t.TempDir(), "secrets"))
	taken := map[int]bool{}
	for _, name := range ports {
		port, err := devserver.FreePort()
		for err == nil && taken[port] {
			port, err = devserver.FreePort()
		}
		if err != nil {
			t.Fatal(err)
		}
		taken[port] = true
		env = append(env, name+"="+strconv.Itoa(port))
	}
	return env
}

// run runs a program of the tree and returns what it printed; all of it is shown if it fails.
func run(ctx context.Context, t *testing.T, dir string, env []string, program string, args ...string) string {
	t.Helper()
	begin := time.Now()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out.String())
	}
	t.Logf("%s %s: %.0f s", program, strings.Join(args, " "), time.Since(begin).Seconds())
	return out.String()
}

func output(ctx context.Context, t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		t.Errorf("%s: %v", program, err)
	}
	return strings.TrimSpace(string(out))
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
