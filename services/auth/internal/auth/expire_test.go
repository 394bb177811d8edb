// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

const expiredLine = "auth.session.ended.v1 UPDATE session@2 SUCCEEDED EXPIRED by system state:ACTIVE>EXPIRED"

// shortSessions makes a session last an hour.
func (b *bundle) shortSessions() {
	b.t.Helper()
	hour := time.Hour
	b.policy(auth.PolicyChange{SessionLifetime: &hour})
}

// tidy is one pass of housekeeping that must not wait for anybody.
func (b *bundle) tidy() error {
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	return auth.Housekeeper{Auth: b.Service}.Once(ctx)
}

func (b *bundle) requireState(s store.Session, state string) {
	b.t.Helper()
	got, err := b.GetSession(b.asRoot(), s.UserID, s.ID)
	if err != nil || got.State != state {
		b.t.Errorf("session is %q, error %v, want %q", got.State, err, state)
	}
}

// TestExpiredSessionsEndOnce: replicas that tidy at once end every session that is past its lifetime, with one event each,
// and no other session.
func TestExpiredSessionsEndOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortSessions()
	const sessions, replicas = 230, 4 // more than two batches
	ada, eve := b.user("Ada"), b.user("Eve")
	var wg sync.WaitGroup
	for _, u := range []store.User{ada, eve} {
		wg.Go(func() {
			for range sessions / 2 {
				if _, err := b.Login(b.from(""), u.Email, goodPassword); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	_, over := b.login(ada, goodPassword)
	if err := b.Logout(b.as(ada, over.ID)); err != nil {
		t.Fatal(err)
	}
	b.clock.advance(59 * time.Minute)
	tokens, alive := b.login(ada, goodPassword)
	b.expect(func() {
		if err := b.tidy(); err != nil {
			t.Error(err)
		}
	})

	b.clock.advance(2 * time.Minute)
	events := b.recorded(func() {
		for range replicas {
			replica := auth.Housekeeper{Auth: b.service(cheap)}
			wg.Go(func() {
				if err := replica.Once(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
	ended := map[string]bool{}
	for _, e := range events {
		ended[e.GetResource().GetId()] = true
		if got := line(e); got != expiredLine {
			t.Errorf("recorded %s", got)
		}
	}
	if len(events) != sessions || len(ended) != sessions {
		t.Errorf("%d events about %d sessions, want %d", len(events), len(ended), sessions)
	}
	if n := b.count("sessions WHERE state = 'EXPIRED'"); n != sessions {
		t.Errorf("%d sessions are EXPIRED, want %d", n, sessions)
	}
	b.requireState(alive, store.SessionActive)
	b.requireState(over, store.SessionEnded)
	if _, err := b.Refresh(b.from(""), tokens.Refresh); err != nil {
		t.Errorf("a session within its lifetime: %v", err)
	}
	b.expect(func() {
		if err := b.tidy(); err != nil {
			t.Error(err)
		}
	})
	b.requireWhole()
}

// TestExpiredSessionsWaitForNobody: a session whose user somebody holds is left for the next pass, and the others are not.
// What its tokens are answered, and what is recorded of that, does not tell whether housekeeping was here.
func TestExpiredSessionsWaitForNobody(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortSessions()
	ada, eve := b.user("Ada"), b.user("Eve")
	_, busy := b.login(ada, goodPassword)
	tokens, idle := b.login(eve, goodPassword)
	b.clock.advance(61 * time.Minute)
	refresh := func() {
		_, err := b.Refresh(b.from(""), tokens.Refresh)
		requireReason(t, err, apperr.KindUnauthenticated, "INVALID_REFRESH_TOKEN")
	}
	const refusedLine = "auth.session.refresh_refused.v1 UPDATE session@0 DENIED SESSION_EXPIRED by anonymous"
	b.expect(refresh, refusedLine)
	_, release := b.hold(`SELECT FROM users WHERE id = $1 FOR UPDATE`, ada.ID)
	tidy := func() {
		if err := b.tidy(); err != nil {
			t.Error(err)
		}
	}
	b.expect(tidy, expiredLine)
	b.requireState(idle, store.SessionExpired)
	b.requireState(busy, store.SessionActive)
	release()
	b.expect(tidy, expiredLine)
	b.expect(refresh, refusedLine)
	_, err := b.RevokeSession(b.asRoot(), key(newID(), "x"), eve.ID, idle.ID)
	requireReason(t, err, apperr.KindFailedPrecondition, "SESSION_ENDED")
	b.requireWhole()
}

// TestExpiredSessionsEndWithTheirEventsOrNotAtAll: where the event cannot be recorded the session stays as it was, what
// else is due is done, and the next pass ends it.
func TestExpiredSessionsEndWithTheirEventsOrNotAtAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortSessions()
	ada := b.user("Ada")
	_, session := b.login(ada, goodPassword)
	b.clock.advance(48 * time.Hour)
	exec := func(sql string) {
		t.Helper()
		if _, err := b.db.Owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec(`ALTER TABLE audit_outbox ADD CONSTRAINT no_ends CHECK (event_type <> 'auth.session.ended.v1')`)
	b.expect(func() {
		var refused *pgconn.PgError
		if err := b.tidy(); !errors.As(err, &refused) || !strings.Contains(err.Error(), "end expired sessions") {
			t.Errorf("a refused event: %v", err)
		}
	})
	b.requireState(session, store.SessionActive)
	if n := b.count("refresh_tokens"); n != 0 {
		t.Errorf("%d refresh tokens outlive their day of grace", n)
	}
	exec(`ALTER TABLE audit_outbox DROP CONSTRAINT no_ends`)
	b.expect(func() {
		if err := b.tidy(); err != nil {
			t.Error(err)
		}
	}, expiredLine)
	b.requireState(session, store.SessionExpired)
	b.requireWhole()
}
