// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// TestEveryOperationRecordsItsRows is the life of an account, each step with the events that it must record and no
// other (U16, U86, I1).
func TestEveryOperationRecordsItsRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := b.asRoot()
	var ada store.User
	var session store.Session
	var tokens auth.Tokens
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	target := func() auth.Target { return auth.Target{ID: ada.ID, ETag: auth.ETag(ada.Version)} }

	b.expect(func() { ada = b.user("Ada") },
		"auth.user.created.v1 CREATE user@1 SUCCEEDED by Root email:>ada@example.com display_name:>Ada state:>ACTIVE")
	b.expect(func() {
		email := "Countess@Example.com"
		var err error
		ada, err = b.UpdateUser(ctx, target(), auth.UserChange{Email: &email})
		must(err)
	}, "auth.user.updated.v1 UPDATE user@2 SUCCEEDED by Root email:ada@example.com>countess@example.com")
	b.expect(func() {
		_, err := b.GrantRole(ctx, target(), auth.RoleAuditor)
		must(err)
	}, "auth.role.granted.v1 CREATE role_grant@1 SUCCEEDED by Root role:>auditor")
	b.expect(func() { must(b.RevokeRole(ctx, target(), auth.RoleAuditor)) },
		"auth.role.revoked.v1 DELETE role_grant@2 SUCCEEDED by Root role:auditor>")
	b.expect(func() { tokens, session = b.login(ada, goodPassword) },
		"auth.login.succeeded.v1 LOGIN session@1 SUCCEEDED by Ada state:>ACTIVE expire_time:>t")
	b.expect(func() {
		_, err := b.Refresh(b.from(""), tokens.Refresh)
		must(err)
	}, "auth.session.refreshed.v1 UPDATE session@0 SUCCEEDED by Ada")
	b.expect(func() { must(b.Logout(b.as(ada, session.ID))) },
		"auth.session.ended.v1 LOGOUT session@2 SUCCEEDED LOGOUT by Ada state:ACTIVE>ENDED")
	b.expect(func() { must(b.Logout(b.as(ada, session.ID))) }) // nothing is left to end

	_, session = b.login(ada, goodPassword)
	b.expect(func() {
		_, err := b.RevokeSession(ctx, idempotency.Key{}, ada.ID, session.ID)
		must(err)
	}, "auth.session.revoked.v1 UPDATE session@2 SUCCEEDED REVOKED by Root state:ACTIVE>REVOKED")
	_, session = b.login(ada, goodPassword)
	b.login(ada, goodPassword)
	b.expect(func() {
		var err error
		ada, err = b.ChangePassword(b.as(ada, session.ID), idempotency.Key{}, goodPassword, "another long password")
		must(err)
	}, "auth.user.password_changed.v1 UPDATE user@3 SUCCEEDED by Ada",
		"auth.session.revoked.v1 UPDATE session@2 SUCCEEDED PASSWORD_CHANGED by Ada state:ACTIVE>REVOKED")
	b.login(ada, "another long password")
	b.expect(func() {
		n, err := b.RevokeUserSessions(ctx, idempotency.Key{}, ada.ID)
		must(err)
		if n != 2 {
			t.Errorf("revoked %d sessions, want 2", n)
		}
	}, "auth.session.revoked.v1 UPDATE session@2 SUCCEEDED REVOKED by Root state:ACTIVE>REVOKED",
		"auth.session.revoked.v1 UPDATE session@2 SUCCEEDED REVOKED by Root state:ACTIVE>REVOKED")
	b.login(ada, "another long password")
	b.expect(func() {
		var err error
		ada, err = b.ResetPassword(ctx, target(), goodPassword)
		must(err)
	}, "auth.user.password_reset.v1 UPDATE user@4 SUCCEEDED by Root",
		"auth.session.revoked.v1 UPDATE session@2 SUCCEEDED PASSWORD_RESET by Root state:ACTIVE>REVOKED")
	b.login(ada, goodPassword)
	b.expect(func() {
		var err error
		ada, err = b.DisableUser(ctx, target())
		must(err)
	}, "auth.user.disabled.v1 UPDATE user@5 SUCCEEDED by Root state:ACTIVE>DISABLED",
		"auth.session.revoked.v1 UPDATE session@2 SUCCEEDED USER_DISABLED by Root state:ACTIVE>REVOKED")
	b.expect(func() {
		var err error
		ada, err = b.EnableUser(ctx, target())
		must(err)
	}, "auth.user.enabled.v1 UPDATE user@6 SUCCEEDED by Root state:DISABLED>ACTIVE")
	b.expect(func() {
		length, networks := 10, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		_, err := b.UpdateLoginPolicy(ctx, idempotency.Key{}, "1", auth.PolicyChange{MinPasswordLength: &length, AllowedNetworks: &networks})
		must(err)
	}, "auth.login_policy.updated.v1 UPDATE login_policy@2 SUCCEEDED by Root min_password_length:12>10 allowed_networks:>192.0.2.0/24")

	_, err := b.GrantRole(ctx, target(), auth.RoleOperator)
	must(err)
	b.login(ada, goodPassword)
	before := b.count("sessions")
	if before != 8 {
		t.Fatalf("%d sessions before the deletion, want 8", before)
	}
	want := []string{
		"auth.user.deleted.v1 DELETE user@7 SUCCEEDED by Root email:countess@example.com> display_name:Ada> state:ACTIVE>",
		"auth.role.revoked.v1 DELETE role_grant@2 SUCCEEDED USER_DELETED by Root role:operator>",
		"auth.session.deleted.v1 DELETE session@2 SUCCEEDED USER_DELETED by Root state:ACTIVE>",
		"auth.session.deleted.v1 DELETE session@3 SUCCEEDED USER_DELETED by Root state:ENDED>",
	}
	for range 6 {
		want = append(want, "auth.session.deleted.v1 DELETE session@3 SUCCEEDED USER_DELETED by Root state:REVOKED>")
	}
	b.expect(func() { must(b.DeleteUser(ctx, target())) }, want...)
	if n := b.count("sessions"); n != 0 {
		t.Errorf("%d sessions outlive their user", n)
	}
	b.requireWhole()
}

