// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/test/harness"
)

// buildWorker builds the consumer that misbehaves.
var buildWorker = sync.OnceValues(func() (string, error) {
	path := filepath.Join("..", "..", ".dev", "bin", "drill-worker")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", path, "./cmd/worker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the worker: %w: %s", err, out)
	}
	return path, nil
})

// worker is one run of that consumer.
type worker struct {
	out  bytes.Buffer // to be read after done
	done chan error   // how it ended
	stop func()       // closes its standard input
}

// startWorker runs it against Admin's database. It ends with the test at the latest.
func (d *drill) startWorker(t *testing.T, name string, env ...string) *worker {
	t.Helper()
	program, err := buildWorker()
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{done: make(chan error, 1)}
	cmd := exec.Command(program)
	cmd.Env = append(env, "WORKER="+name, "DATABASE_URL="+d.DB("admin").Config().ConnString(),
		"TIME_SCALE="+strconv.FormatFloat(d.scale, 'g', -1, 64))
	cmd.Stdout, cmd.Stderr = &w.out, &w.out
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		w.done <- cmd.Wait()
		close(ended)
	}()
	w.stop = func() { _ = input.Close() } // a second time it says that it is closed
	t.Cleanup(func() {
		w.stop()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
			t.Errorf("the worker %s did not end by itself", name)
		}
	})
	return w
}

// stage makes events of App's and lets Admin take them over and handle none. Then Admin is gone. It returns how many rows
// wait for the audit log.
func (d *drill) stage(t *testing.T, members int) int {
	t.Helper()
	project, err := d.createProject(d.ctx)
	if err != nil {
		t.Fatal(err)
	}
	d.quiet(t)
	lock, err := d.DB("admin").Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), "LOCK TABLE audit_logs IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	if err := d.importMembers(d.ctx, project, members); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, func() error {
		if n := get[int](t, d, "admin", waiting); n < members {
			return fmt.Errorf("%d of %d events are taken over", n, members)
		}
		return nil
	})
	d.Service("admin", 0).Kill()
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.exec(t, "admin", `UPDATE consumer_inbox SET state = 'PENDING', attempts = 0, next_retry_at = clock_timestamp(),
		lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL WHERE finished_at IS NULL`)
	return get[int](t, d, "admin", waiting)
}

const waiting = "SELECT count(*) FROM consumer_inbox WHERE consumer = 'audit-log' AND finished_at IS NULL"

// (T10, U53) One event ends the process whenever a handler meets it, in a batch of 100. Its neighbours are recorded, and it
// is DEAD, after no more starts than the limit; then a worker that lives has nothing left to do.
// It guards: starts are counted before the handler runs, durably, and what was started often runs alone.
func TestHandlerThatEndsTheProcess(t *testing.T) {
	t.Parallel()
	d := start(t, harness.Options{TimeScale: 30})
	const members = 100
	if n := d.stage(t, members); n != members {
		t.Fatalf("%d rows are staged, want %d", n, members)
	}
	poison := get[uuid.UUID](t, d, "admin", `
		SELECT event_id FROM consumer_inbox WHERE consumer = 'audit-log' AND finished_at IS NULL ORDER BY inbox_no OFFSET 41 LIMIT 1`)

	begin, restarts := time.Now(), 0
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for open := members; open > 0; {
		w := d.startWorker(t, "worker", "EXIT_ON="+poison.String())
		for ended := false; !ended && open > 0; {
			select {
			case err := <-w.done:
				if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 137 {
					t.Fatalf("the worker ended with %v: %s", err, w.out.String())
				}
				ended = true
				restarts++
			case <-ctx.Done():
				t.Fatalf("%d rows are open after %d restarts", open, restarts)
			case <-time.After(20 * time.Millisecond):
				open = get[int](t, d, "admin", waiting)
			}
		}
		w.stop()
	}
	t.Logf("%d ends of the process, %v", restarts, time.Since(begin))
	if restarts != 10 { // the default limit of starts
		t.Errorf("the event ended the process %d times, want 10", restarts)
	}
	state := get[string](t, d, "admin", "SELECT state || ' ' || last_error_code FROM consumer_inbox WHERE consumer = 'audit-log' AND event_id = $1", poison)
	if !strings.HasPrefix(state, "DEAD ") {
		t.Errorf("the event that ends the process is %s", state)
	}
	if err := d.Service("admin", 0).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if report := d.quiet(t); report.Dead != 1 || report.Recorded != report.Events-1 {
		t.Errorf("want one dead and all others recorded: %+v", report)
	}
}

// (U44) A batch whose handlers together outlast four leases is handled once, though a second worker waits for it.
// It guards: the heartbeat renews what a batch still holds, for as long as it works.
func TestBatchThatOutlastsFourLeases(t *testing.T) {
	t.Parallel()
	d := start(t, harness.Options{TimeScale: 10})
	const events = 14
	lease, take := d.scaled(30*time.Second), d.scaled(10*time.Second)
	if events*take < 4*lease {
		t.Fatal("the batch does not outlast four leases: the test does not test")
	}
	if n := d.stage(t, events); n != events {
		t.Fatalf("%d rows are staged, want %d", n, events)
	}
	first := d.startWorker(t, "first", "TAKE="+take.String())
	harness.Eventually(t, patience, func() error {
		if n := get[int](t, d, "admin", "SELECT count(*) FROM consumer_inbox WHERE lease_owner = 'first'"); n != events {
			return fmt.Errorf("the first worker holds %d rows", n)
		}
		return nil
	})
	begin := time.Now()
	second := d.startWorker(t, "second", "TAKE="+take.String())
	harness.Eventually(t, patience, func() error {
		if n := get[int](t, d, "admin", waiting); n > 0 {
			return fmt.Errorf("%d rows are open", n)
		}
		return nil
	})
	took := time.Since(begin)
	if took < 4*lease {
		t.Errorf("the batch took %v, less than four leases of %v: the test does not test", took, lease)
	}
	for _, w := range []*worker{first, second} {
		w.stop()
		if err := <-w.done; err != nil {
			t.Errorf("a worker ended with %v: %s", err, w.out.String())
		}
	}
	runs := map[string]int{}
	for line := range strings.Lines(first.out.String() + second.out.String()) {
		runs[line]++
	}
	for line, n := range runs {
		if n != 1 {
			t.Errorf("%d times %q", n, line)
		}
	}
	if len(runs) != events || second.out.Len() > 0 {
		t.Errorf("%d events ran, want %d; the second worker ran %q", len(runs), events, second.out.String())
	}
	t.Logf("the batch took %v, %.1f leases", took, took.Seconds()/lease.Seconds())
	if err := d.Service("admin", 0).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.allRecorded(t)
}
