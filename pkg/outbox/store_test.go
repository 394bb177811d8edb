// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

func TestStoreSuite(t *testing.T) {
	t.Parallel()
	outboxtest.RunStoreSuite(t, func(t *testing.T) outboxtest.Harness {
		t.Helper()
		db := testdb.New(t, testdb.Auth).WithoutGuard(t)
		return outboxtest.Harness{
			Store: outbox.NewPostgres(db.Service, outbox.PostgresOptions{}),
			Add: func(t testing.TB, events ...*auditv1.AuditEvent) {
				t.Helper()
				appendAll(t, db.Service, events...)
				sealAll(t, db.Service)
			},
			InTx: func(t testing.TB, f func(pgx.Tx)) {
				t.Helper()
				inTx(t, db.Service, func(tx pgx.Tx) error {
					f(tx)
					return nil
				})
			},
		}
	})
}

// inTx runs f in a READ COMMITTED transaction and commits it; any error fails the test.
func inTx(t testing.TB, db *pgxpool.Pool, f func(tx pgx.Tx) error) {
	t.Helper()
	if err := tryTx(t.Context(), db, f); err != nil {
		t.Fatal(err)
	}
}

func tryTx(ctx context.Context, db *pgxpool.Pool, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, f)
}

func appendAll(t testing.TB, db *pgxpool.Pool, events ...*auditv1.AuditEvent) {
	t.Helper()
	inTx(t, db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, events...) })
}

// sealAll numbers what is committed and returns how many events that were.
func sealAll(t testing.TB, db *pgxpool.Pool) int {
	t.Helper()
	s, err := outbox.NewSealer(db, outbox.SealerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for {
		_, n, more, err := s.Seal(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if total += n; !more {
			return total
		}
	}
}