// count is the number of rows of a table.
func (b *bundle) count(table string) (n int) {
	b.t.Helper()
	if err := b.db.Owner.QueryRow(b.t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// TestAnEventSaysWhoFromWhereAndWhat looks at one event whole.
func TestAnEventSaysWhoFromWhereAndWhat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	events := b.expect(func() { b.user("Ada") },
		"auth.user.created.v1 CREATE user@1 SUCCEEDED by Root email:>ada@example.com display_name:>Ada state:>ACTIVE")
	e := events[0]
	switch {
	case e.GetActor().GetId() != b.root.ID.String(), e.GetActor().GetSessionId() == "":
		t.Errorf("actor is %v", e.GetActor())
	case e.GetContext().GetClientAddress().GetPlain() != "192.0.2.1", e.GetContext().GetUserAgent() != "test", e.GetContext().GetCorrelationId() != "c-1":
		t.Errorf("context is %v", e.GetContext())
	case e.GetResource().GetDisplayName().GetPlain() != "Ada", e.GetOwner() != "auth", e.GetAction() != "auth.user.created":
		t.Errorf("event is %v", e)
	case time.Since(e.GetOccurTime().AsTime()).Abs() > time.Minute:
		t.Errorf("occurred at %v", e.GetOccurTime().AsTime())
	}
}

// TestBootstrapWorksOnce: also when two start it at the same time, and the refusal is recorded.
func TestBootstrapWorksOnce(t *testing.T) {
	t.Parallel()
	b := fresh(t)
	ctx, who := t.Context(), auth.NewUser{Email: "Root@Example.com", DisplayName: "Root", Password: rootPassword}
	_, err := b.CreateUser(b.from(""), idempotency.Key{}, who)
	requireReason(t, err, apperr.KindFailedPrecondition, "NOT_BOOTSTRAPPED")
	_, err = b.Bootstrap(ctx, auth.NewUser{Email: "x@example.com", DisplayName: "X", Password: "short"})
	requireReason(t, err, apperr.KindInvalidArgument, "PASSWORD_TOO_SHORT")

	errs := make([]error, 2)
	b.expect(func() {
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { _, errs[i] = b.Bootstrap(ctx, who) })
		}
		wg.Wait()
	}, "auth.user.created.v1 CREATE user@1 SUCCEEDED by system email:>root@example.com display_name:>Root state:>ACTIVE",
		"auth.role.granted.v1 CREATE role_grant@1 SUCCEEDED by system role:>admin",
		"auth.role.granted.v1 CREATE role_grant@1 SUCCEEDED by system role:>auditor",
		"auth.role.granted.v1 CREATE role_grant@1 SUCCEEDED by system role:>operator",
		"auth.login_policy.created.v1 CREATE login_policy@1 SUCCEEDED by system min_password_length:>12 max_failed_attempts:>5 lockout_duration:>900s session_duration:>43200s",
		"auth.bootstrap_refused.v1 CREATE user@0 FAILED ALREADY_BOOTSTRAPPED by system")
	if errs[0] == nil {
		errs[0], errs[1] = errs[1], errs[0]
	}
	requireReason(t, errs[0], apperr.KindFailedPrecondition, "ALREADY_BOOTSTRAPPED")
	if errs[1] != nil {
		t.Error(errs[1])
	}
	b.requireWhole()
}

