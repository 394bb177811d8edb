// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// loginFailure is one refused log-in of user at a moment.
func loginFailure(t *testing.T, user string, moment time.Time) inbox.Event {
	t.Helper()
	return newEvent(t, named("auth.login.failed", auditv1.Operation_OPERATION_LOGIN), at(moment),
		func(e *auditv1.AuditEvent) {
			e.Actor = &auditv1.Actor{Type: "anonymous"}
			e.Resource = &auditv1.Resource{Type: "user", Id: user}
			e.Outcome, e.Reason = auditv1.Outcome_OUTCOME_FAILED, "BAD_PASSWORD"
		})
}

// failures are n refused log-ins, apart by a step.
func failures(t *testing.T, user string, start time.Time, n int, apart time.Duration) []inbox.Event {
	t.Helper()
	batch := make([]inbox.Event, n)
	for i := range batch {
		batch[i] = loginFailure(t, user, start.Add(time.Duration(i)*apart))
	}
	return batch
}

func TestRepeatedLoginFailures(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)
	for name, c := range map[string]struct {
		batches func(t *testing.T) [][]inbox.Event
		alerts  int64
	}{
		"four are none": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			return [][]inbox.Event{failures(t, "u", start, 4, time.Minute)}
		}, 0},
		"five in ten minutes are one": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			return [][]inbox.Event{failures(t, "u", start, 5, time.Minute)}
		}, 1},
		"five over eleven minutes are none": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			return [][]inbox.Event{failures(t, "u", start, 5, 165*time.Second)}
		}, 0},
		"five of different users are none": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			var batch []inbox.Event
			for i := range 5 {
				batch = append(batch, loginFailure(t, fmt.Sprint("u", i), start))
			}
			return [][]inbox.Event{batch}
		}, 0},
		"five at the same instant are one": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			return [][]inbox.Event{failures(t, "u", start, 5, 0)}
		}, 1},
		"one at a time, last first": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			all := failures(t, "u", start, 5, time.Minute)
			return [][]inbox.Event{{all[4]}, {all[2]}, {all[3]}, {all[0]}, {all[1]}}
		}, 1},
		"an hour of attempts is an alert each window": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			return [][]inbox.Event{failures(t, "u", start, 60, time.Minute)}
		}, 4},
		"attempts after the alert within the window raise no second": {func(t *testing.T) [][]inbox.Event {
			t.Helper()
			all := failures(t, "u", start, 14, time.Minute)
			return [][]inbox.Event{all[:5], all[5:9], all[9:12], all[12:]}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			batches := c.batches(t)
			for _, batch := range batches {
				b.watch(t, batch...)
			}
			if n := b.count(t, "SELECT count(*) FROM security_alerts"); n != c.alerts {
				t.Errorf("%d alerts, want %d", n, c.alerts)
			}
			// Running everything again changes nothing: the effect takes place once.
			seen := b.count(t, "SELECT count(*) FROM security_observations")
			for _, batch := range batches {
				b.watch(t, batch...)
			}
			if n := b.count(t, "SELECT count(*) FROM security_alerts"); n != c.alerts {
				t.Errorf("%d alerts after a replay, want %d", n, c.alerts)
			}
			if n := b.count(t, "SELECT count(*) FROM security_observations"); n != seen {
				t.Errorf("%d observations after a replay, want %d", n, seen)
			}
		})
	}
}

// Two workers hold parts of one pattern in transactions that overlap. Without the lock on the subject neither would see
// the other's notes, and the threshold would be stepped over unseen.
func TestThresholdIsSeenAcrossTwoWorkers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := failures(t, "u", time.Now().Add(-time.Hour), 5, time.Minute)
	first, err := b.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.Background()) }()
	if err := Watch(uuid.NewV7)(t.Context(), first, all[:3]); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		second <- b.inTx(t.Context(), func(tx pgx.Tx) error { return Watch(uuid.NewV7)(t.Context(), tx, all[3:]) })
	}()
	b.waitForLocks(t, "advisory", 1)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if n := b.count(t, "SELECT count(*) FROM security_alerts"); n != 1 {
		t.Errorf("%d alerts, want 1: a threshold was stepped over", n)
	}
}

// Whatever the order of a batch, its locks are asked for in one order and once each.
func TestLockKeysHaveOneOrder(t *testing.T) {
	t.Parallel()
	var seen []store.Observation
	for i := range 50 {
		seen = append(seen, store.Observation{Rule: RuleLoginFailures, Subject: fmt.Sprint("u", i%20)})
	}
	keys := lockKeys(seen)
	slices.Reverse(seen)
	if len(keys) != 20 || !slices.IsSorted(keys) || !slices.Equal(keys, lockKeys(seen)) {
		t.Errorf("keys %v and, reversed, %v", keys, lockKeys(seen))
	}
}

