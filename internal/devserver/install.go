// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// policyPath is the file that Debian's package scripts ask before they start a service.
const policyPath = "/usr/sbin/policy-rc.d"

// install brings Debian packages. It is the only place of the project that does. It needs root and apt-get, works for
// one process at a time, and does nothing if present says that another process was faster. The services in the packages are
// not started: a server of ours is private and ends with us.
func install(ctx context.Context, packages []string, present func() bool) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return errors.New("this is not a Debian system")
	}
	if os.Geteuid() != 0 {
		return errors.New("not running as root")
	}

	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "counterfoil-apt.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open install lock: %w", err)
	}
	defer lock.Close() //nolint:errcheck // closing a lock file only releases it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("take install lock: %w", err)
	}
	if present() {
		return nil
	}

	fmt.Fprintf(os.Stderr, "devserver: installing %v with apt-get\n", packages)
	restore, err := forbidServices()
	if err != nil {
		return err
	}
	defer restore()
	if err := aptGet(ctx, apt, "update"); err != nil {
		return err
	}
	return aptGet(ctx, apt, append([]string{"install", "-y", "--no-install-recommends"}, packages...)...)
}

// aptGet runs one apt-get command, waiting up to 5 minutes for another one's lock. Its output is shown only in the
// error.
func aptGet(ctx context.Context, apt string, args ...string) error {
	cmd := exec.CommandContext(ctx, apt, append([]string{"-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, lastLines(out.Bytes(), 5))
	}
	return nil
}

// forbidServices keeps package scripts from starting services until restore is called. A policy that the machine
// has already is left alone.
func forbidServices() (restore func(), err error) {
	f, err := os.OpenFile(policyPath, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("forbid services: %w", err)
	}
	_, err = f.WriteString("#!/bin/sh\nexit 101\n")
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(policyPath)
		return nil, fmt.Errorf("forbid services: %w", err)
	}
	dismiss, err := onExit("rm -f " + policyPath)
	if err != nil {
		_ = os.Remove(policyPath)
		return nil, err
	}
	return func() { dismiss(); _ = os.Remove(policyPath) }, nil
}

// lastLines returns the end of a program's output.
func lastLines(out []byte, n int) []byte {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}
