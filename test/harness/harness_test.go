// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness_test

import (
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

// A system starts, its first operator logs in, the events arrive, the oracle agrees, and all of it ends again.
func TestSystemStartsAndEnds(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Log: t.Logf})
	if _, err := s.AsOperator(t.Context()); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 20*time.Second, func() error { return s.WaitQuiet(t.Context()) })
	report := s.Require(t)
	if report.Events < 6 || report.Recorded != report.Events { // user, policy, three roles, login
		t.Errorf("report: %+v", report)
	}
}
