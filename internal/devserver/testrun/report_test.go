// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestReportPrintsFailuresAndCountsSkips(t *testing.T) {
	t.Parallel()
	const stream = `go: some words of the go command
{"Action":"build-output","ImportPath":"p","Output":"# p\n./a.go:1: broken\n"}
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"loud\n"}
{"Action":"fail","Package":"p","Test":"TestBad"}
{"Action":"skip","Package":"p","Test":"TestLazy"}
{"Action":"output","Package":"p","Test":"TestCut","Output":"half\n"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t1.0s\n"}
{"Action":"fail","Package":"p"}
`
	var out strings.Builder
	r := newReport(&out)
	if err := r.read(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	r.summary(false, 90*time.Second)
	const want = `go: some words of the go command
# p
./a.go:1: broken
loud
FAIL	p	1.0s
--- CUT OFF: p TestCut
half
skipped: p TestLazy
failed: p TestBad
testrun: 1 passed, 1 failed, 1 skipped in 1m30s, WITHOUT the race detector
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestSweepNamesAndKillsWhatIsLeft(t *testing.T) {
	// Not parallel: it looks at all descendants of this process.
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	left := sweep(syscall.Getpid(), 50*time.Millisecond)
	if len(left) != 1 || !strings.Contains(left[0], "sleep 60") {
		t.Errorf("left %q, want the sleeping process", left)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v, want killed", err)
	}
	if left := sweep(syscall.Getpid(), time.Second); len(left) != 0 {
		t.Errorf("still left: %q", left)
	}
}
