// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// built remembers what this process has built: tests start many systems, and the source does not change meanwhile.
var built struct {
	sync.Mutex
	folders map[string]string // by tags and packages
}

// build builds the services, cmd/migrate and, if asked for, the operator's CLI into .dev/bin of the repository. The folder
// is one for all runs with the same tags; go build leaves alone what is current.
func (s *System) build(ctx context.Context) error {
	built.Lock()
	defer built.Unlock()
	packages := []string{"./cmd/migrate", "./services/..."}
	if s.opts.CLI {
		packages = append(packages, "./cmd/counterfoil")
	}
	key := fmt.Sprint(s.opts.BuildTags, packages)
	if dir, done := built.folders[key]; done {
		s.bin = dir
		return nil
	}
	root, err := repository()
	if err != nil {
		return err
	}
	name := "plain"
	if s.opts.BuildTags != "" {
		name = strings.ReplaceAll(s.opts.BuildTags, ",", "-")
	}
	dir := filepath.Join(root, ".dev", "bin", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make binary folder: %w", err)
	}
	unlock, err := lockFile(filepath.Join(dir, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	args := append([]string{"build", "-buildvcs=false", "-tags", s.opts.BuildTags, "-o", dir + "/"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, lastLines(out, 20))
	}
	if built.folders == nil {
		built.folders = map[string]string{}
	}
	built.folders[key] = dir
	s.bin = dir
	return nil
}

// lockFile waits until no other process holds the file.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close() // the lock failed, and that is what is told
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}
