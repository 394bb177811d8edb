// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

func TestFilterSelects(t *testing.T) {
	t.Parallel()
	b := setup(t)
	noon := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	login := newEvent(t, named("auth.login.succeeded", auditv1.Operation_OPERATION_LOGIN), at(noon), func(e *auditv1.AuditEvent) {
		e.Actor = &auditv1.Actor{Type: "user", Id: "ada"}
		e.Resource = &auditv1.Resource{Type: "session", Id: "s-1"}
		e.Context.CorrelationId, e.Context.TraceId = "c-login", strings.Repeat("0a", 16)
	})
	refused := newEvent(t, named("auth.login.failed", auditv1.Operation_OPERATION_LOGIN), at(noon.Add(time.Hour)), func(e *auditv1.AuditEvent) {
		e.Actor = &auditv1.Actor{Type: "anonymous"}
		e.Resource = &auditv1.Resource{Type: "user", Id: "100%_'real"}
		e.Outcome, e.Reason = auditv1.Outcome_OUTCOME_FAILED, "BAD_PASSWORD"
		e.Context.CorrelationId = ""
	})
	project := newEvent(t, named("app.project.created", auditv1.Operation_OPERATION_CREATE), at(noon.Add(2*time.Hour)), func(e *auditv1.AuditEvent) {
		e.Owner = "app"
		e.Actor = &auditv1.Actor{Type: "service", Id: "importer"}
		e.Resource = &auditv1.Resource{Type: "project", Id: "p-1"}
		e.Context.CorrelationId = "c-project"
	})
	b.project(t, login, refused, project)
	names := map[uuid.UUID]string{login.ID: "login", refused.ID: "refused", project.ID: "project"}

	for filter, want := range map[string]string{
		``:                              "project refused login",
		`owner = "auth"`:                "refused login",
		`owner = auth`:                  "refused login",
		`owner != "auth"`:               "project",
		`action = "auth.login.failed"`:  "refused",
		`action = "auth.login.*"`:       "refused login",
		`action = "auth.login.f*"`:      "refused",
		`action = "*"`:                  "project refused login",
		`action != "auth.*"`:            "project",
		`action = auth.login.failed`:    "refused",
		`operation = CREATE`:            "project",
		`operation = "OPERATION_LOGIN"`: "refused login",
		`outcome = "FAILED"`:            "refused",
		`NOT outcome = "FAILED"`:        "project login",
		`-outcome = "FAILED"`:           "project login",
		`actor.id = "ada"`:              "login",
		`actor.type = "anonymous"`:      "refused",
		`actor.id = ""`:                 "refused",
		`resource.id = "100%_'real"`:    "refused",
		`resource.id = "100%"`:          "",
		`resource.type = "project"`:     "project",
		`correlation_id = "c-login"`:    "login",
		`correlation_id = ""`:           "refused",
		`correlation_id != "c-login"`:   "project refused",
		`trace_id = "` + login.Audit.GetContext().GetTraceId() + `"`:              "login",
		`occur_time >= "2026-11-01T13:00:00Z"`:                                    "project refused",
		`occur_time > "2026-11-01T13:00:00Z"`:                                     "project",
		`occur_time < "2026-11-01T13:00:00Z"`:                                     "login",
		`occur_time <= "2026-11-01T14:00:00+01:00"`:                               "refused login",
		`occur_time = "2026-11-01T12:00:00Z"`:                                     "login",
		`occur_time = timestamp("2026-11-01T12:00:00Z")`:                          "login",
		`NOT (occur_time < "2026-11-01T13:00:00Z")`:                               "project refused",
		`owner = "auth" AND outcome = "SUCCEEDED"`:                                "login",
		`owner = "app" OR outcome = "FAILED"`:                                     "project refused",
		`outcome = "SUCCEEDED" AND actor.id = "ada" OR actor.id = "importer"`:     "project login", // OR binds tighter
		`(outcome = "SUCCEEDED" AND actor.id = "ada") OR outcome = "FAILED"`:      "refused login",
		`actor.id = "x' OR true --"`:                                              "",
		`owner = "auth" AND NOT (action = "auth.login.*" AND outcome = "FAILED")`: "login",
	} {
		records, more, err := b.service.List(t.Context(), b.caller, Query{Filter: filter, Before: uuid.Max, Limit: 10})
		if err != nil {
			t.Errorf("%s: %v", filter, err)
			continue
		}
		var got []string
		for _, r := range records {
			got = append(got, names[r.EventID])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q (more: %v)", filter, strings.Join(got, " "), want, more)
		}
	}
}

