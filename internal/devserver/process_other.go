// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package devserver

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// attributes puts a child into its own process group, under another user if asked. There is no death signal here.
func attributes(user *credential, _ syscall.Signal) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if user != nil {
		a.Credential = &syscall.Credential{Uid: user.uid, Gid: user.gid}
	}
	return a
}

// descendants lists the direct children of pid, which is all that Postgres and Redis have.
func descendants(pid int) []int {
	out, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil
	}
	var all []int
	for field := range strings.FieldsSeq(string(out)) {
		if child, err := strconv.Atoi(field); err == nil {
			all = append(all, child)
		}
	}
	return all
}
