// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

const (
	failedLogin = "auth.login.failed.v1 LOGIN user@0 FAILED BAD_PASSWORD by anonymous"
	lockedOut   = "auth.login.denied.v1 LOGIN user@0 DENIED LOCKED_OUT by anonymous"
	locking     = "auth.user.locked.v1 UPDATE user@0 SUCCEEDED TOO_MANY_FAILED_ATTEMPTS by system lock_expire_time:>t"
	loggedIn    = "auth.login.succeeded.v1 LOGIN session@1 SUCCEEDED by Ada state:>ACTIVE expire_time:>t"
)

// policy changes the login policy.
func (b *bundle) policy(c auth.PolicyChange) {
	b.t.Helper()
	if _, err := b.UpdateLoginPolicy(b.asRoot(), idempotency.Key{}, "", c); err != nil {
		b.t.Fatal(err)
	}
}

// tryLogin logs in and expects a refusal.
func (b *bundle) tryLogin(email, password string) {
	b.t.Helper()
	_, err := b.Login(b.from("192.0.2.1"), email, password)
	requireReason(b.t, err, apperr.KindUnauthenticated, "INVALID_LOGIN")
}

// TestFailedLoginsLockTheAccount, for as long as the policy says; the caller cannot tell, the events can.
func TestFailedLoginsLockTheAccount(t *testing.T) {
	t.Parallel()
	b := setup(t)
	attempts := 3
	b.policy(auth.PolicyChange{MaxFailedAttempts: &attempts})
	ada := b.user("Ada")
	b.expect(func() {
		b.tryLogin(ada.Email, "wrong password 1")
		b.tryLogin(ada.Email, "wrong password 2")
		b.login(ada, goodPassword) // a success starts the count anew
		b.tryLogin(ada.Email, "wrong password 3")
		b.tryLogin(ada.Email, "wrong password 4")
	}, failedLogin, failedLogin, failedLogin, failedLogin, loggedIn)
	b.expect(func() { b.tryLogin(ada.Email, "wrong password 5") }, failedLogin, locking)
	b.expect(func() { b.tryLogin(ada.Email, goodPassword) }, lockedOut)
	u, err := b.GetUser(b.asRoot(), ada.ID)
	if err != nil || u.LockedUntil == nil || u.Version != 1 {
		t.Errorf("user is %v, error %v: want a lock-out beside version 1", u, err)
	}
	b.clock.advance(16 * time.Minute)
	b.expect(func() { b.tryLogin(ada.Email, "wrong password 5") }, failedLogin) // the count began anew
	b.expect(func() { b.login(ada, goodPassword) }, loggedIn)

	for range 3 {
		b.tryLogin(ada.Email, "wrong password 6")
	}
	b.expect(func() {
		if _, err := b.UnlockUser(b.asRoot(), auth.Target{ID: ada.ID}); err != nil {
			t.Error(err)
		}
	}, "auth.user.unlocked.v1 UPDATE user@0 SUCCEEDED by Root lock_expire_time:t>")
	b.expect(func() { b.login(ada, goodPassword) }, loggedIn)
	b.requireWhole()
}

// TestGuessesAtOnceAreCountedOneByOne: no more than the allowed number is looked at, and a right guess among those that
// come after it does not pass.
func TestGuessesAtOnceAreCountedOneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	events := b.recorded(func() {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { b.tryLogin(ada.Email, "a wrong password") })
		}
		wg.Wait()
	})
	counts := map[string]int{}
	for _, e := range events {
		counts[line(e)]++
	}
	if counts[failedLogin] != 5 || counts[locking] != 1 || counts[lockedOut] != 15 {
		t.Errorf("recorded %v, want 5 failures, 1 lock-out and 15 denials", counts)
	}
}

// TestAWrongCurrentPasswordCountsTowardsTheLockOut: a stolen access token is no way to try passwords.
func TestAWrongCurrentPasswordCountsTowardsTheLockOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	_, session := b.login(ada, goodPassword)
	for range 5 {
		_, err := b.ChangePassword(b.as(ada, session.ID), idempotency.Key{}, "a wrong password", "another long password")
		requireReason(t, err, apperr.KindPermissionDenied, "BAD_PASSWORD")
	}
	_, err := b.ChangePassword(b.as(ada, session.ID), idempotency.Key{}, goodPassword, "another long password")
	requireReason(t, err, apperr.KindPermissionDenied, "LOCKED_OUT")
	b.expect(func() { b.tryLogin(ada.Email, goodPassword) }, lockedOut)
}

