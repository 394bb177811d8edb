// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// floorDatabase is a database of its own on the same server.
const floorDatabase = "floor"

// floor is the program that does the least work, built and with everything it needs.
type floor struct {
	b   *bench
	dir string
	bin string
}

// openFloor builds the program and lets it in. It takes -pg URL -redis host:port -n events -drain, and prints a line
// "drain: … = N events/s".
func (b *bench) openFloor(ctx context.Context) (*floor, error) {
	dir, err := os.MkdirTemp("", "counterfoil-floor-")
	if err != nil {
		return nil, fmt.Errorf("make folder for the floor: %w", err)
	}
	f := &floor{b: b, dir: dir, bin: filepath.Join(dir, "floor")}
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", f.bin, ".")
	build.Dir = b.o.floor
	if out, err := build.CombinedOutput(); err != nil {
		f.close()
		return nil, fmt.Errorf("build the floor in %s: %w: %s", b.o.floor, err, out)
	}
	if _, err := b.system.DB("admin").Exec(ctx, "CREATE DATABASE "+floorDatabase); err != nil {
		f.close()
		return nil, fmt.Errorf("make the floor's database: %w", err)
	}
	// The broker refuses nameless users; the floor is one, with a key of its own.
	if err := b.system.RedisClient.Do(ctx, "ACL", "SETUSER", "default", "on", "nopass", "~floor", "+@all").Err(); err != nil {
		f.close()
		return nil, fmt.Errorf("let the floor into redis: %w", err)
	}
	return f, nil
}

func (f *floor) close() { _ = os.RemoveAll(f.dir) }

// floorRun is what one run showed.
type floorRun struct {
	rate float64 // events/s
	cpu  float64 // seconds of program and servers while it drained
}

// drain runs the program once.
func (f *floor) drain(ctx context.Context) (floorRun, error) {
	var run floorRun
	cmd := exec.CommandContext(ctx, f.bin, "-drain", "-pg", f.b.superuserURL(floorDatabase), "-redis", f.b.system.Redis.Addr(),
		"-n", strconv.Itoa(f.b.o.events))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return run, fmt.Errorf("read the floor: %w", err)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	if err := cmd.Start(); err != nil {
		return run, fmt.Errorf("run the floor: %w", err)
	}
	run, err = f.follow(out, cmd.Process.Pid)
	if failed := cmd.Wait(); failed != nil {
		return run, fmt.Errorf("run the floor: %w: %s", failed, problems.Bytes())
	}
	if err != nil {
		return run, err
	}
	// What it leaves behind must not be written out while the next measurement runs.
	if err := f.b.checkpoint(ctx); err != nil {
		return run, err
	}
	if err := f.b.system.RedisClient.Del(ctx, "floor").Err(); err != nil {
		return run, fmt.Errorf("delete the floor's stream: %w", err)
	}
	return run, nil
}

var drainLine = regexp.MustCompile(`^drain: .* = ([0-9.]+) events/s$`)

// follow reads what the program prints. Before the drain it makes transactions and fills its backlog, with a line for each:
// the line before the last is where the drain begins.
func (f *floor) follow(out io.Reader, pid int) (floorRun, error) {
	watch := f.b.watchProcesses()
	watch.pids["floor"] = pid
	watch.begin()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if rate, err := floorRate(lines.Text()); err == nil {
			cpu, _ := watch.stop()
			return floorRun{rate: rate, cpu: cpu["floor"] + cpu["postgres"] + cpu["redis"]}, nil
		}
		watch.begin()
	}
	return floorRun{}, errors.Join(errors.New("the floor printed no line \"drain: … = N events/s\""), lines.Err())
}

// floorRate reads the line that ends a drain.
func floorRate(line string) (float64, error) {
	found := drainLine.FindStringSubmatch(line)
	if found == nil {
		return 0, errors.New("not the line that ends a drain")
	}
	return strconv.ParseFloat(found[1], 64)
}
