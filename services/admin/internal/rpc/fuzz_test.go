// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
)

// FuzzPageToken: no token but ours opens a page, and none brings the service down.
func FuzzPageToken(f *testing.F) {
	tokens, err := pagetoken.New("a secret of the test")
	if err != nil {
		f.Fatal(err)
	}
	other, err := pagetoken.New("another secret than the test's")
	if err != nil {
		f.Fatal(err)
	}
	question := pagetoken.Binding{Method: adminv1.AuditLogService_ListAuditLogs_FullMethodName}
	foreign, err := other.Seal(question, recordCursor{Before: uuid.New()})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"", "x", foreign, strings.Repeat("A", 5000)} {
		f.Add(seed)
	}
	server := &auditLogs{tokens: tokens} // a token that opened would reach the missing service and panic
	f.Fuzz(func(t *testing.T, token string) {
		if token == "" {
			return
		}
		_, err := server.ListAuditLogs(t.Context(), &adminv1.ListAuditLogsRequest{PageToken: token})
		if err == nil {
			t.Fatalf("token %q was accepted", token)
		}
	})
}
