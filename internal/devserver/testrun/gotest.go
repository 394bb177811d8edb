// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/counterfoil/counterfoil/internal/devserver"
)

// goTest runs the go command in a process group of its own and hands its output to rep. When ctx ends the group is
// interrupted, and killed 10 s later.
func goTest(ctx context.Context, args []string, race bool, postgres string, rep *report) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), devserver.EnvTestPostgres+"="+postgres)
	if race {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.SysProcAttr = groupAttributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("read go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start go test: %w", err)
	}
	dismiss, err := devserver.KillGroupOnExit(cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, cmd.Cancel(), cmd.Wait())
	}
	defer dismiss()
	readErr := rep.read(stdout)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return errors.New("tests failed")
	}
	return errors.Join(err, readErr)
}

// sweep waits until this process has no living descendants but the go command's own, kills those that are left
// after the patience, and names them. It also reaps those that ended: they became our children (adoptOrphans).
func sweep(self int, patience time.Duration) []string {
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	deadline := time.Now().Add(patience)
	for {
		living := descendants(self)
		if len(living) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			var names []string
			for pid, name := range living {
				_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it ended by itself
				names = append(names, strconv.Itoa(pid)+" "+name)
			}
			return names
		}
		<-ticks.C
	}
}

// descendants maps the living processes below pid to their command lines and reaps dead children of pid.
func descendants(self int) map[int]string {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil // not Linux
	}
	type process struct {
		parent int
		state  string
	}
	all := make(map[int]process)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it ended meanwhile
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			all[pid] = process{parent, fields[0]}
		}
	}
	living := make(map[int]string)
	for pid, p := range all {
		if p.state == "Z" || p.state == "X" {
			if p.parent == self {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // ECHILD: reaped already
			}
			continue
		}
		for q := p; q.parent > 0; q = all[q.parent] {
			if q.parent == self {
				if name := commandLine(pid); name != "" && !strings.HasPrefix(name, "go ") {
					living[pid] = name
				}
				break
			}
		}
	}
	return living
}

// commandLine returns the start of a process' command line, with the program's name alone.
func commandLine(pid int) string {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	line := strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
	program, rest, _ := strings.Cut(line, " ")
	line = program[strings.LastIndexByte(program, '/')+1:] + " " + rest
	if len(line) > 120 {
		line = line[:120] + "…"
	}
	return line
}
