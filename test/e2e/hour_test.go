// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// (BC-67) Redis and Admin are away for an hour, by the services' leases, backoffs and polls, under load: the owners need no more
// memory at its end than at its beginning, have said what is wrong a few times and not each time they met it, and everything is
// recorded afterwards. The roles' time-outs are not scaled: they are for people's patience, and the machine is not faster.
func TestAnHourWithoutRedisAndAdmin(t *testing.T) {
	t.Parallel()
	const hour, scale = time.Minute, "60"
	const lines, memory = 20, 32 << 20
	o := newOperator(t, harness.Options{Env: map[string]string{"TIME_SCALE": scale}})
	load := func(calls int) {
		t.Helper()
		for _, err := range o.load(calls, 4, 20*time.Millisecond).failed {
			t.Fatalf("a call failed: %v", err)
		}
	}
	load(400)
	o.system.Redis.Kill()
	o.system.Service("admin", 0).Kill()
	began := time.Now()
	load(400) // pages are claimed and put off, the circuit is open
	before := map[string]footprint{}
	for _, owner := range []string{"auth", "app"} {
		before[owner] = o.footprint(t, owner)
	}
	for time.Since(began) < hour {
		load(400)
	}
	for owner, then := range before {
		now := o.footprint(t, owner)
		t.Logf("%s: from %+v to %+v", owner, then, now)
		if now.memory > then.memory+memory {
			t.Errorf("%s grew from %.0f MiB to %.0f MiB in an hour without a broker", owner, then.memory/(1<<20), now.memory/(1<<20))
		}
		if said := now.lines - then.lines; said > lines {
			t.Errorf("%s wrote %d lines in an hour without a broker, the last of them:\n%s", owner, said, o.system.Service(owner, 0).LogTail(5))
		}
	}
	if err := o.system.Redis.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := o.system.Service("admin", 0).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	report := o.quiet(t, 90*time.Second)
	if report.Recorded != report.Events || report.Events < 2000 {
		t.Errorf("%+v", report)
	}
}

// footprint is what a service takes of its machine.
type footprint struct {
	memory float64 // resident bytes
	lines  int     // of its log
}

func (o *operator) footprint(t *testing.T, service string) footprint {
	t.Helper()
	resident := o.scrape(t, service)["process_resident_memory_bytes"]
	text, err := os.ReadFile(o.system.Service(service, 0).LogPath())
	if err != nil || len(resident) != 1 {
		t.Fatal(resident, err)
	}
	return footprint{memory: resident[0], lines: bytes.Count(text, []byte("\n"))}
}
