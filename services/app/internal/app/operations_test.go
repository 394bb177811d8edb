// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// TestEachChangeHasItsEvent walks one project from creation to deletion: each step changes the rows it says, raises
// their versions by one and appends exactly the events that are written beside it (U16, U18, A11).
func TestEachChangeHasItsEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), caller("Ada")

	p, err := b.CreateProject(ctx, ada, app.NewProject{Slug: "orion", DisplayName: "Orion", Description: "first"})
	b.must(err)
	events := b.wantNews(
		"app.project.created.v1 CREATE project/1 slug:-→orion display_name:-→Orion description:-→- state:-→ACTIVE",
		"app.member.added.v1 CREATE project_member/1 user:-→"+ada.UserID.String()+" role:-→OWNER")
	wantEnvelope(t, ada, events...)
	wantRelated(t, events[1], "project "+p.ID.String(), "user "+ada.UserID.String())

	title, text := "Orion II", "second"
	p, err = b.UpdateProject(ctx, ada, app.ProjectUpdate{ID: p.ID, Etag: 1, DisplayName: &title, Description: &text})
	b.must(err)
	events = b.wantNews("app.project.updated.v1 UPDATE project/2 display_name:Orion→Orion II description:-→-")
	if e := events[0]; e.GetResource().GetId() != p.ID.String() || e.GetResource().GetDisplayName().GetPlain() != title || !sameTime(e.GetOccurTime().AsTime(), p.UpdateTime) {
		t.Errorf("event names resource %v at %v, want %v at %v", e.GetResource(), e.GetOccurTime().AsTime(), p.ID, p.UpdateTime)
	}
	if p, err = b.GetProject(ctx, ada, p.ID); err != nil || p.Version != 2 || p.DisplayName != title || p.Description != text {
		t.Errorf("project is %+v, %v", p, err)
	}

	p, err = b.UpdateProject(ctx, ada, app.ProjectUpdate{ID: p.ID, DisplayName: &title})
	b.must(err)
	b.wantNews() // nothing changed
	if p.Version != 2 {
		t.Errorf("an update without a change made version %d", p.Version)
	}

	p, err = b.ArchiveProject(ctx, ada, p.ID, 2)
	b.must(err)
	b.wantNews("app.project.archived.v1 UPDATE project/3 state:ACTIVE→ARCHIVED")
	p, err = b.RestoreProject(ctx, ada, p.ID, 3)
	b.must(err)
	b.wantNews("app.project.restored.v1 UPDATE project/4 state:ARCHIVED→ACTIVE")

	bob := uuid.Must(uuid.NewV7())
	m, err := b.AddMember(ctx, ada, p.ID, bob, store.Viewer)
	b.must(err)
	events = b.wantNews("app.member.added.v1 CREATE project_member/1 user:-→" + bob.String() + " role:-→VIEWER")
	wantRelated(t, events[0], "project "+p.ID.String(), "user "+bob.String())
	if id := events[0].GetResource().GetId(); id != m.ID.String() {
		t.Errorf("event names member %s, want %s", id, m.ID)
	}

	m, err = b.UpdateMember(ctx, ada, app.MemberUpdate{ProjectID: p.ID, ID: m.ID, Etag: 1, Role: store.Editor})
	b.must(err)
	b.wantNews("app.member.updated.v1 UPDATE project_member/2 role:VIEWER→EDITOR")
	if got, err := b.GetMember(ctx, ada, p.ID, m.ID); err != nil || got != m || m.Version != 2 {
		t.Errorf("member is %+v, %v, want %+v", got, err, m)
	}

	b.must(b.RemoveMember(ctx, ada, p.ID, m.ID, 2))
	b.wantNews("app.member.removed.v1 DELETE project_member/3 user:" + bob.String() + "→- role:EDITOR→-")

	again, err := b.AddMember(ctx, ada, p.ID, bob, store.Viewer)
	b.must(err)
	b.news()
	if again.ID == m.ID || again.Version != 1 {
		t.Errorf("the user came back as member %v at version %d, want a new member at version 1", again.ID, again.Version)
	}

	b.must(b.DeleteProject(ctx, ada, p.ID, 4))
	events = b.news()
	if len(events) != 3 || events[2].GetEventType() != "app.project.deleted.v1" || events[2].GetResource().GetVersion() != 5 {
		t.Errorf("deletion recorded %v, want two members first and the project at version 5 last", events)
	}
	wantEnvelope(t, ada, events...)
	if n := b.count(`SELECT (SELECT count(*) FROM projects) + (SELECT count(*) FROM project_members)`); n != 0 {
		t.Errorf("%d rows are left of the deleted project", n)
	}
	b.wantWhole()
}

