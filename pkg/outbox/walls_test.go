// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"os/exec"
	"strings"
	"testing"
)

// A7, A14: whoever takes the core takes no broker client and no telemetry library with it.
func TestCoreImportsNoBrokerAndNoTelemetry(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{".", "./noop", "./memory"} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for dep := range strings.SplitSeq(string(out), "\n") {
			for _, wall := range []string{"redis", "opentelemetry", "prometheus", "google.golang.org/grpc", "counterfoil/services", "counterfoil/pkg/inbox"} {
				if strings.Contains(dep, wall) {
					t.Errorf("%s imports %s", pkg, dep)
				}
			}
		}
	}
}