// TestAnUnknownAddressLeavesAnOpaqueID: the same for the same address, and nothing of the address itself.
func TestAnUnknownAddressLeavesAnOpaqueID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const unknown = "auth.login.failed.v1 LOGIN user@0 FAILED UNKNOWN_USER by anonymous"
	events := b.expect(func() {
		b.tryLogin("nobody@example.com", goodPassword)
		b.tryLogin("Nobody@example.com", goodPassword)
		b.tryLogin("other@example.com", goodPassword)
	}, unknown, unknown, unknown)
	ids := []string{events[0].GetResource().GetId(), events[1].GetResource().GetId(), events[2].GetResource().GetId()}
	if ids[0] != ids[1] || ids[0] == ids[2] || !strings.HasPrefix(ids[0], "unknown-") {
		t.Errorf("ids are %v", ids)
	}
	for _, e := range events {
		if strings.Contains(strings.ToLower(e.String()), "nobody") {
			t.Errorf("the event tells the address: %v", e)
		}
	}
}

// TestADisabledUserCannotLogIn, though the password is right.
func TestADisabledUserCannotLogIn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	tokens, _ := b.login(ada, goodPassword)
	if _, err := b.DisableUser(b.asRoot(), auth.Target{ID: ada.ID}); err != nil {
		t.Fatal(err)
	}
	b.expect(func() { b.tryLogin(ada.Email, goodPassword) }, "auth.login.denied.v1 LOGIN user@0 DENIED USER_DISABLED by anonymous")
	b.expect(func() {
		_, err := b.Refresh(b.from(""), tokens.Refresh)
		requireReason(t, err, apperr.KindUnauthenticated, "INVALID_REFRESH_TOKEN")
	}, "auth.session.refresh_refused.v1 UPDATE session@0 DENIED SESSION_ENDED by anonymous")
}

// TestNetworksOfThePolicy hold for login and refresh.
func TestNetworksOfThePolicy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	tokens, _ := b.login(ada, goodPassword)
	networks := []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	b.policy(auth.PolicyChange{AllowedNetworks: &networks})
	for address, allowed := range map[string]bool{
		"198.51.100.7": true, "::ffff:198.51.100.7": true, "2001:db8::1": true, "192.0.2.1": false, "2001:db9::1": false, "": false,
	} {
		_, err := b.Login(b.from(address), ada.Email, goodPassword)
		if allowed != (err == nil) {
			t.Errorf("login from %q: %v", address, err)
		}
		if !allowed {
			requireReason(t, err, apperr.KindPermissionDenied, "NETWORK_NOT_ALLOWED")
		}
	}
	events := b.expect(func() {
		_, err := b.Login(b.from("192.0.2.1"), ada.Email, "a wrong password")
		requireReason(t, err, apperr.KindPermissionDenied, "NETWORK_NOT_ALLOWED")
	}, "auth.login.denied.v1 LOGIN user@0 DENIED NETWORK_NOT_ALLOWED by anonymous")
	if events[0].GetResource().GetId() != ada.ID.String() {
		t.Errorf("resource is %v", events[0].GetResource())
	}
	b.expect(func() {
		_, err := b.Refresh(b.from("192.0.2.1"), tokens.Refresh)
		requireReason(t, err, apperr.KindPermissionDenied, "NETWORK_NOT_ALLOWED")
	}, "auth.session.refresh_refused.v1 UPDATE session@0 DENIED NETWORK_NOT_ALLOWED by anonymous")
	if _, err := b.Refresh(b.from("198.51.100.7"), tokens.Refresh); err != nil {
		t.Errorf("the refused refresh used the token up: %v", err)
	}
}

// TestReuseOfARefreshTokenRevokesTheFamily: the token that descends from it is worth nothing then.
func TestReuseOfARefreshTokenRevokesTheFamily(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	first, session := b.login(ada, goodPassword)
	second, err := b.Refresh(b.from(""), first.Refresh)
	if err != nil || second.Refresh == first.Refresh {
		t.Fatalf("refresh: %v", err)
	}
	refresh := func(token string) func() {
		return func() {
			_, err := b.Refresh(b.from(""), token)
			requireReason(t, err, apperr.KindUnauthenticated, "INVALID_REFRESH_TOKEN")
		}
	}
	b.expect(refresh(first.Refresh),
		"auth.session.refresh_refused.v1 UPDATE session@0 DENIED REFRESH_TOKEN_REUSED by anonymous",
		"auth.session.revoked.v1 UPDATE session@2 SUCCEEDED REFRESH_TOKEN_REUSED by system state:ACTIVE>REVOKED")
	b.expect(refresh(second.Refresh), "auth.session.refresh_refused.v1 UPDATE session@0 DENIED SESSION_ENDED by anonymous")
	b.expect(refresh(strings.Repeat("A", 43)), "auth.session.refresh_refused.v1 UPDATE session@0 DENIED UNKNOWN_REFRESH_TOKEN by anonymous")
	got, err := b.GetSession(b.asRoot(), ada.ID, session.ID)
	if err != nil || got.State != store.SessionRevoked || got.EndReason != "REFRESH_TOKEN_REUSED" {
		t.Errorf("session is %v, error %v", got, err)
	}
	b.requireWhole()
}

