// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
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

func (b *bench) startWAL(ctx context.Context) (walUse, error) { return b.readWAL(ctx) }

// stop returns what was written since start, an event.
func (u walUse) stop(ctx context.Context, events int) (walUse, error) {
	now, err := u.b.readWAL(ctx)
	now.bytes = (now.bytes - u.bytes) / float64(events)
	now.syncs = (now.syncs - u.syncs) / float64(events)
	return now, err
}

// processes watches the services' processes. What it reads is Linux's; elsewhere it reads nothing.
type processes struct {
	pids map[string]int
	cpu  map[string]time.Duration
}

func (b *bench) watchProcesses() *processes {
	p := &processes{pids: map[string]int{}, cpu: map[string]time.Duration{}}
	for _, name := range harness.Services() {
		pid := b.system.Service(name, 0).PID()
		p.pids[name] = pid
		p.cpu[name] = cpuTime(pid)
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // forget the peak; without the right to, it is that of the whole run
	}
	return p
}

// stop returns the peak memory in MB and the CPU seconds of each service since the watch began.
func (p *processes) stop() (rss, cpu map[string]float64) {
	rss, cpu = map[string]float64{}, map[string]float64{}
	for name, pid := range p.pids {
		rss[name] = peakMemory(pid)
		cpu[name] = (cpuTime(pid) - p.cpu[name]).Seconds()
	}
	return rss, cpu
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

// cpuTime returns what a process has used, user and system.
func cpuTime(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The command's name is in brackets and may hold anything; what follows it is numbers.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * clockTick
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
	_, cpu := watch.stop()
	r.Idle = map[string]float64{}
	for name, used := range cpu {
		r.Idle[name] = 100 * used / span.Seconds()
	}
	b.say("idle: %s of a core", byService(r.Idle, "%.2f %%"))
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
