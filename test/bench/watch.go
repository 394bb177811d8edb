// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// walUse is Postgres' log since a moment, for each event. One server holds all databases, so it is the sum of both sides.
type walUse struct {
	b            *bench
	bytes, syncs float64
}

func (b *bench) readWAL(ctx context.Context) (walUse, error) {
	u := walUse{b: b}
	err := b.system.DB("admin").QueryRow(ctx, "SELECT wal_bytes::float8, wal_sync::float8 FROM pg_stat_wal").Scan(&u.bytes, &u.syncs)
	if err != nil {
		return u, fmt.Errorf("read pg_stat_wal: %w", err)
	}
	return u, nil
}

// stop returns what was written since, an event.
func (u walUse) stop(ctx context.Context, events int) (walUse, error) {
	now, err := u.b.readWAL(ctx)
	now.bytes = (now.bytes - u.bytes) / float64(events)
	now.syncs = (now.syncs - u.syncs) / float64(events)
	return now, err
}

// processes watches what runs on this machine: the services and the servers. What it reads is Linux's; elsewhere it reads nothing.
type processes struct {
	pids map[string]int
	cpu  map[string]time.Duration
}

func (b *bench) watchProcesses() *processes {
	p := &processes{cpu: map[string]time.Duration{}, pids: map[string]int{
		"postgres": b.system.Postgres("admin").PID(), "redis": b.system.Redis.PID(), "bench": os.Getpid(),
	}}
	for _, name := range harness.Services() {
		p.pids[name] = b.system.Service(name, 0).PID()
	}
	p.begin()
	return p
}

// begin forgets what was used so far. Without the right to, the peak stays that of the whole run.
func (p *processes) begin() {
	for name, pid := range p.pids {
		p.cpu[name] = cpuTime(pid)
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
	}
}

// stop returns the CPU seconds of each process since the watch began and the peak memory of each service in MB. That of
// the servers would say nothing: Postgres shares most of it, and it is not ours. This process is the load.
func (p *processes) stop() (cpu, memory map[string]float64) {
	cpu, memory = map[string]float64{}, map[string]float64{}
	for name, pid := range p.pids {
		cpu[name] = (cpuTime(pid) - p.cpu[name]).Seconds()
		if slices.Contains(harness.Services(), name) {
			memory[name] = peakMemory(pid)
		}
	}
	return cpu, memory
}

// peakMemory returns a process's highest resident size in MB.
func peakMemory(pid int) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb / 1024
		}
	}
	return 0
}

// clockTick is the unit of /proc/PID/stat: USER_HZ is 100 wherever Go runs on Linux.
const clockTick = 10 * time.Millisecond

// cpuTime returns what a process and its children have used, user and system, those included that have ended. Of this
// process, which is the parent of all that it watches, it is its own alone.
func cpuTime(pid int) time.Duration {
	ticks := int64(0)
	if pid == os.Getpid() {
		if fields := statFields(pid); len(fields) > 12 {
			ticks = number(fields[11]) + number(fields[12])
		}
		return time.Duration(ticks) * clockTick
	}
	for other := range allProcesses() {
		fields := statFields(other)
		if len(fields) < 15 {
			continue
		}
		if other == pid {
			ticks += number(fields[11]) + number(fields[12]) + number(fields[13]) + number(fields[14])
		} else if number(fields[1]) == int64(pid) {
			ticks += number(fields[11]) + number(fields[12])
		}
	}
	return time.Duration(ticks) * clockTick
}

func allProcesses() iter.Seq[int] {
	return func(yield func(int) bool) {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range entries {
			if pid, err := strconv.Atoi(e.Name()); err == nil && !yield(pid) {
				return
			}
		}
	}
}

// statFields returns what /proc/PID/stat says after the command's name, which is in brackets and may hold anything: the
// state, the parent, and as 12th to 15th the times of the process and of its children that have ended (proc(5)).
func statFields(pid int) [][]byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}

func number(field []byte) int64 {
	n, err := strconv.ParseInt(string(field), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// idle measures what each service uses when nothing happens, as a share of one core.
func (b *bench) idle(ctx context.Context, r *results) error {
	const span = 20 * time.Second
	if err := b.quiet(ctx); err != nil {
		return err
	}
	sleep(ctx, 5*time.Second)
	watch := b.watchProcesses()
	sleep(ctx, span)
	cpu, _ := watch.stop()
	r.Idle = map[string]float64{}
	for name, used := range cpu {
		r.Idle[name] = 100 * used / span.Seconds()
	}
	delete(r.Idle, "bench")
	b.say("idle: %s of a core", byName(r.Idle, "%.2f %%"))
	return ctx.Err()
}

// machine describes where the numbers come from.
func machine() string {
	model := "unknown CPU"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, %s/%s, %s", runtime.NumCPU(), model, runtime.GOOS, runtime.GOARCH, runtime.Version())
}