func TestFilterRefuses(t *testing.T) {
	t.Parallel()
	for filter, mention := range map[string]string{
		`colour = "red"`:                       `"colour"`,
		`actor.name = "Ada"`:                   `"actor.name"`,
		`payload = "x"`:                        `"payload"`,
		`"owner" = "auth"`:                     `no field`,
		`owner`:                                `comparisons`,
		`"free text"`:                          `comparisons`,
		`owner = "auth" outcome = "FAILED"`:    `AND or OR`,
		`owner < "auth"`:                       `= or !=`,
		`owner : "auth"`:                       `= or !=`,
		`action > "a*"`:                        `= or !=`,
		`action = "a*b*"`:                      `only at its end`,
		`operation = "GUESS"`:                  `"GUESS"`,
		`operation = "UNSPECIFIED"`:            `"UNSPECIFIED"`,
		`outcome = ""`:                         `outcome`,
		`occur_time > "yesterday"`:             `RFC 3339`,
		`occur_time : "2026-11-01T12:00:00Z"`:  `occur_time`,
		`occur_time > "0001-01-01T00:00:00Z"`:  `1970`,
		`actor.id = 5`:                         `quoted`,
		"actor.id = \"\xc5\"":                  `AIP-160`,
		`actor.id = "\x00"`:                    `NUL`,
		`regex("x")`:                           `"regex"`,
		`owner = "auth" AND`:                   `AIP-160`,
		`((owner = "auth")`:                    `AIP-160`,
		`owner = "auth`:                        `AIP-160`,
		strings.Repeat("x", maxFilterLength+1): `at most 2048`,
		strings.Repeat(`owner = "a" OR `, 40) + `owner = "a"`: `at most 32`,
	} {
		_, err := parseFilter(filter)
		var refusal *apperr.Error
		if !errors.As(err, &refusal) || refusal.Kind != apperr.KindInvalidArgument {
			t.Errorf("%.60s: got %v, want INVALID_ARGUMENT", filter, err)
			continue
		}
		if refusal.Reason != "INVALID_FILTER" || len(refusal.Violations) != 1 || refusal.Violations[0].Field != "filter" {
			t.Errorf("%.60s: reason %s, violations %v", filter, refusal.Reason, refusal.Violations)
		}
		if !strings.Contains(refusal.Message, mention) {
			t.Errorf("%.60s: %q does not mention %s", filter, refusal.Message, mention)
		}
	}
}

// What these fields become is what their indexes can serve with bound values; package store has the plans.
func TestFilterSQL(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string]string{
		`correlation_id = "c"`:                 "(correlation_id = $1 AND correlation_id <> '')",
		`trace_id = "t"`:                       "(trace_id = $1 AND trace_id <> '')",
		`actor.id = "a"`:                       "actor_id = $1",
		`resource.id = "r"`:                    "resource_id = $1",
		`action = "a.b"`:                       "action = $1",
		`action = "a.*"`:                       "(action ~>=~ $1 AND action ~<~ $2)",
		`occur_time >= "2026-11-01T13:00:00Z"`: "(occur_time >= $1 AND event_id >= $2)",
	} {
		if where, err := parseFilter(filter); err != nil || where.SQL != want {
			t.Errorf("%s became %q, %v, want %q", filter, where.SQL, err, want)
		}
	}
}

// The end of a prefix' range is above everything with the prefix and below everything else that is above it.
func TestAfter(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"auth.": "auth/", "a": "b", "ä": "å", "a\U0010FFFF": "b", "\uD7FF": "\uE000",
	} {
		if got, ok := after(prefix); !ok || got != want {
			t.Errorf("after(%q) = %q, %v, want %q", prefix, got, ok, want)
		}
	}
	for _, prefix := range []string{"", "\U0010FFFF"} {
		if got, ok := after(prefix); ok {
			t.Errorf("after(%q) = %q, want none", prefix, got)
		}
	}
}

// Whatever the filter, there is no panic, the statement has nothing of the caller's in it, and every value is bound.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{
		`owner = "auth" AND action = "auth.*"`, `NOT (a.b = 'c' OR -d:e)`, `occur_time >= "2026-11-01T12:00:00Z"`,
		`owner = "'; DROP TABLE audit_logs; --"`, `((((`, `f(f(f(f(`, `owner = "\ud800"`, `trace_id = -1.5e400`, "\x00", `a = b.*`,
	} {
		f.Add(seed)
	}
	allowed := regexp.MustCompile(`^(owner|action|operation|outcome|actor_id|actor_type|resource_id|resource_type|correlation_id|` +
		`trace_id|occur_time|event_id|AND|OR|NOT|=|<>|<=|>=|<|>|~>=~|~<~|''|\$[0-9]+|[() ])*$`)
	place := regexp.MustCompile(`\$[0-9]+`)
	f.Fuzz(func(t *testing.T, filter string) {
		where, err := parseFilter(filter)
		if err != nil {
			if apperr.KindOf(err) != apperr.KindInvalidArgument {
				t.Fatalf("%q: %v", filter, err)
			}
			return
		}
		if !allowed.MatchString(where.SQL) {
			t.Fatalf("%q became %q", filter, where.SQL)
		}
		if places := place.FindAllString(where.SQL, -1); len(slices.Compact(places)) != len(where.Args) {
			t.Fatalf("%q has %d places for %d values", where.SQL, len(places), len(where.Args))
		}
	})
}
