// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// TestARepeatedCallChangesAndRecordsNothing: each operation is called, repeated, and called once more with the same request
// id and another body.
func TestARepeatedCallChangesAndRecordsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, eve, doomed := b.user("Ada"), b.user("Eve"), b.user("Doomed")
	_, session := b.login(ada, goodPassword)
	_, own := b.login(eve, goodPassword)
	b.login(eve, goodPassword)
	name, length := "Countess", 11
	var version int64 // of the answer, where there is one
	answer := func(u store.User, err error) error {
		version = u.Version
		return err
	}
	at := func(u store.User, k idempotency.Key) auth.Target {
		return auth.Target{ID: u.ID, Key: k, ETag: auth.ETag(u.Version)}
	}
	for _, test := range []struct {
		name string
		do   func(k idempotency.Key) error
	}{
		{"CreateUser", func(k idempotency.Key) error {
			return answer(b.CreateUser(b.asRoot(), k, auth.NewUser{Email: "new@example.com", DisplayName: "New", Password: goodPassword}))
		}},
		{"UpdateUser", func(k idempotency.Key) error {
			return answer(b.UpdateUser(b.asRoot(), at(ada, k), auth.UserChange{DisplayName: &name}))
		}},
		{"GrantRole", func(k idempotency.Key) error {
			_, err := b.GrantRole(b.asRoot(), at(ada, k), auth.RoleAuditor)
			return err
		}},
		{"RevokeRole", func(k idempotency.Key) error {
			return b.RevokeRole(b.asRoot(), auth.Target{ID: ada.ID, Key: k}, auth.RoleAuditor)
		}},
		{"RevokeSession", func(k idempotency.Key) error {
			s, err := b.RevokeSession(b.asRoot(), k, ada.ID, session.ID)
			version = s.Version
			return err
		}},
		{"ChangePassword", func(k idempotency.Key) error {
			return answer(b.ChangePassword(b.as(eve, own.ID), k, goodPassword, "another long password"))
		}},
		{"RevokeUserSessions", func(k idempotency.Key) error {
			n, err := b.RevokeUserSessions(b.asRoot(), k, eve.ID)
			version = int64(n)
			return err
		}},
		{"ResetPassword", func(k idempotency.Key) error {
			return answer(b.ResetPassword(b.asRoot(), auth.Target{ID: eve.ID, Key: k, ETag: "2"}, goodPassword))
		}},
		{"DisableUser", func(k idempotency.Key) error {
			return answer(b.DisableUser(b.asRoot(), auth.Target{ID: eve.ID, Key: k, ETag: "3"}))
		}},
		{"EnableUser", func(k idempotency.Key) error {
			return answer(b.EnableUser(b.asRoot(), auth.Target{ID: eve.ID, Key: k, ETag: "4"}))
		}},
		{"UnlockUser", func(k idempotency.Key) error {
			if k.IsZero() {
				return nil
			}
			return answer(b.UnlockUser(b.asRoot(), auth.Target{ID: doomed.ID, Key: k}))
		}},
		{"DeleteUser", func(k idempotency.Key) error { return b.DeleteUser(b.asRoot(), at(doomed, k)) }},
		{"UpdateLoginPolicy", func(k idempotency.Key) error {
			p, err := b.UpdateLoginPolicy(b.asRoot(), k, "1", auth.PolicyChange{MinPasswordLength: &length})
			version = p.Version
			return err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bb := *b
			bb.t = t
			b.tryLogin(doomed.Email, "a wrong password") // so that there is something to unlock
			id := newID()
			var first int64
			events := bb.recorded(func() {
				if err := test.do(key(id, "body")); err != nil {
					t.Fatal(err)
				}
				first = version
			})
			if len(events) == 0 {
				t.Fatal("the first call recorded nothing")
			}
			bb.expect(func() {
				if err := test.do(key(id, "body")); err != nil {
					t.Errorf("repeat: %v", err)
				}
			})
			if version != first {
				t.Errorf("the repeat was answered with %d, the first call with %d", version, first)
			}
			refusals := bb.recorded(func() {
				requireReason(t, test.do(key(id, "other")), apperr.KindInvalidArgument, "REQUEST_ID_REUSED")
			})
			for _, e := range refusals {
				if e.GetResource().GetVersion() != 0 || e.GetReason() != "REQUEST_ID_REUSED" {
					t.Errorf("the other body recorded %s", line(e))
				}
			}
		})
	}
	b.requireWhole()
}

