// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is one run of a program whose output goes to a log.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was reaped
}

// start runs a program with exactly the environment given, plus PATH. It dies with this process.
func start(program, logPath string, env map[string]string, args ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	cmd := exec.Command(program, args...)
	cmd.Env = list(env)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes()

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel takes the thread that forked for the parent whose death is signalled: it must live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // ProcessState and the log tell how it ended
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	return p, nil
}

// running tells whether the process has not ended.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// signal sends a signal to a process that may have ended meanwhile.
func (p *process) signal(sig syscall.Signal) error {
	if !p.running() {
		return errors.New("not running")
	}
	if err := syscall.Kill(p.cmd.Process.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v: %w", sig, err)
	}
	return nil
}

// kill ends it with SIGKILL and waits until it is gone.
func (p *process) kill() {
	if p.running() {
		_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGKILL) // ESRCH: it ended by itself
		<-p.done
	}
}

// stop asks it to end and waits; after the patience, or when ctx ends, it is killed and an error returned.
func (p *process) stop(ctx context.Context) error {
	if !p.running() {
		return nil
	}
	_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGCONT) // a frozen process obeys nothing else
	_ = syscall.Kill(p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	case <-time.After(stopPatience):
	}
	p.kill()
	return fmt.Errorf("%s did not end in order and was killed", filepath.Base(p.cmd.Path))
}

// runProgram runs a program to its end. Its output is in the error if it fails.
func runProgram(ctx context.Context, program string, env map[string]string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = list(env)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", filepath.Base(program), args, err, lastLines(out.Bytes(), 10))
	}
	return nil
}

// list turns an environment into the form that exec takes.
func list(env map[string]string) []string {
	all := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TZ=UTC"}
	for name, value := range env {
		all = append(all, name+"="+value)
	}
	return all
}

// lastLines returns the end of a text.
func lastLines(text []byte, n int) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}
