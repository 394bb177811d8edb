// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lock waits until no other process holds the lock of that name. It ends with the process, however that ends. The file
// stays: removing it would let two processes hold two files of one name.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("lock login: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock login: %w", err)
	}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil //nolint:errcheck // nothing was written
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close() //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("lock login: %w", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			file.Close() //nolint:errcheck // nothing was written
			return nil, fmt.Errorf("lock login: %w", ctx.Err())
		}
	}
}
