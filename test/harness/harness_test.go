// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// envVictim makes the test binary a process that starts a system, prints what it started, and waits to be killed.
const envVictim = "HARNESS_TEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" {
		os.Exit(victim())
	}
	os.Exit(m.Run())
}

func victim() int {
	s, err := harness.Start(context.Background(), authOnly())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = s.Service("auth", 0).Pause() // a frozen service must go, too
	fmt.Println(s.Dir, s.Service("auth", 0).PID(), s.Redis.PID(), s.Postgres("auth").PID())
	select {}
}

// authOnly is the smallest system that serves anything.
func authOnly() harness.Options {
	return harness.Options{Replicas: map[string]int{"auth": 1, "app": 0, "admin": 0}}
}

// A whole system starts, its first operator logs in, the events arrive, and the oracle agrees.
func TestSystemStartsAndEnds(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Log: t.Logf, Clusters: true, Replicas: map[string]int{"app": 2}})
	if _, err := s.AsOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.Postgres("auth").Port() == s.Postgres("admin").Port() {
		t.Error("one server for two databases")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := s.WaitQuiet(ctx); err != nil {
		t.Fatal(err)
	}
	report := s.Require(t)
	if report.Events < 6 || report.Recorded != report.Events { // user, policy, three roles, login
		t.Errorf("report: %+v", report)
	}
}

// A service can be killed, frozen, stopped and started again on the same address, with other variables.
func TestServiceLife(t *testing.T) {
	t.Parallel()
	s := harness.New(t, authOnly())
	auth := s.Service("auth", 0)
	login := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := s.Login(ctx, s.Operator)
		return err
	}
	addr, first := auth.Addr(), auth.PID()
	if err := login(); err != nil {
		t.Fatal(err)
	}

	auth.Kill()
	if auth.Running() || login() == nil {
		t.Error("killed, and yet it answers")
	}
	if err := auth.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if auth.Addr() != addr || auth.PID() == first {
		t.Errorf("after a restart: %s, process %d", auth.Addr(), auth.PID())
	}
	harness.Eventually(t, 10*time.Second, login)

	if err := auth.Pause(); err != nil {
		t.Fatal(err)
	}
	if login() == nil {
		t.Error("frozen, and yet it answers")
	}
	if err := auth.Resume(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 10*time.Second, login)

	if err := auth.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, err := auth.Wait(t.Context()); err != nil || code != 0 {
		t.Errorf("an orderly end with code %d, %v", code, err)
	}
	auth.Setenv("TIME_SCALE", "nonsense")
	if err := auth.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "TIME_SCALE") {
		t.Errorf("started with a wrong variable: %v", err)
	}
	auth.Setenv("TIME_SCALE", "")
	if err := auth.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 10*time.Second, login)
	if err := s.RestartPostgres(t.Context(), "auth"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 20*time.Second, login)
}

// A start that fails half way leaves nothing behind.
func TestFailedStartLeavesNothing(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Postgres and Redis")
	}
	opts := authOnly()
	opts.Dir = t.TempDir()
	opts.Env = map[string]string{"DATABASE_URL": "nonsense"}
	s, err := harness.Start(t.Context(), opts)
	if err == nil {
		_ = s.Close()
		t.Fatal("started with nonsense")
	}
	if !strings.Contains(err.Error(), "start the services") {
		t.Fatalf("failed elsewhere: %v", err)
	}
	out, err := exec.Command("pgrep", "-f", opts.Dir).Output()
	if len(out) > 0 {
		t.Errorf("processes left: %s (%v)", out, err)
	}
}

// Everything dies with the process that started it, however that ends.
func TestNothingOutlivesTheStarter(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs Postgres and Redis")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envVictim+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	fields := strings.Fields(line)
	harness.Eventually(t, 20*time.Second, func() error {
		if _, err := os.Stat(fields[0]); err == nil {
			return fmt.Errorf("%s is still there", fields[0])
		}
		for _, field := range fields[1:] {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			if state := processState(pid); state != "" && state != "Z" {
				return fmt.Errorf("process %d lives, in state %s", pid, state)
			}
		}
		return nil
	})
}

// processState is the letter that the kernel gives a process: Z has ended and waits for whoever adopted it to notice,
// which is not ours to hurry. It is empty if there is no such process.
func processState(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name before it may hold anything
	return rest[:1]
}
