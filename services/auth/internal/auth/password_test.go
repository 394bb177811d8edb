// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// lockOut locks an account for an hour, as the one failed attempt too many does.
const lockOut = `
	INSERT INTO login_attempts (user_id, locked_until) VALUES ($1, now() + interval '1 hour')
	ON CONFLICT (user_id) DO UPDATE SET locked_until = EXCLUDED.locked_until`

// TestOnlyARightCurrentPasswordIsWorthASecondHash counts the hashes of ChangePassword by the memory that they take. Under a
// lock-out a right guess costs what a wrong one does, even if the account was not yet locked when it was compared: else the
// time of the answer would tell them apart.
//
//nolint:paralleltest // what others allocate would be counted too
func TestOnlyARightCurrentPasswordIsWorthASecondHash(t *testing.T) {
	const megabytes = 64
	b := fresh(t)
	b.Service = b.service(auth.HashParams{MemoryKiB: megabytes * 1024, Passes: 1})
	var err error
	if b.root, err = b.Bootstrap(t.Context(), auth.NewUser{Email: "root@example.com", DisplayName: "Root", Password: rootPassword}); err != nil {
		t.Fatal(err)
	}
	ada := b.user("Ada")
	_, session := b.login(ada, goodPassword)
	const next = "another long password"
	hashes := func(do func()) int {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return int((after.TotalAlloc - before.TotalAlloc) >> 20 / megabytes)
	}
	try := func(key idempotency.Key, current, reason string) func() {
		return func() {
			_, err := b.ChangePassword(b.as(ada, session.ID), key, current, next)
			if reason == "" && err == nil {
				return
			}
			requireReason(t, err, apperr.KindPermissionDenied, reason)
		}
	}
	once := key(newID(), "x")

	if n := hashes(try(idempotency.Key{}, "a wrong password", "BAD_PASSWORD")); n != 1 {
		t.Errorf("a wrong password cost %d hashes", n)
	}
	tx, release := b.hold(`SELECT FROM users WHERE id = $1 FOR UPDATE`, ada.ID)
	n := hashes(func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			try(idempotency.Key{}, goodPassword, "LOCKED_OUT")()
		}()
		b.waiting(1)
		if _, err := tx.Exec(t.Context(), lockOut, ada.ID); err != nil {
			t.Error(err)
		}
		release()
		<-done
	})
	if n != 1 {
		t.Errorf("a right password that a lock-out overtook cost %d hashes", n)
	}
	for _, password := range []string{goodPassword, "a wrong password"} {
		if n := hashes(try(idempotency.Key{}, password, "LOCKED_OUT")); n != 1 {
			t.Errorf("%q under a lock-out cost %d hashes", password, n)
		}
	}
	if _, err := b.UnlockUser(b.asRoot(), auth.Target{ID: ada.ID}); err != nil {
		t.Fatal(err)
	}
	if n := hashes(try(once, goodPassword, "")); n != 2 {
		t.Errorf("a change cost %d hashes", n)
	}
	if n := hashes(try(once, goodPassword, "")); n != 1 {
		t.Errorf("a repeat of it cost %d hashes", n)
	}
	b.requireState(session, store.SessionActive)
	b.requireWhole()
}

// TestALockOutDuringAChangeHolds: the current password was found right, and while the new one is hashed the account is locked.
func TestALockOutDuringAChangeHolds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	_, session := b.login(ada, goodPassword)
	_, release := b.hold(`SELECT FROM users WHERE id = $1 FOR UPDATE`, ada.ID)
	b.expect(func() {
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := b.ChangePassword(b.as(ada, session.ID), idempotency.Key{}, goodPassword, "another long password")
			requireReason(t, err, apperr.KindPermissionDenied, "LOCKED_OUT")
		})
		b.waiting(1)
		// The change waits for its hash now, between the look at the current password and the change.
		hash := auth.HoldHashing(b.Service)
		release()
		b.waiting(0)
		if _, err := b.db.Super.Exec(t.Context(), lockOut, ada.ID); err != nil {
			t.Error(err)
		}
		hash()
		wg.Wait()
	}, "auth.user.password_change_refused.v1 UPDATE user@0 DENIED LOCKED_OUT by Ada")
	b.requireWhole()
}

// TestAttemptsThatFindNoRoomAreRecorded: where too many passwords are being checked, the attempt is known though nobody
// looked at its password.
func TestAttemptsThatFindNoRoomAreRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	_, session := b.login(ada, goodPassword)
	release := auth.BusyHashing(b.Service)
	events := b.expect(func() {
		_, err := b.Login(b.from("192.0.2.1"), ada.Email, goodPassword)
		requireReason(t, err, apperr.KindResourceExhausted, "PASSWORD_WORK_BUSY")
		_, err = b.Login(b.from("192.0.2.1"), "nobody@example.com", goodPassword)
		requireReason(t, err, apperr.KindResourceExhausted, "PASSWORD_WORK_BUSY")
		_, err = b.ChangePassword(b.as(ada, session.ID), idempotency.Key{}, goodPassword, "another long password")
		requireReason(t, err, apperr.KindResourceExhausted, "PASSWORD_WORK_BUSY")
	},
		"auth.login.failed.v1 LOGIN user@0 FAILED PASSWORD_WORK_BUSY by anonymous",
		"auth.login.failed.v1 LOGIN user@0 FAILED PASSWORD_WORK_BUSY by anonymous",
		"auth.user.password_change_refused.v1 UPDATE user@0 FAILED PASSWORD_WORK_BUSY by Ada")
	if len(events) != 3 {
		t.FailNow()
	}
	if id := events[0].GetResource().GetId(); id != ada.ID.String() {
		t.Errorf("the attempt is recorded about %s", id)
	}
	if id := events[1].GetResource().GetId(); !strings.HasPrefix(id, "unknown-") {
		t.Errorf("the attempt on no account is recorded about %s", id)
	}
	release()
	b.login(ada, goodPassword)
}