// wantEnvelope checks who and where from.
func wantEnvelope(t *testing.T, call app.Call, events ...*auditv1.AuditEvent) {
	t.Helper()
	for _, e := range events {
		a, from := e.GetActor(), e.GetContext()
		if a.GetType() != "user" || a.GetId() != call.UserID.String() || a.GetDisplayName().GetPlain() != call.DisplayName || a.GetSessionId() != call.SessionID {
			t.Errorf("%s: actor is %v", e.GetEventType(), a)
		}
		if from.GetCorrelationId() != call.Info.CorrelationID || from.GetTraceId() != call.Info.TraceID ||
			from.GetClientAddress().GetPlain() != call.Info.ClientAddress || from.GetUserAgent() != call.Info.UserAgent {
			t.Errorf("%s: context is %v", e.GetEventType(), from)
		}
		if e.GetOwner() != "app" || e.GetSchemaVersion() != 1 {
			t.Errorf("%s: owner %s, schema version %d", e.GetEventType(), e.GetOwner(), e.GetSchemaVersion())
		}
	}
}

func wantRelated(t *testing.T, e *auditv1.AuditEvent, want ...string) {
	t.Helper()
	var got []string
	for _, r := range e.GetRelatedResources() {
		got = append(got, r.GetType()+" "+r.GetId())
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("%s: related to %v, want %v", e.GetEventType(), got, want)
	}
}

// TestStates is the state machine of a project: which operation each state admits.
func TestStates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), caller("Ada")
	title := "new"
	operations := map[string]func(p store.Project, m store.Member) error{
		"update": func(p store.Project, _ store.Member) error {
			_, err := b.UpdateProject(ctx, ada, app.ProjectUpdate{ID: p.ID, DisplayName: &title})
			return err
		},
		"archive": func(p store.Project, _ store.Member) error { _, err := b.ArchiveProject(ctx, ada, p.ID, 0); return err },
		"restore": func(p store.Project, _ store.Member) error { _, err := b.RestoreProject(ctx, ada, p.ID, 0); return err },
		"add": func(p store.Project, _ store.Member) error {
			_, err := b.AddMember(ctx, ada, p.ID, uuid.Must(uuid.NewV7()), store.Viewer)
			return err
		},
		"import": func(p store.Project, _ store.Member) error {
			_, err := b.ImportMembers(ctx, ada, p.ID, []app.NewMember{{UserID: uuid.Must(uuid.NewV7()), Role: store.Viewer}})
			return err
		},
		"change": func(p store.Project, m store.Member) error {
			_, err := b.UpdateMember(ctx, ada, app.MemberUpdate{ProjectID: p.ID, ID: m.ID, Role: store.Editor})
			return err
		},
		"remove": func(p store.Project, m store.Member) error { return b.RemoveMember(ctx, ada, p.ID, m.ID, 0) },
		"get":    func(p store.Project, _ store.Member) error { _, err := b.GetProject(ctx, ada, p.ID); return err },
		"delete": func(p store.Project, _ store.Member) error { return b.DeleteProject(ctx, ada, p.ID, 0) },
	}
	refused := map[store.State]map[string]string{
		store.Active: {"restore": "PROJECT_ACTIVE"},
		store.Archived: {
			"update": "PROJECT_ARCHIVED", "archive": "PROJECT_ARCHIVED", "add": "PROJECT_ARCHIVED", "import": "PROJECT_ARCHIVED",
			"change": "PROJECT_ARCHIVED", "remove": "PROJECT_ARCHIVED",
		},
	}
	for state, reasons := range refused {
		for name, do := range operations {
			p := b.project(ada)
			m := b.member(ada, p, uuid.Must(uuid.NewV7()), store.Viewer)
			if state == store.Archived {
				_, err := b.ArchiveProject(ctx, ada, p.ID, 0)
				b.must(err)
			}
			b.news()
			err := do(p, m)
			if reason := reasons[name]; reason != "" {
				b.wantReason(err, apperr.KindFailedPrecondition, reason)
				if events := b.news(); len(events) != 1 || events[0].GetReason() != reason || events[0].GetOutcome() != auditv1.Outcome_OUTCOME_FAILED {
					t.Errorf("%s of a project that is %s recorded %v, want one failed attempt", name, state, events)
				}
			} else if err != nil {
				t.Errorf("%s of a project that is %s: %v", name, state, err)
			}
		}
	}
	b.wantWhole()
}