// TestRefusedAttemptsAreRecorded: nothing changes, no event claims success, and one says what was tried and why it was
// refused (T18).
func TestRefusedAttemptsAreRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, eve := b.user("Ada"), b.user("Eve")
	_, session := b.login(ada, goodPassword)
	nobody, short := uuid.Must(uuid.NewV7()), 3
	root := auth.Target{ID: b.root.ID}
	for _, test := range []struct {
		name   string
		do     func() error
		kind   apperr.Kind
		reason string
		want   string
	}{
		{"weak password", func() error {
			_, err := b.CreateUser(b.asRoot(), idempotency.Key{}, auth.NewUser{Email: "x@example.com", DisplayName: "X", Password: "short"})
			return err
		}, apperr.KindInvalidArgument, "PASSWORD_TOO_SHORT", "auth.user.create_refused.v1 CREATE user@0 FAILED PASSWORD_TOO_SHORT by Root"},
		{"taken address", func() error {
			_, err := b.CreateUser(b.asRoot(), idempotency.Key{}, auth.NewUser{Email: "ADA@example.com", DisplayName: "X", Password: goodPassword})
			return err
		}, apperr.KindAlreadyExists, "EMAIL_TAKEN", "auth.user.create_refused.v1 CREATE user@0 FAILED EMAIL_TAKEN by Root"},
		{"change to a taken address", func() error {
			_, err := b.UpdateUser(b.asRoot(), auth.Target{ID: eve.ID}, auth.UserChange{Email: &ada.Email})
			return err
		}, apperr.KindAlreadyExists, "EMAIL_TAKEN", "auth.user.update_refused.v1 UPDATE user@0 FAILED EMAIL_TAKEN by Root"},
		{"stale etag", func() error {
			_, err := b.DisableUser(b.asRoot(), auth.Target{ID: ada.ID, ETag: "7"})
			return err
		}, apperr.KindAborted, "ETAG_MISMATCH", "auth.user.disable_refused.v1 UPDATE user@0 FAILED ETAG_MISMATCH by Root"},
		{"enable an active user", func() error {
			_, err := b.EnableUser(b.asRoot(), auth.Target{ID: ada.ID})
			return err
		}, apperr.KindFailedPrecondition, "USER_ALREADY_ACTIVE", "auth.user.enable_refused.v1 UPDATE user@0 FAILED USER_ALREADY_ACTIVE by Root"},
		{
			"delete nobody", func() error { return b.DeleteUser(b.asRoot(), auth.Target{ID: nobody}) },
			apperr.KindNotFound, "USER_NOT_FOUND", "auth.user.delete_refused.v1 DELETE user@0 FAILED USER_NOT_FOUND by Root",
		},
		{
			"disable the last admin", func() error { _, err := b.DisableUser(b.asRoot(), root); return err },
			apperr.KindFailedPrecondition, "LAST_ADMIN", "auth.user.disable_refused.v1 UPDATE user@0 FAILED LAST_ADMIN by Root",
		},
		{
			"delete the last admin", func() error { return b.DeleteUser(b.asRoot(), root) },
			apperr.KindFailedPrecondition, "LAST_ADMIN", "auth.user.delete_refused.v1 DELETE user@0 FAILED LAST_ADMIN by Root",
		},
		{
			"take the last admin's role", func() error { return b.RevokeRole(b.asRoot(), root, auth.RoleAdmin) },
			apperr.KindFailedPrecondition, "LAST_ADMIN", "auth.role.revoke_refused.v1 DELETE user@0 FAILED LAST_ADMIN by Root",
		},
		{
			"grant a role twice", func() error { _, err := b.GrantRole(b.asRoot(), root, auth.RoleAdmin); return err },
			apperr.KindAlreadyExists, "ROLE_ALREADY_GRANTED", "auth.role.grant_refused.v1 CREATE user@0 FAILED ROLE_ALREADY_GRANTED by Root",
		},
		{
			"take a role that is not there", func() error { return b.RevokeRole(b.asRoot(), auth.Target{ID: ada.ID}, auth.RoleOperator) },
			apperr.KindNotFound, "ROLE_NOT_GRANTED", "auth.role.revoke_refused.v1 DELETE user@0 FAILED ROLE_NOT_GRANTED by Root",
		},
		{"another's session", func() error {
			_, err := b.RevokeSession(b.as(eve, nobody), idempotency.Key{}, ada.ID, session.ID)
			return err
		}, apperr.KindPermissionDenied, "NOT_OWN_ACCOUNT", "auth.session.revoke_refused.v1 UPDATE session@0 DENIED NOT_OWN_ACCOUNT by Eve"},
		{"all of another's sessions", func() error {
			_, err := b.RevokeUserSessions(b.as(eve, nobody), idempotency.Key{}, ada.ID)
			return err
		}, apperr.KindPermissionDenied, "NOT_OWN_ACCOUNT", "auth.session.revoke_all_refused.v1 UPDATE user@0 DENIED NOT_OWN_ACCOUNT by Eve"},
		{"reset to a weak password", func() error {
			_, err := b.ResetPassword(b.asRoot(), auth.Target{ID: ada.ID}, "short")
			return err
		}, apperr.KindInvalidArgument, "PASSWORD_TOO_SHORT", "auth.user.password_reset_refused.v1 UPDATE user@0 FAILED PASSWORD_TOO_SHORT by Root"},
		{"change to a weak password", func() error {
			_, err := b.ChangePassword(b.as(ada, session.ID), idempotency.Key{}, goodPassword, "short")
			return err
		}, apperr.KindInvalidArgument, "PASSWORD_TOO_SHORT", "auth.user.password_change_refused.v1 UPDATE user@0 FAILED PASSWORD_TOO_SHORT by Ada"},
		{"change a password without knowing it", func() error {
			_, err := b.ChangePassword(b.as(ada, session.ID), idempotency.Key{}, "a wrong password", "another long password")
			return err
		}, apperr.KindPermissionDenied, "BAD_PASSWORD", "auth.user.password_change_refused.v1 UPDATE user@0 DENIED BAD_PASSWORD by Ada"},
		{"policy out of bounds", func() error {
			_, err := b.UpdateLoginPolicy(b.asRoot(), idempotency.Key{}, "", auth.PolicyChange{MinPasswordLength: &short})
			return err
		}, apperr.KindInvalidArgument, "INVALID_FIELD", "auth.login_policy.update_refused.v1 UPDATE login_policy@0 FAILED INVALID_FIELD by Root"},
		{"stale policy", func() error {
			_, err := b.UpdateLoginPolicy(b.asRoot(), idempotency.Key{}, "9", auth.PolicyChange{})
			return err
		}, apperr.KindAborted, "ETAG_MISMATCH", "auth.login_policy.update_refused.v1 UPDATE login_policy@0 FAILED ETAG_MISMATCH by Root"},
		{"requeue of what is not there", func() error {
			err := apperr.NotFound("EVENT_NOT_FOUND", "there is no such event")
			b.RequeueRefused(b.asRoot(), []uuid.UUID{nobody}, err)
			return err
		}, apperr.KindNotFound, "EVENT_NOT_FOUND", "auth.outbox.requeue_refused.v1 OPERATE outbox_event@0 FAILED EVENT_NOT_FOUND by Root"},
	} {
		t.Run(test.name, func(t *testing.T) {
			bb := *b
			bb.t = t
			bb.expect(func() { requireReason(t, test.do(), test.kind, test.reason) }, test.want)
		})
	}
	b.requireWhole()
}

