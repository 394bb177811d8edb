// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package failpoint

// Enabled reports whether this build has failpoints.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}
