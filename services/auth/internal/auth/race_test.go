// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
)

// hold runs a statement in a transaction that stays open, and so keeps its locks, until release is called.
func (b *bundle) hold(sql string, args ...any) (tx pgx.Tx, release func()) {
	b.t.Helper()
	tx, err := b.db.Super.Begin(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
	return tx, func() {
		if err := tx.Commit(context.WithoutCancel(b.t.Context())); err != nil {
			b.t.Error(err)
		}
	}
}

// waiting returns once n statements on the database wait for a lock; of 0, once none does.
func (b *bundle) waiting(n int) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var found int
		err := b.db.Super.QueryRow(ctx, `
			SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&found)
		if err == nil && found >= n && (n > 0 || found == 0) {
			return
		}
		select {
		case <-ctx.Done():
			b.t.Fatalf("%d of %d statements wait for a lock, %v", found, n, err)
		case <-tick.C:
		}
	}
}

// TestAPasswordThatChangesDuringALoginIsNoLongerGood: the password was right when it was compared, and is not when the
// session would begin.
func TestAPasswordThatChangesDuringALoginIsNoLongerGood(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, eve := b.user("Ada"), b.user("Eve")
	tx, release := b.hold(`SELECT FROM users WHERE id = $1 FOR UPDATE`, ada.ID)
	b.expect(func() {
		var wg sync.WaitGroup
		wg.Go(func() { b.tryLogin(ada.Email, goodPassword) })
		b.waiting(1)
		_, err := tx.Exec(t.Context(), `
			UPDATE credentials SET password_hash = (SELECT password_hash FROM credentials WHERE user_id = $2) WHERE user_id = $1`, ada.ID, eve.ID)
		if err != nil {
			t.Error(err)
		}
		release()
		wg.Wait()
	}, failedLogin)
}

// TestAdminsWhoCountEachOtherWaitInLine: each of two is about to be disabled while the other still counts as active.
func TestAdminsWhoCountEachOtherWaitInLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	if _, err := b.GrantRole(b.asRoot(), auth.Target{ID: ada.ID}, auth.RoleAdmin); err != nil {
		t.Fatal(err)
	}
	b.login(ada, goodPassword)
	b.login(b.root, rootPassword)
	_, release := b.hold(`SELECT FROM sessions FOR UPDATE`) // taken after the count, so both would get past it
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { _, errs[0] = b.DisableUser(b.asRoot(), auth.Target{ID: ada.ID}) })
	wg.Go(func() { _, errs[1] = b.DisableUser(b.asRoot(), auth.Target{ID: b.root.ID}) })
	b.waiting(2)
	release()
	wg.Wait()
	if errs[0] == nil {
		errs[0], errs[1] = errs[1], errs[0]
	}
	requireReason(t, errs[0], apperr.KindFailedPrecondition, "LAST_ADMIN")
	if errs[1] != nil {
		t.Error(errs[1])
	}
	b.requireWhole()
}

// TestARefusalIsRecordedThoughTheCallerIsGone: hanging up does not hide an attempt (T18).
func TestARefusalIsRecordedThoughTheCallerIsGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(b.from("192.0.2.1"))
	cancel()
	events := b.expect(func() {
		b.RecordRefusal(ctx, auth.TryDeleteUser, authn.Refusal{Method: "/x/DeleteUser", Reason: "TOKEN_MISSING"})
	}, "auth.user.delete_refused.v1 DELETE user@0 DENIED TOKEN_MISSING by anonymous")
	if got := fmt.Sprint(events[0].GetMetadata()); got != "map[method:Test]" {
		t.Errorf("metadata is %s", got)
	}
}