// TestAChangeOfNothingRecordsNothing: no version, no event.
func TestAChangeOfNothingRecordsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	b.expect(func() {
		u, err := b.UpdateUser(b.asRoot(), auth.Target{ID: ada.ID, ETag: "1"}, auth.UserChange{DisplayName: &ada.DisplayName})
		if err != nil || u.Version != 1 {
			t.Errorf("version %d, error %v", u.Version, err)
		}
		if _, err := b.UnlockUser(b.asRoot(), auth.Target{ID: ada.ID}); err != nil {
			t.Error(err)
		}
		if p, err := b.UpdateLoginPolicy(b.asRoot(), idempotency.Key{}, "", auth.PolicyChange{}); err != nil || p.Version != 1 {
			t.Errorf("version %d, error %v", p.Version, err)
		}
	})
}

// TestConcurrentUpdatesHaveDenseVersions: 100 at once, each with its own version and event (BC-21).
func TestConcurrentUpdatesHaveDenseVersions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			name := fmt.Sprintf("Ada %d", i)
			if _, err := b.UpdateUser(b.asRoot(), auth.Target{ID: ada.ID}, auth.UserChange{DisplayName: &name}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	u, err := b.GetUser(b.asRoot(), ada.ID)
	if err != nil || u.Version != 101 {
		t.Errorf("version %d, error %v, want 101", u.Version, err)
	}
	b.requireWhole()
}

