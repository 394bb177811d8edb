// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// A method that is refused at the door is not taken for a read because its verb is new.
func TestOnlyGetAndListRead(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]auditv1.Operation{
		"/counterfoil.app.v1.ProjectService/GetProject":     auditv1.Operation_OPERATION_READ,
		"/counterfoil.app.v1.ProjectService/ListMembers":    auditv1.Operation_OPERATION_READ,
		"/counterfoil.app.v1.ProjectService/ImportMembers":  auditv1.Operation_OPERATION_CREATE,
		"/counterfoil.app.v1.ProjectService/RemoveMember":   auditv1.Operation_OPERATION_DELETE,
		"/counterfoil.app.v1.ProjectService/ArchiveProject": auditv1.Operation_OPERATION_UPDATE,
		"/counterfoil.app.v1.ProjectService/PinProject":     auditv1.Operation_OPERATION_UPDATE,
	} {
		if got := operationOf(method); got != want {
			t.Errorf("operationOf(%s) = %v, want %v", method, got, want)
		}
	}
}
