// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package harness

import "syscall"

// attributes puts a child into a process group of its own. There is no death signal here.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
