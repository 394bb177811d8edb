// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import "syscall"

// attributes puts a child into a process group of its own and has the kernel kill it when its parent dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