// TestOfRefreshesAtOnceOneWins and the session does not outlive the doubt.
func TestOfRefreshesAtOnceOneWins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	tokens, session := b.login(ada, goodPassword)
	results := make([]auth.Tokens, 8)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() { results[i], _ = b.Refresh(b.from(""), tokens.Refresh) })
	}
	wg.Wait()
	won := 0
	for _, r := range results {
		if r.Refresh == "" {
			continue
		}
		won++
		if _, err := b.Refresh(b.from(""), r.Refresh); err == nil {
			t.Error("the winner's token still works")
		}
	}
	got, err := b.GetSession(b.asRoot(), ada.ID, session.ID)
	if won != 1 || err != nil || got.State != store.SessionRevoked {
		t.Errorf("%d refreshes won, session is %v, error %v", won, got, err)
	}
	b.requireWhole()
}

// TestASessionEndsByItself however often it is refreshed.
func TestASessionEndsByItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lifetime := time.Hour
	b.policy(auth.PolicyChange{SessionLifetime: &lifetime})
	ada := b.user("Ada")
	tokens, session := b.login(ada, goodPassword)
	b.clock.advance(50 * time.Minute)
	tokens, err := b.Refresh(b.from(""), tokens.Refresh)
	if err != nil || !tokens.RefreshExpire.Equal(session.ExpireTime) {
		t.Fatalf("refreshed until %v, error %v, want until %v", tokens.RefreshExpire, err, session.ExpireTime)
	}
	p := authn.Principal{UserID: ada.ID.String(), SessionID: session.ID.String()}
	if err := b.CheckStanding(t.Context(), p); err != nil {
		t.Error(err)
	}
	b.clock.advance(11 * time.Minute)
	b.expect(func() {
		_, err := b.Refresh(b.from(""), tokens.Refresh)
		requireReason(t, err, apperr.KindUnauthenticated, "INVALID_REFRESH_TOKEN")
	}, "auth.session.refresh_refused.v1 UPDATE session@0 DENIED SESSION_EXPIRED by anonymous")
	requireReason(t, b.CheckStanding(t.Context(), p), apperr.KindUnauthenticated, "SESSION_ENDED")
}

// TestRevokedRolesCountAtOnce: a token that names one is refused before it expires.
func TestRevokedRolesCountAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	_, session := b.login(ada, goodPassword)
	p := authn.Principal{UserID: ada.ID.String(), SessionID: session.ID.String(), Roles: []string{auth.RoleAuditor}}
	if _, err := b.GrantRole(b.asRoot(), auth.Target{ID: ada.ID}, auth.RoleAuditor); err != nil {
		t.Fatal(err)
	}
	if err := b.CheckStanding(t.Context(), p); err != nil {
		t.Error(err)
	}
	if err := b.RevokeRole(b.asRoot(), auth.Target{ID: ada.ID}, auth.RoleAuditor); err != nil {
		t.Fatal(err)
	}
	requireReason(t, b.CheckStanding(t.Context(), p), apperr.KindUnauthenticated, "ROLES_CHANGED")
}

// TestAPasswordIsRehashedWhenItsCostChanges, which is a version of the user and so an event.
func TestAPasswordIsRehashedWhenItsCostChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	dearer := b.service(auth.HashParams{MemoryKiB: 128, Passes: 1})
	login := func() {
		if _, err := dearer.Login(b.from(""), ada.Email, goodPassword); err != nil {
			t.Error(err)
		}
	}
	b.expect(login, loggedIn, "auth.user.password_rehashed.v1 UPDATE user@2 SUCCEEDED by system")
	b.expect(login, loggedIn)
	b.requireWhole()
}

// TestHousekeepingDeletesWhatIsDue and nothing else.
func TestHousekeepingDeletesWhatIsDue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	b.login(ada, goodPassword)
	for range 2 {
		name := time.Now().String()
		if _, err := b.UpdateUser(b.asRoot(), auth.Target{ID: ada.ID, Key: key(newID(), "x")}, auth.UserChange{DisplayName: &name}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.db.Owner.Exec(t.Context(), `UPDATE requests SET created_at = created_at - interval '25 hours'
		WHERE request_id = (SELECT request_id FROM requests LIMIT 1)`); err != nil {
		t.Fatal(err)
	}
	h := auth.Housekeeper{Auth: b.Service}
	if err := h.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if requests, tokens := b.count("requests"), b.count("refresh_tokens"); requests != 1 || tokens != 1 {
		t.Errorf("%d request ids and %d refresh tokens are left, want 1 and 1", requests, tokens)
	}
	b.clock.advance(48 * time.Hour)
	if err := h.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tokens := b.count("refresh_tokens"); tokens != 0 {
		t.Errorf("%d refresh tokens outlive their day of grace", tokens)
	}
}
