// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Enabled reports whether this build has failpoints.
const Enabled = true

// action is what one armed failpoint does.
type action struct {
	kind  string // exit, stall, hook
	stall time.Duration
	nth   int // 0: each hit
	hits  int
}

// table is the state of this process's failpoints: a build with the tag is a
// test build, and its failpoints are one per process by nature.
type table struct {
	mu    sync.Mutex
	armed map[string]*action
	hook  func(name string)
}

var load = sync.OnceValue(func() *table {
	t := &table{armed: map[string]*action{}}
	if err := t.arm(os.Getenv(Env)); err != nil {
		fmt.Fprintln(os.Stderr, "failpoint:", err)
		os.Exit(2)
	}
	return t
})

// Arm replaces what is armed; spec is as in Env. Tests within one process use it.
func Arm(spec string) error { return load().arm(spec) }

// SetHook sets the function that the action "hook" runs, with the failpoint's name. It runs on the goroutine of the hit.
func SetHook(hook func(name string)) {
	t := load()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hook = hook
}

// Hit acts if name is armed.
func Hit(name string) {
	t := load()
	t.mu.Lock()
	a, hook := t.armed[name], t.hook
	if a != nil {
		a.hits++
		if a.nth != 0 && a.hits != a.nth {
			a = nil
		}
	}
	t.mu.Unlock()
	if a == nil {
		return
	}
	switch a.kind {
	case "exit":
		fmt.Fprintln(os.Stderr, "failpoint: exit at", name)
		os.Exit(137)
	case "stall":
		fmt.Fprintln(os.Stderr, "failpoint: stall at", name)
		time.Sleep(a.stall)
	case "hook":
		if hook != nil {
			hook(name)
		}
	}
}

func (t *table) arm(spec string) error {
	armed := map[string]*action{}
	for item := range strings.SplitSeq(spec, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		name, rest, ok := strings.Cut(item, "=")
		if !ok || !slices.Contains(Names(), name) {
			return fmt.Errorf("%s: %q names no failpoint", Env, item)
		}
		a, err := parseAction(rest)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", Env, item, err)
		}
		armed[name] = a
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed = armed
	return nil
}

func parseAction(s string) (*action, error) {
	a := &action{}
	s, nth, counted := strings.Cut(s, "@")
	if counted {
		n, err := strconv.Atoi(nth)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("want @1 or more, not @%s", nth)
		}
		a.nth = n
	}
	kind, stall, _ := strings.Cut(s, ":")
	a.kind = kind
	switch kind {
	case "exit", "hook":
		return a, nil
	case "stall":
		d, err := time.ParseDuration(stall)
		if err != nil {
			return nil, fmt.Errorf("want stall:DURATION: %w", err)
		}
		a.stall = d
		return a, nil
	default:
		return nil, fmt.Errorf("want exit, stall:DURATION or hook, not %q", kind)
	}
}