// TestTheSameCallAtOnceIsDoneOnce: eight copies of one call race, and all get the same answer.
func TestTheSameCallAtOnceIsDoneOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	k := key(newID(), "body")
	ids := make([]uuid.UUID, 8)
	events := b.recorded(func() {
		var wg sync.WaitGroup
		for i := range ids {
			wg.Go(func() {
				u, err := b.CreateUser(b.asRoot(), k, auth.NewUser{Email: "ada@example.com", DisplayName: "Ada", Password: goodPassword})
				if err != nil {
					t.Error(err)
				}
				ids[i] = u.ID
			})
		}
		wg.Wait()
	})
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("answers differ: %v", ids)
		}
	}
	if len(events) != 1 {
		t.Errorf("%d events, want 1", len(events))
	}
	b.requireWhole()
}

// TestARefusedCallIsNotRemembered: its repeat is tried anew.
func TestARefusedCallIsNotRemembered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	k, name := key(newID(), "body"), "Countess"
	_, err := b.UpdateUser(b.asRoot(), auth.Target{ID: ada.ID, ETag: "2", Key: k}, auth.UserChange{DisplayName: &name})
	requireReason(t, err, apperr.KindAborted, "ETAG_MISMATCH")
	if _, err := b.UpdateUser(b.asRoot(), auth.Target{ID: ada.ID}, auth.UserChange{Email: &[]string{"x@example.com"}[0]}); err != nil {
		t.Fatal(err)
	}
	u, err := b.UpdateUser(b.asRoot(), auth.Target{ID: ada.ID, ETag: "2", Key: k}, auth.UserChange{DisplayName: &name})
	if err != nil || u.Version != 3 {
		t.Errorf("version %d, error %v", u.Version, err)
	}
}

// TestARepeatIsKnownWhateverHappensMeanwhile: that its caller is gone, or that the database cannot say whether it was made
// before, turns no repeat into a refusal of what was done. What was refused is recorded though the caller is gone.
func TestARepeatIsKnownWhateverHappensMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, k, name := b.user("Ada"), key(newID(), "body"), "Countess"
	var meanwhile func()
	config := b.db.Service.Config()
	config.ConnConfig.Tracer = atRollback(func() { meanwhile() })
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.Service = b.serviceOn(pool, cheap)
	update := func(ctx context.Context, k idempotency.Key) error {
		_, err := b.UpdateUser(ctx, auth.Target{ID: ada.ID, ETag: "1", Key: k}, auth.UserChange{DisplayName: &name})
		return err
	}
	if err := update(b.asRoot(), k); err != nil {
		t.Fatal(err)
	}

	hangUp := func(k idempotency.Key) {
		ctx, cancel := context.WithCancel(b.asRoot())
		meanwhile = cancel
		_ = update(ctx, k)
	}
	b.expect(func() { hangUp(k) })
	b.expect(func() { hangUp(key(newID(), "body")) }, "auth.user.update_refused.v1 UPDATE user@0 FAILED ETAG_MISMATCH by Root")
	rename := func(from, to string) {
		if _, err := b.db.Owner.Exec(t.Context(), "ALTER TABLE "+from+" RENAME TO "+to); err != nil {
			t.Error(err)
		}
	}
	meanwhile = func() { rename("requests", "away") }
	b.expect(func() {
		if err := update(b.asRoot(), k); apperr.KindOf(err) != apperr.KindInternal {
			t.Errorf("the repeat is answered with %v", err)
		}
	})
	meanwhile = func() {}
	rename("away", "requests")
	if err := update(b.asRoot(), k); err != nil {
		t.Errorf("a repeat without trouble: %v", err)
	}
	b.requireWhole()
}

// atRollback is a tracer that does something when a transaction is rolled back, before anything else happens.
type atRollback func()

func (do atRollback) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.EqualFold(q.SQL, "rollback") {
		do()
	}
	return ctx
}

func (atRollback) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
