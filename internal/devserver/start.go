// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// errPortTaken says that a server could not listen on its port.
var errPortTaken = errors.New("port is taken")

// startOnPort calls start, which listens on *port. A port of 0 is replaced by a free one, and by another if somebody
// was faster; a port that was set before is kept, and tried again for some seconds.
func startOnPort(port *int, start func() error) error {
	fixed := *port != 0
	var err error
	for range 20 {
		if !fixed {
			if *port, err = FreePort(); err != nil {
				return err
			}
		}
		if err = start(); !errors.Is(err, errPortTaken) {
			break
		}
		if fixed {
			time.Sleep(250 * time.Millisecond)
		}
	}
	if err != nil && !fixed {
		*port = 0
	}
	return err
}

// waitReady asks until the server answers, has ended, or ctx or the patience has.
func waitReady(ctx context.Context, p *process, answers func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w", errors.Join(ctx.Err(), err))
		case <-pause.C:
		}
	}
}

// environment is what servers inherit: enough to find programs, nothing that changes their behaviour.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}

// fileSize returns 0 for a file that is not there.
func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSince reads what a log gained since offset.
func logSince(path string, offset int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // only read
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil
	}
	log, err := io.ReadAll(f)
	if err != nil {
		return nil
	}
	return log
}