// TestOfConcurrentChangesWithOneETagOneWins and the others are told.
func TestOfConcurrentChangesWithOneETagOneWins(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			name := fmt.Sprintf("Ada %d", i)
			_, errs[i] = b.UpdateUser(b.asRoot(), auth.Target{ID: ada.ID, ETag: "1"}, auth.UserChange{DisplayName: &name})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		requireReason(t, err, apperr.KindAborted, "ETAG_MISMATCH")
	}
	if won != 1 {
		t.Errorf("%d changes won, want 1", won)
	}
	b.requireWhole()
}

// TestTwoAdminsCannotRemoveEachOther at the same time, whichever way they try.
func TestTwoAdminsCannotRemoveEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := b.user("Ada")
	if _, err := b.GrantRole(b.asRoot(), auth.Target{ID: ada.ID}, auth.RoleAdmin); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { _, errs[0] = b.DisableUser(b.asRoot(), auth.Target{ID: ada.ID}) })
	wg.Go(func() { errs[1] = b.RevokeRole(b.asRoot(), auth.Target{ID: b.root.ID}, auth.RoleAdmin) })
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("errors are %v and %v, want one of the two refused", errs[0], errs[1])
	}
	for _, err := range errs {
		if err != nil {
			requireReason(t, err, apperr.KindFailedPrecondition, "LAST_ADMIN")
		}
	}
	b.requireWhole()
}
