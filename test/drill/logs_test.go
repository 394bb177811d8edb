// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// logLine is what a service wrote through slog.
type logLine struct {
	Time    time.Time `json:"time"`
	Level   string    `json:"level"`
	Message string    `json:"msg"`
	Error   string    `json:"error"`
}

// logLines reads all that a service has written so far. What is no line of slog's is left out.
func logLines(t *testing.T, s *harness.Service) []logLine {
	t.Helper()
	text, err := os.ReadFile(s.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	var lines []logLine
	for scanner := bufio.NewScanner(bytes.NewReader(text)); scanner.Scan(); {
		var line logLine
		if json.Unmarshal(scanner.Bytes(), &line) == nil && line.Message != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// complaints are the warnings and errors that a service wrote at or after a moment.
func complaints(t *testing.T, s *harness.Service, since time.Time) []logLine {
	t.Helper()
	var found []logLine
	for _, line := range logLines(t, s) {
		if (line.Level == "WARN" || line.Level == "ERROR") && !line.Time.Before(since) {
			found = append(found, line)
		}
	}
	return found
}

// noFlood demands that a service wrote no warning or error more often than once in a simulated second since a moment.
func (d *drill) noFlood(t *testing.T, since time.Time) {
	t.Helper()
	simulated := int(d.scale * time.Since(since).Seconds())
	for _, name := range harness.Services() {
		for _, s := range d.Replicas(name) {
			counts := map[string]int{}
			for _, line := range complaints(t, s, since) {
				counts[line.Message]++
			}
			for message, n := range counts {
				if n > simulated+1 {
					t.Errorf("%s wrote %q %d times in %d simulated seconds", s, message, n, simulated)
				}
			}
			t.Logf("%s complained in %d simulated seconds: %v", s, simulated, counts)
		}
	}
}
