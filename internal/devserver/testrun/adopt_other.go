// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package main

import "syscall"

// adoptOrphans does nothing here: orphans cannot be found without Linux.
func adoptOrphans() error { return nil }

// groupAttributes puts go test into a group of its own, so that it and its test binaries can be signalled together.
func groupAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
