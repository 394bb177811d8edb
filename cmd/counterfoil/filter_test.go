// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"go.einride.tech/aip/filtering"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// TestFilterFlags: the convenience flags mean what they say, in the language that Admin reads.
func TestFilterFlags(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("UserService/ListUsers", &authv1.ListUsersResponse{Users: []*authv1.User{ada()}})
	w.says("AuditLogService/ListAuditLogs", &adminv1.ListAuditLogsResponse{})
	for want, args := range map[string][]string{
		``: nil,
		`(a = "b" OR c = "d") AND owner = "auth"`:                                        {"--filter", `a = "b" OR c = "d"`, "--owner", "auth"},
		`(owner = "auth" OR owner = "app")`:                                              {"--owner", "auth", "--owner", "app"},
		`action = "auth.user.*"`:                                                         {"--action", "auth.user.*"},
		`operation = "LOGIN"`:                                                            {"--operation", "login"},
		`(outcome = "DENIED" OR outcome = "FAILED")`:                                     {"--outcome", "denied,OUTCOME_FAILED"},
		`actor.id = "` + userID + `"`:                                                    {"--actor", "ada@example.com"},
		`(actor.id = "` + userID + `" OR actor.id = "x")`:                                {"--actor", "me", "--actor", "x"},
		`resource.id = "` + projectID + `"`:                                              {"--resource", projectID},
		`resource.type = "login_policy"`:                                                 {"--resource", "login_policy"},
		`(resource.type = "user" AND resource.id = "` + userID + `")`:                    {"--resource", "users/" + userID},
		`correlation_id = "say \"x\" \\ y" AND trace_id = "t"`:                           {"--correlation", `say "x" \ y`, "--trace", "t"},
		`occur_time >= "2026-11-30T00:00:00Z" AND occur_time < "2026-11-30T12:00:00.5Z"`: {"--since", "2026-11-30", "--until", "2026-11-30T12:00:00.5Z"},
		`(resource.type = "a" OR (resource.type = "project" AND resource.id = "p"))`:     {"--resource", "a", "--resource", "project/p"},
	} {
		before := len(w.asked("AuditLogService/ListAuditLogs"))
		w.must(append([]string{"audit", "list"}, args...)...)
		got := w.asked("AuditLogService/ListAuditLogs")[before].request.(*adminv1.ListAuditLogsRequest).GetFilter()
		if got != want {
			t.Errorf("%v:\n got %s\nwant %s", args, got, want)
		}
		if got == "" {
			continue
		}
		var parser filtering.Parser
		parser.Init(got)
		if _, err := parser.Parse(); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
	for _, args := range [][]string{{"--outcome", "odd"}, {"--operation", "unspecified"}, {"--since", "soon"}, {"--until", "later"}} {
		if o := w.run(append([]string{"audit", "list"}, args...)...); o.code != exitUsage {
			t.Errorf("%v: exit code %d", args, o.code)
		}
	}
	w.says("UserService/ListUsers", &authv1.ListUsersResponse{})
	if o := w.run("audit", "list", "--actor", "nobody@example.com"); o.code != exitNotFound {
		t.Errorf("exit code %d", o.code)
	}
	before := time.Now()
	w.must("audit", "list", "--since", "1h")
	calls := w.asked("AuditLogService/ListAuditLogs")
	text := strings.Trim(strings.TrimPrefix(calls[len(calls)-1].request.(*adminv1.ListAuditLogsRequest).GetFilter(), "occur_time >= "), `"`)
	if since, err := time.Parse(time.RFC3339Nano, text); err != nil || since.Before(before.Add(-time.Hour)) || since.After(time.Now().Add(-time.Hour)) {
		t.Errorf("1h ago is %s, %v", text, err)
	}
}
