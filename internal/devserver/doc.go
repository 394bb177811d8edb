// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package devserver runs private Postgres and Redis servers for tests, the demo and measurements.
//
// It finds the servers' programs on this machine; where they are missing, and this is Debian with root
// rights, it installs Debian's packages; otherwise its error says exactly what to install. A server it
// starts keeps its files in a directory of the caller, listens on a free port of 127.0.0.1 only, and can be
// stopped, killed, frozen and started again on the same port and data: what a fault test needs.
//
// Nothing outlives the process that started it, however that process ends:
//
//   - The kernel signals a server when its parent dies (Linux, PR_SET_PDEATHSIG). The kernel takes the parent
//     to be the *thread* that forked, so each server is forked and waited for by one goroutine that stays locked
//     to its thread for as long as the server runs (process.run). Postgres gets SIGQUIT, its immediate
//     shutdown, and takes its backends with it; Redis gets SIGKILL.
//   - A frozen process obeys only SIGKILL, and a temporary directory has no parent. Those two cases are left to a
//     small shell that waits for the end of a pipe held by this process (onExit).
//   - Each server has a process group of its own, so that Ctrl-C in a terminal reaches the caller first and the
//     servers are stopped in order.
//
// On systems other than Linux the first protection is absent: there a caller that is killed leaves its servers.
//
// It does not promise security beyond loopback: the superuser, and by default every role, connects to these
// servers without a password. They are not for data that matters.
package devserver
