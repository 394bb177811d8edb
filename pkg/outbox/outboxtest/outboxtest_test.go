// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxtest_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// spy is a testing.TB that notes a failure instead of ending the test.
type spy struct {
	testing.TB
	failed string
}

func (*spy) Helper()                          {}
func (s *spy) Fatalf(format string, a ...any) { s.failed = fmt.Sprintf(format, a...) }

// The kit sees this transaction's events and no other's, and can fail.
func TestRequireAppended(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	tx, err := db.Service.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	outboxtest.RequireAppended(t, tx)
	other, err := db.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Append(t.Context(), other, outboxtest.Event()); err != nil {
		t.Fatal(err)
	}
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireAppended(t, tx)
	if err := outbox.Append(t.Context(), tx, outboxtest.Event()); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireAppended(t, tx, "auth.user.registered.v1")
	for _, types := range [][]string{nil, {"auth.user.removed.v1"}, {"auth.user.registered.v1", "auth.user.registered.v1"}} {
		s := &spy{TB: t}
		if outboxtest.RequireAppended(s, tx, types...); s.failed == "" {
			t.Errorf("%q was accepted", types)
		}
	}
}
