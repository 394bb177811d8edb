// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// event is one line of `go test -json`.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// report prints what plain `go test` would print, and counts what that hides: skipped tests.
type report struct {
	out     io.Writer
	buffer  map[string]*strings.Builder // output of tests that have not ended, by package and test
	passed  int
	failed  []string
	skipped []string
}

func newReport(out io.Writer) *report {
	return &report{out: out, buffer: make(map[string]*strings.Builder)}
}

// read consumes the stream to its end. A line that is not JSON (the go command's own words) is printed as it is.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil {
				e = event{Action: "build-output", Output: string(line)}
			}
			if err := r.handle(e); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test output: %w", err)
		}
	}
}

// handle prints package lines at once, and a test's lines when it has failed.
func (r *report) handle(e event) error {
	key := e.Package + " " + e.Test
	switch {
	case e.Action == "build-output", e.Action == "output" && e.Test == "":
		if e.Output == "PASS\n" || e.Output == "FAIL\n" || strings.HasSuffix(e.Output, "[no test files]\n") {
			return nil
		}
		return r.print(e.Output)
	case e.Test == "":
		return nil
	case e.Action == "output":
		if r.buffer[key] == nil {
			r.buffer[key] = new(strings.Builder)
		}
		r.buffer[key].WriteString(e.Output)
		return nil
	case e.Action == "pass":
		r.passed++
	case e.Action == "skip":
		r.skipped = append(r.skipped, key)
	case e.Action == "fail":
		r.failed = append(r.failed, key)
		if text := r.buffer[key]; text != nil {
			if err := r.print(text.String()); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	delete(r.buffer, key)
	return nil
}

func (r *report) print(text string) error {
	if _, err := io.WriteString(r.out, text); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// summary prints the closing lines: what a reader must not miss.
func (r *report) summary(race bool, took time.Duration) {
	// Tests that neither passed nor failed: their binary ended before them (a panic, a time-out).
	for key, text := range r.buffer {
		_, _ = fmt.Fprintf(r.out, "--- CUT OFF: %s\n%s", key, text)
	}
	for _, test := range r.skipped {
		_, _ = fmt.Fprintf(r.out, "skipped: %s\n", test)
	}
	for _, test := range r.failed {
		_, _ = fmt.Fprintf(r.out, "failed: %s\n", test)
	}
	detector := "race detector on"
	if !race {
		detector = "WITHOUT the race detector"
	}
	_, _ = fmt.Fprintf(r.out, "testrun: %d passed, %d failed, %d skipped in %s, %s\n",
		r.passed, len(r.failed), len(r.skipped), took.Round(time.Second), detector)
}
