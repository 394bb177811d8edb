// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// TestEveryFieldIsClassified: a field added to the contract must be put here, and so thought about, before it can be
// released (A72).
func TestEveryFieldIsClassified(t *testing.T) {
	t.Parallel()
	classified := map[string]map[string]string{
		"Project": {
			"slug": "recorded", "display_name": "recorded", "state": "recorded",
			"description": "that it changed is recorded, never its text",
			"name":        "the event's resource", "etag": "the resource's version", "creator": "the actor of the creation",
			"create_time": "the event's time", "update_time": "the event's time",
		},
		"Member": {
			"user": "recorded", "role": "recorded",
			"name": "the event's resource", "etag": "the resource's version",
			"create_time": "the event's time", "update_time": "the event's time",
		},
	}
	for name, message := range map[string]proto.Message{"Project": &appv1.Project{}, "Member": &appv1.Member{}} {
		fields := message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			if field := string(fields.Get(i).Name()); classified[name][field] == "" {
				t.Errorf("%s.%s: decide how its change is recorded: see events.go", name, field)
			}
		}
	}
}

// TestSecretsStayOut: free text, whatever was pasted into it, reaches no column of the outbox (A70).
func TestSecretsStayOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), with(caller("Ada"), uuid.New(), "body")
	const canary = "canary-7f3a"
	p, err := b.CreateProject(ctx, ada, app.NewProject{Slug: "orion", DisplayName: "Orion", Description: "key " + canary + "-one"})
	b.must(err)
	ada.Request.RequestID = uuid.New()
	text := "key " + canary + "-two"
	_, err = b.UpdateProject(ctx, ada, app.ProjectUpdate{ID: p.ID, Description: &text})
	b.must(err)
	b.must(b.DeleteProject(ctx, unrepeated(ada), p.ID, 0))

	for _, table := range []string{"audit_outbox", "requests", "audit_lifecycle"} {
		if n := b.count("SELECT count(*) FROM "+table+" t WHERE t::text LIKE '%' || $1 || '%'", canary); n != 0 {
			t.Errorf("%d rows of %s hold the secret", n, table)
		}
	}
	for _, e := range b.news() {
		raw, err := proto.Marshal(e)
		b.must(err)
		if bytes.Contains(raw, []byte(canary)) {
			t.Errorf("the payload of %s holds the secret", e.GetEventType())
		}
	}
}

// unrepeated is call without its request id.
func unrepeated(call app.Call) app.Call {
	call.Request.RequestID = uuid.Nil
	return call
}

// TestKinds: types are well formed and unlike, and the README lists each.
func TestKinds(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, k := range app.Kinds() {
		name := k.EventType()
		if !strings.HasPrefix(name, "app.") || !strings.HasSuffix(name, ".v1") || seen[name] {
			t.Errorf("event type %q", name)
		}
		seen[name] = true
		if !bytes.Contains(readme, []byte("`"+k.Action+"`")) {
			t.Errorf("README.md does not list %s", k.Action)
		}
	}
}

// TestRoleOrder: each role may do what the ones before it may, and nobody's role nothing.
func TestRoleOrder(t *testing.T) {
	t.Parallel()
	order := []store.Role{"", store.Viewer, store.Editor, store.Owner}
	for i, r := range order {
		for j, other := range order {
			if r.Includes(other) != (i >= j) {
				t.Errorf("%q includes %q: %v", r, other, r.Includes(other))
			}
		}
	}
}

// TestNames: what the service makes it reads, and nothing else.
func TestNames(t *testing.T) {
	t.Parallel()
	p, m := uuid.New(), uuid.New()
	if id, err := app.ParseProjectName(app.ProjectName(p)); err != nil || id != p {
		t.Errorf("project name: %v, %v", id, err)
	}
	if project, member, err := app.ParseMemberName(app.MemberName(p, m)); err != nil || project != p || member != m {
		t.Errorf("member name: %v, %v, %v", project, member, err)
	}
	for _, name := range []string{"", "projects/", "projects/x", "users/" + p.String(), app.ProjectName(p) + "/"} {
		if _, err := app.ParseProjectName(name); err == nil {
			t.Errorf("%q passed as a project's name", name)
		}
		if _, _, err := app.ParseMemberName(name); err == nil {
			t.Errorf("%q passed as a member's name", name)
		}
	}
}
