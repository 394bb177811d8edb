// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/internal/telemetry"
)

// readyPatience bounds the wait for a service's first "ready".
const readyPatience = time.Minute

// Service is one replica of a service. It keeps its ports, log and environment over restarts. Its methods may be called
// from several goroutines; those that start and end it wait for each other.
type Service struct {
	// Name is auth, app or admin; Replica counts from 0.
	Name    string
	Replica int

	system *System
	log    string

	mu      sync.Mutex
	env     map[string]string // set by Setenv
	program string            // set by SetProgram
	listen  string
	debug   string
	proc    *process
}

// newService prepares a replica; nothing runs yet.
func (s *System) newService(name string, replica int) *Service {
	return &Service{
		Name: name, Replica: replica, system: s, env: map[string]string{},
		log: filepath.Join(s.Dir, name+"-"+strconv.Itoa(replica)+".log"),
	}
}

// Setenv sets a variable for the next Start, such as one that arms a failpoint; an empty value takes it back.
func (s *Service) Setenv(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if value == "" {
		delete(s.env, name)
		return
	}
	s.env[name] = value
}

// SetProgram has the next Start run another build of the service, such as an older one; "" is the built one again.
func (s *Service) SetProgram(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.program = path
}

// Start runs the service and returns when it says that it is ready. The first start picks free ports.
func (s *Service) Start(ctx context.Context) error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.WaitReady(ctx)
}

// Launch runs the service and does not wait: for one that is expected to end or to become ready much later.
func (s *Service) Launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc.running() {
		return fmt.Errorf("start %s: it is running", s)
	}
	if s.listen == "" {
		if err := s.pickPorts(); err != nil {
			return err
		}
	}
	env := s.system.environment(s.Name, s.Replica, s.listen, s.debug)
	maps.Copy(env, s.env)
	program := s.program
	if program == "" {
		program = s.system.Bin(s.Name)
	}
	proc, err := start(program, s.log, env)
	if err != nil {
		return err
	}
	s.proc = proc
	return nil
}

// pickPorts chooses free ports.
func (s *Service) pickPorts() error {
	for _, addr := range []*string{&s.listen, &s.debug} {
		port, err := devserver.FreePort()
		if err != nil {
			return fmt.Errorf("find a port for %s: %w", s, err)
		}
		*addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	return nil
}

// WaitReady waits until the service says that it is ready, at most a minute. An error holds the end of its log.
func (s *Service) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	s.mu.Lock()
	proc, debug := s.proc, s.debug
	s.mu.Unlock()
	for {
		err := telemetry.CheckReady(ctx, debug)
		if err == nil {
			return nil
		}
		select {
		case <-proc.done:
			return fmt.Errorf("%s ended before it was ready (%s):\n%s", s, proc.cmd.ProcessState, s.LogTail(20))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", s, errors.Join(ctx.Err(), err), s.LogTail(20))
		case <-tick.C:
		}
	}
}

// Stop ends the service in order (SIGTERM) and waits for it. One that does not end within 30 s, or by the end of ctx, is
// killed, and an error returned. On a service that does not run it does nothing.
func (s *Service) Stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.stop(ctx)
}

// Kill ends the service with SIGKILL and waits until it is gone.
func (s *Service) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
}

// Pause freezes the service (SIGSTOP): its connections stay open and it does nothing.
func (s *Service) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.signal(syscall.SIGSTOP)
}

// Resume lets a frozen service go on.
func (s *Service) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.signal(syscall.SIGCONT)
}

// Wait waits until the service has ended by itself, as at a failpoint, and returns its exit code, which is -1 if a signal
// ended it.
func (s *Service) Wait(ctx context.Context) (int, error) {
	s.mu.Lock()
	proc := s.proc
	s.mu.Unlock()
	if proc == nil {
		return 0, fmt.Errorf("wait for %s: it was never started", s)
	}
	select {
	case <-proc.done:
		return proc.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the end of %s: %w", s, ctx.Err())
	}
}

// Running tells whether the process exists, frozen or not.
func (s *Service) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.running()
}

// PID returns the process id of the last run, or 0.
func (s *Service) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Addr returns where gRPC is served.
func (s *Service) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listen
}

// DebugAddr returns where /metrics, /healthz and /readyz are served.
func (s *Service) DebugAddr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.debug
}

// LogPath returns the file that holds the output of all runs.
func (s *Service) LogPath() string { return s.log }

// LogTail returns the last lines of the log.
func (s *Service) LogTail(lines int) string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(lastLines(text, lines)))
}

// String returns the replica's name, such as auth-0.
func (s *Service) String() string { return s.Name + "-" + strconv.Itoa(s.Replica) }