// TestLists pages through projects and members: each once, in the order of creation, and only what the caller may see.
func TestLists(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada, eve := t.Context(), caller("Ada"), caller("Eve")
	first, second := b.project(ada), b.project(ada)
	hidden := b.project(eve)
	_, err := b.ArchiveProject(ctx, ada, second.ID, 0)
	b.must(err)

	slugs := func(call app.Call, f store.ProjectFilter) string {
		f.Limit = 10
		list, err := b.ListProjects(ctx, call, f)
		b.must(err)
		var s []string
		for _, p := range list {
			s = append(s, p.Slug)
		}
		return strings.Join(s, " ")
	}
	admin := caller("Root")
	admin.Admin = true
	for name, got := range map[string][2]string{
		"active":    {slugs(ada, store.ProjectFilter{}), first.Slug},
		"all":       {slugs(ada, store.ProjectFilter{ShowArchived: true}), first.Slug + " " + second.Slug},
		"after":     {slugs(ada, store.ProjectFilter{ShowArchived: true, After: first.ID}), second.Slug},
		"by slug":   {slugs(ada, store.ProjectFilter{Slug: first.Slug}), first.Slug},
		"other's":   {slugs(ada, store.ProjectFilter{Slug: hidden.Slug}), ""},
		"for admin": {slugs(admin, store.ProjectFilter{}), first.Slug + " " + hidden.Slug},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %q, want %q", name, got[0], got[1])
		}
	}

	m := b.member(ada, first, uuid.Must(uuid.NewV7()), store.Viewer)
	list, err := b.ListMembers(ctx, ada, first.ID, uuid.Nil, 10)
	b.must(err)
	if len(list) != 2 || list[0].UserID != ada.UserID || list[1] != m {
		t.Errorf("members are %+v", list)
	}
	if list, err = b.ListMembers(ctx, ada, first.ID, list[0].ID, 10); err != nil || len(list) != 1 || list[0] != m {
		t.Errorf("members after the first are %+v, %v", list, err)
	}
}

// TestWake: the dispatcher is told after each commit, and not of what was rolled back.
func TestWake(t *testing.T) {
	t.Parallel()
	b := setup(t)
	woken := 0
	service := app.New(app.Config{DB: b.db.Service, Logger: slog.New(slog.DiscardHandler), Wake: func() { woken++ }})
	p, err := service.CreateProject(t.Context(), caller("Ada"), app.NewProject{Slug: "orion", DisplayName: "Orion"})
	b.must(err)
	if woken != 1 {
		t.Errorf("woken %d times by one commit", woken)
	}
	nameless := caller(strings.Repeat("x", 5000)) // nothing it does can be recorded, so nothing commits
	if _, err := service.ArchiveProject(t.Context(), nameless, p.ID, 0); err == nil || woken != 1 {
		t.Errorf("got %v, woken %d times by a rollback", err, woken-1)
	}
}
