// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

const (
	// sinkWait is how long a line may hold its caller up.
	sinkWait = 250 * time.Millisecond
	// sinkBytes bounds the lines that wait.
	sinkBytes = 1 << 20
)

// sink is where log lines go, so that a log that takes nothing (a full disk, a pipe that nobody reads) stops no work (U13).
// A line is written before its caller goes on, so that what a process said last is there when it dies. Where that takes
// longer than wait, lines wait instead, in order, up to sinkBytes; further ones are dropped and counted.
type sink struct {
	to      io.Writer
	wait    time.Duration
	dropped func(lines int) // writes to to that so many lines are missing
	count   func()          // counts one of them

	mu      sync.Mutex
	queue   [][]byte
	size    int           // bytes in queue
	missing int           // dropped since the last line that was written
	slow    bool          // nobody waits for a line
	idle    chan struct{} // closed once the queue is written; nil if nothing is being written
}

// Write implements io.Writer. It never fails: nobody could be told.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	if s.size+len(line) > sinkBytes {
		s.missing++
		s.mu.Unlock()
		s.count()
		return len(line), nil
	}
	s.queue = append(s.queue, bytes.Clone(line)) // the caller uses its bytes again
	s.size += len(line)
	if s.idle == nil {
		s.idle = make(chan struct{})
		go s.drain(s.idle)
	}
	idle, slow := s.idle, s.slow
	s.mu.Unlock()
	if slow {
		return len(line), nil
	}
	timer := time.NewTimer(s.wait)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		s.mu.Lock()
		s.slow = s.idle == idle
		s.mu.Unlock()
	}
	return len(line), nil
}

// drain writes what waits, and ends. There is at most one at a time.
func (s *sink) drain(idle chan struct{}) {
	defer close(idle)
	quick := true // the last line
	for {
		s.mu.Lock()
		if len(s.queue) == 0 && s.missing == 0 {
			s.idle, s.slow = nil, s.slow && !quick
			s.mu.Unlock()
			return
		}
		var line []byte
		missing := 0
		if len(s.queue) > 0 {
			line = s.queue[0]
			s.queue = s.queue[1:]
			s.size -= len(line)
		} else {
			missing, s.missing = s.missing, 0
		}
		s.mu.Unlock()
		began := time.Now()
		if line != nil {
			_, _ = s.to.Write(line) // a log that fails has nowhere to say so
		} else {
			s.dropped(missing)
		}
		quick = time.Since(began) < s.wait
	}
}

// flush waits until everything is written, or ctx ends.
func (s *sink) flush(ctx context.Context) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return errors.New("the last log lines are not written")
	}
}
