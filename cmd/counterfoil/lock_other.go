// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package main

import "context"

// lock does nothing here: two commands that refresh the same login at the same moment may end its session.
func lock(context.Context, string) (unlock func(), err error) { return func() {}, nil }
