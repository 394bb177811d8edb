// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
)

// Whoever makes refusals for nothing cannot fill the outbox: beyond 200 at once and 50 a second they are logged. A token
// whose session is over is as cheap as none: there is nothing left to take from its holder.
func TestStrangersCannotFillTheOutbox(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]func(*bundle){
		"unknown refresh token": func(b *bundle) {
			if _, err := b.Refresh(b.from("192.0.2.1"), strings.Repeat("B", 43)); err == nil {
				b.t.Fatal("an unknown token was taken")
			}
		},
		"session over": func(b *bundle) {
			err := b.CheckStanding(b.from("192.0.2.1"), authn.Principal{UserID: b.root.ID.String(), SessionID: uuid.NewString()})
			b.RecordRefusal(b.asRoot(), auth.TryLogout, authn.Refusal{Reason: apperr.ReasonOf(err), Known: true, Err: err})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requireBounded(t, refused)
		})
	}
}

func requireBounded(t *testing.T, refused func(*bundle)) {
	t.Helper()
	b := setup(t)
	count := func() (n int) {
		if err := b.db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM audit_outbox`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before, begin := count(), time.Now()
	for range 1000 {
		refused(b)
	}
	most := 201 + int(50*time.Since(begin).Seconds())
	if got := count() - before; got < 200 || got > most {
		t.Errorf("%d refusals are recorded, want 200 to %d", got, most)
	}
}
