// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
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

// drain runs the program once and returns its events per second.
func (f *floor) drain(ctx context.Context) (float64, error) {
	cmd := exec.CommandContext(ctx, f.bin, "-drain", "-pg", f.b.superuserURL(floorDatabase), "-redis", f.b.system.Redis.Addr(),
		"-n", strconv.Itoa(f.b.o.events))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("run the floor: %w: %s", err, out)
	}
	// What it leaves behind must not be vacuumed, copied or rewritten while the next measurement runs.
	if _, err := f.b.system.DB("admin").Exec(ctx, "CHECKPOINT"); err != nil {
		return 0, fmt.Errorf("checkpoint: %w", err)
	}
	if err := f.b.system.RedisClient.Del(ctx, "floor").Err(); err != nil {
		return 0, fmt.Errorf("delete the floor's stream: %w", err)
	}
	return floorRate(out)
}

var drainLine = regexp.MustCompile(`(?m)^drain: .* = ([0-9.]+) events/s$`)

// floorRate reads the rate from what the floor prints.
func floorRate(out []byte) (float64, error) {
	found := drainLine.FindSubmatch(bytes.TrimSpace(out))
	if found == nil {
		return 0, fmt.Errorf("the floor printed no line \"drain: … = N events/s\": %s", out)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}
