// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package failpoint_test

import (
	"slices"
	"testing"

	"github.com/counterfoil/counterfoil/internal/failpoint"
)

func TestNamesAreUnique(t *testing.T) {
	t.Parallel()
	names := failpoint.Names()
	if len(names) != 15 {
		t.Errorf("%d names, want 15", len(names))
	}
	slices.Sort(names)
	if got := len(slices.Compact(names)); got != 15 {
		t.Errorf("%d distinct names, want 15", got)
	}
}

func TestHitOfAnUnarmedPointReturns(t *testing.T) {
	t.Parallel()
	for _, name := range failpoint.Names() {
		failpoint.Hit(name)
	}
}
