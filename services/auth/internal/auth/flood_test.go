// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"strings"
	"testing"
	"time"
)

// A stranger who makes refusals for nothing cannot fill the outbox: beyond 200 at once and 50 a second they are logged.
func TestStrangersCannotFillTheOutbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	count := func() (n int) {
		if err := b.db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM audit_outbox`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, begin := count(), time.Now()
	for range 1000 {
		if _, err := b.Refresh(b.from("192.0.2.1"), strings.Repeat("B", 43)); err == nil {
			t.Fatal("an unknown token was taken")
		}
	}
	most := 201 + int(50*time.Since(begin).Seconds())
	if got := count() - before; got < 200 || got > most {
		t.Errorf("%d refusals are recorded, want 200 to %d", got, most)
	}
}
