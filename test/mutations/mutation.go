// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/counterfoil/counterfoil/internal/devserver"
)

// mutation is one fault, and the test that must notice it.
type mutation struct {
	name    string
	promise string
	pkg     string
	test    string
	tags    string // build tags; usually none
	target  string // the broken file, from the top of the tree
	diff    string
}

// read parses a patch file and refuses one that breaks more than one place.
func read(file string) (mutation, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return mutation{}, fmt.Errorf("read patch: %w", err)
	}
	m := mutation{name: strings.TrimSuffix(filepath.Base(file), ".patch")}
	header, diff, found := strings.Cut(string(text), "\n--- a/")
	if !found {
		return m, fmt.Errorf("%s: no diff that begins with --- a/", file)
	}
	m.diff = "--- a/" + diff
	m.target, _, _ = strings.Cut(diff, "\n")
	for line := range strings.SplitSeq(header, "\n") {
		key, value, _ := strings.Cut(line, ": ")
		switch value = strings.TrimSpace(value); key {
		case "promise":
			m.promise = value
		case "package":
			m.pkg = value
		case "test":
			m.test = value
		case "tags":
			m.tags = value
		}
	}
	if m.promise == "" || m.pkg == "" || m.test == "" {
		return m, fmt.Errorf("%s: the header needs promise, package and test", file)
	}
	if hunks := strings.Count("\n"+m.diff, "\n@@ "); hunks != 1 {
		return m, fmt.Errorf("%s: has %d hunks, a mutation has one", file, hunks)
	}
	return m, nil
}

// try returns nil if the named test fails with the fault in place.
func (m mutation) try(ctx context.Context, url string) error {
	dir, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return fmt.Errorf("make a place for the broken file: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	overlay, err := m.overlay(ctx, dir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-vet=off", "-timeout=2m", "-tags="+m.tags, "-overlay="+overlay,
		"-run="+pattern(m.test), m.pkg)
	cmd.Env = append(os.Environ(), devserver.EnvTestPostgres+"="+url)
	out, err := cmd.CombinedOutput()
	return m.judge(out, err)
}

// overlay writes the broken file and tells the compiler where it stands.
func (m mutation) overlay(ctx context.Context, dir string) (string, error) {
	whole, err := os.ReadFile(m.target)
	if err != nil {
		return "", fmt.Errorf("read what to break: %w", err)
	}
	broken := filepath.Join(dir, m.target)
	if err := os.MkdirAll(filepath.Dir(broken), 0o755); err != nil {
		return "", fmt.Errorf("make a place for the broken file: %w", err)
	}
	if err := os.WriteFile(broken, whole, 0o644); err != nil {
		return "", fmt.Errorf("copy what to break: %w", err)
	}
	apply := exec.CommandContext(ctx, "git", "apply", "--recount", "--unidiff-zero", "-p1", "-")
	apply.Dir, apply.Stdin = dir, strings.NewReader(m.diff)
	if out, err := apply.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the patch no longer applies: %s", bytes.TrimSpace(out))
	}
	target, err := filepath.Abs(m.target)
	if err != nil {
		return "", fmt.Errorf("find what to break: %w", err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {target: broken}})
	if err != nil {
		return "", fmt.Errorf("write overlay: %w", err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, list, 0o644); err != nil {
		return "", fmt.Errorf("write overlay: %w", err)
	}
	return file, nil
}

// judge tells a test that turned red from one that could not run.
func (m mutation) judge(out []byte, err error) error {
	top, _, _ := strings.Cut(m.test, "/")
	switch {
	case err == nil && !bytes.Contains(out, []byte("=== RUN   "+top)):
		return fmt.Errorf("there is no test %s in %s", m.test, m.pkg)
	case err == nil:
		return fmt.Errorf("%s stays green: it does not show that %s", m.test, m.promise)
	case bytes.Contains(out, []byte("--- FAIL: "+top)), bytes.Contains(out, []byte("panic: ")):
		return nil
	}
	return fmt.Errorf("%s could not run: %w\n%s", m.test, err, tail(out, 15))
}

// pattern matches the named test and subtest and no other.
func pattern(test string) string {
	parts := strings.Split(test, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

func tail(out []byte, n int) []byte {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-n):], []byte("\n"))
}
