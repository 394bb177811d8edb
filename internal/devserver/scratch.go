// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// Scratch is a temporary directory that is deleted when this process ends, however it ends.
type Scratch struct {
	// Dir is its path. Every user may pass through it, so that a server under another user reaches its data.
	Dir string

	close func() error
}

// NewScratch makes a directory below the system's temporary directory; name becomes part of its path.
// Close deletes it; where Close is not reached (a test binary ends without telling, a panic, SIGKILL) a small
// shell deletes it soon after this process ended.
func NewScratch(name string) (*Scratch, error) {
	dir, err := os.MkdirTemp("", "counterfoil-"+name+"-")
	if err != nil {
		return nil, fmt.Errorf("make scratch directory: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, fmt.Errorf("open scratch directory: %w", err)
	}
	// Servers that die with us may still write for a moment: delete until it stays deleted.
	quoted := "'" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
	dismiss, err := onExit("for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf " + quoted + "; sleep 0.2; [ -e " + quoted + " ] || exit 0; done")
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &Scratch{Dir: dir, close: sync.OnceValue(func() error {
		dismiss()
		return os.RemoveAll(dir)
	})}, nil
}

// Close deletes the directory. Servers in it must have been stopped. A second call does nothing.
func (s *Scratch) Close() error {
	return s.close()
}