// Many workers with many subjects in other orders neither deadlock nor raise an alert twice.
func TestWatchByManyWorkers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const users = 8
	start := time.Now().Add(-time.Hour)
	var all []inbox.Event
	for i := range 5 {
		for u := range users {
			all = append(all, loginFailure(t, fmt.Sprint("u", u), start.Add(time.Duration(i)*time.Second)))
		}
	}
	var group errgroup.Group
	for worker := range 4 {
		group.Go(func() error {
			for i := range all {
				batch := []inbox.Event{all[(i+worker*11)%len(all)], all[(len(all)-1-i+worker*7)%len(all)]}
				if batch[0].ID == batch[1].ID {
					batch = batch[:1]
				}
				tx, err := b.Service.Begin(context.Background())
				if err != nil {
					return err
				}
				if err := Watch(uuid.NewV7)(context.Background(), tx, batch); err != nil {
					_ = tx.Rollback(context.Background())
					return err
				}
				if err := tx.Commit(context.Background()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := b.count(t, "SELECT count(*) FROM security_alerts"); n != users {
		t.Errorf("%d alerts, want one for each of %d users", n, users)
	}
}

// A burst never has fewer events than the threshold, never spans more than the window, and none is missed: what no alert
// covers is not itself a burst.
func TestBurstsProperty(t *testing.T) {
	t.Parallel()
	r := ruleNamed(RuleLoginFailures)
	rapid.Check(t, func(t *rapid.T) {
		start := time.Unix(1_800_000_000, 0)
		seconds := rapid.SliceOfN(rapid.IntRange(0, 3600), 0, 40).Draw(t, "seconds")
		slices.Sort(seconds)
		open := make([]store.Observation, len(seconds))
		for i, s := range seconds {
			open[i] = store.Observation{Rule: r.name, Subject: "u", EventID: uuid.New(), OccurTime: start.Add(time.Duration(s) * time.Second)}
		}
		alerts := bursts(open)
		var uncovered []store.Observation
		for _, o := range open {
			covered := false
			for _, a := range alerts {
				covered = covered || !o.OccurTime.Before(a.FirstOccurTime) && !o.OccurTime.After(a.LastOccurTime.Add(r.window))
			}
			if !covered {
				uncovered = append(uncovered, o)
			}
		}
		for _, a := range alerts {
			if int(a.EventCount) != r.threshold || a.LastOccurTime.Sub(a.FirstOccurTime) > r.window {
				t.Fatalf("no burst: %+v", a)
			}
		}
		if again := bursts(uncovered); len(again) > 0 {
			// Uncovered observations on both sides of an alert may be close in time only around it.
			for _, a := range again {
				for _, first := range alerts {
					if a.FirstOccurTime.After(first.LastOccurTime) || a.LastOccurTime.Before(first.FirstOccurTime) {
						t.Fatalf("a burst was missed: %+v", a)
					}
				}
			}
		}
	})
}

func TestPolicyWeakened(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		field, before, after string
		weaker               bool
	}{
		"shorter passwords":         {"min_password_length", "12", "8", true},
		"longer passwords":          {"min_password_length", "8", "12", false},
		"more attempts":             {"max_failed_attempts", "5", "50", true},
		"fewer attempts":            {"max_failed_attempts", "50", "5", false},
		"shorter lock-out":          {"lockout_duration", "900s", "60s", true},
		"longer lock-out":           {"lockout_duration", "60s", "900s", false},
		"longer sessions":           {"session_duration", "3600s", "86400s", true},
		"shorter sessions":          {"session_duration", "86400s", "3600s", false},
		"any network":               {"allowed_networks", "10.0.0.0/8", "", true},
		"another network":           {"allowed_networks", "10.0.0.0/8", "10.0.0.0/8, 192.0.2.0/24", true},
		"a larger network":          {"allowed_networks", "10.1.0.0/16", "10.0.0.0/8", true},
		"part of a network":         {"allowed_networks", "10.0.0.0/8", "10.1.0.0/16", false},
		"networks for the 1st time": {"allowed_networks", "", "10.0.0.0/8", false},
		"another field":             {"display_name", "12", "8", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEvent(t, named("auth.login_policy.updated", auditv1.Operation_OPERATION_UPDATE), func(e *auditv1.AuditEvent) {
				e.Resource = &auditv1.Resource{Type: "login_policy", Id: uuid.NewString(), Version: 2}
				e.Changes = []*auditv1.Change{{Field: c.field, OldValue: audit.Plain(c.before), NewValue: audit.Plain(c.after)}}
			})
			if _, weaker := policyWeakened(e.Audit); weaker != c.weaker {
				t.Errorf("weaker = %v, want %v", weaker, c.weaker)
			}
			e.Audit.Outcome = auditv1.Outcome_OUTCOME_DENIED
			if _, weaker := policyWeakened(e.Audit); weaker {
				t.Error("a refused change counts")
			}
		})
	}
}

// Rules that need one event raise an alert for each, at the same instant too, and name the user.
func TestRoleGrantedRaisesAnAlertForEach(t *testing.T) {
	t.Parallel()
	b := setup(t)
	now := time.Now()
	grant := func(user, role string) inbox.Event {
		return newEvent(t, named("auth.role.granted", auditv1.Operation_OPERATION_CREATE), at(now), func(e *auditv1.AuditEvent) {
			e.Resource = &auditv1.Resource{Type: "role_grant", Id: uuid.NewString(), Version: 1}
			e.RelatedResources = []*auditv1.Resource{{Type: "user", Id: user}}
			e.Metadata = map[string]string{"role": role}
		})
	}
	b.watch(t, grant("u1", "admin"), grant("u1", "operator"), grant("u2", "auditor"), grant("u3", "member"))
	alerts, err := b.service.Alerts(t.Context(), RuleRoleGranted, AlertCursor{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(alerts) != 3 {
		t.Fatalf("%d alerts, want 3", len(alerts))
	}
	subjects := map[string]int{}
	for _, a := range alerts {
		subjects[a.Subject]++
		if a.Severity != "HIGH" || a.FirstEventID != a.LastEventID || a.EventCount != 1 {
			t.Errorf("alert %+v", a)
		}
	}
	if subjects["u1"] != 2 || subjects["u2"] != 1 {
		t.Errorf("subjects are %v", subjects)
	}
}

// The two consumers keep their own state: one writes nothing of the other's, and gets only what it looks at.
func TestConsumersAreIndependent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := failures(t, "u", time.Now().Add(-time.Hour), 5, time.Minute)
	b.watch(t, all...)
	if n := b.count(t, "SELECT count(*) FROM audit_logs"); n != 0 {
		t.Errorf("the watch wrote %d audit logs", n)
	}
	b.project(t, all...)
	if n := b.count(t, "SELECT count(*) FROM security_alerts"); n != 1 {
		t.Errorf("%d alerts, want 1", n)
	}
	if WatchesSecurity("app", "auth.role.granted.v1") || WatchesSecurity("auth", "auth.session.refreshed.v1") {
		t.Error("security-alerts gets an event that no rule looks at")
	}
}

// An event that could count for a rule and is not subscribed to would never raise anything.
func TestRulesSubscribeToWhatConcernsThem(t *testing.T) {
	t.Parallel()
	for _, r := range rules() {
		if len(r.events) == 0 {
			t.Errorf("%s subscribes to nothing", r.name)
		}
		for _, kind := range r.events {
			if !slices.Contains(KnownTypes(), kind) {
				t.Errorf("%s: there is no event of type %s", r.name, kind)
			}
		}
	}
	// The rule about log-ins goes by operation and outcome, so by every type that a failed log-in has.
	for _, kind := range KnownTypes() {
		failed := strings.HasPrefix(kind, "auth.login.") && kind != "auth.login.succeeded.v1"
		if failed && !WatchesSecurity("auth", kind) {
			t.Errorf("%s is a failed log-in and is not watched", kind)
		}
	}
}

func TestAlertsArePaged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	start := time.Now().Add(-time.Hour)
	for u := range 5 {
		b.watch(t, failures(t, fmt.Sprint("u", u), start, 5, time.Minute)...)
	}
	seen := map[uuid.UUID]bool{}
	var cursor AlertCursor
	for {
		page, err := b.service.Alerts(t.Context(), "", cursor, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range page {
			if seen[a.ID] {
				t.Fatalf("alert %s is on two pages", a.ID)
			}
			seen[a.ID] = true
			cursor = AlertCursor{RaiseTime: a.RaiseTime, ID: a.ID}
		}
		if len(page) < 2 {
			break
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d alerts on all pages, want 5", len(seen))
	}
}
