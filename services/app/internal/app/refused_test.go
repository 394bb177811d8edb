// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// TestRoles is who may do what: an attempt beyond one's role changes nothing and is recorded as denied (T18).
func TestRoles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), caller("Ada")
	p := b.project(ada)
	viewer, editor, second, stranger, admin := caller("Vic"), caller("Ed"), caller("Olga"), caller("Eve"), caller("Root")
	admin.Admin = true
	b.member(ada, p, viewer.UserID, store.Viewer)
	b.member(ada, p, editor.UserID, store.Editor)
	b.member(ada, p, second.UserID, store.Owner)

	n := 0
	operations := []struct {
		name string
		need store.Role
		do   func(call app.Call) error
		line string // the refusal, up to its outcome
	}{
		{"GetProject", store.Viewer, func(c app.Call) error { _, err := b.GetProject(ctx, c, p.ID); return err }, "app.project.refused.v1 READ project"},
		{"ListMembers", store.Viewer, func(c app.Call) error { _, err := b.ListMembers(ctx, c, p.ID, uuid.Nil, 9); return err }, "app.project.refused.v1 READ project"},
		{"UpdateProject", store.Editor, func(c app.Call) error {
			n++
			title := strings.Repeat("x", n)
			_, err := b.UpdateProject(ctx, c, app.ProjectUpdate{ID: p.ID, DisplayName: &title})
			return err
		}, "app.project.refused.v1 UPDATE project"},
		{"ArchiveProject", store.Owner, func(c app.Call) error {
			if _, err := b.ArchiveProject(ctx, c, p.ID, 0); err != nil {
				return err
			}
			_, err := b.RestoreProject(ctx, c, p.ID, 0)
			return err
		}, "app.project.refused.v1 UPDATE project"},
		{"RestoreProject", store.Owner, func(c app.Call) error {
			_, err := b.RestoreProject(ctx, c, p.ID, 0)
			if apperr.ReasonOf(err) == "PROJECT_ACTIVE" {
				return nil // allowed, and out of place
			}
			return err
		}, "app.project.refused.v1 UPDATE project"},
		{"AddMember", store.Owner, func(c app.Call) error {
			_, err := b.AddMember(ctx, c, p.ID, uuid.Must(uuid.NewV7()), store.Viewer)
			return err
		}, "app.member.refused.v1 CREATE project"},
		{"ImportMembers", store.Owner, func(c app.Call) error {
			_, err := b.ImportMembers(ctx, c, p.ID, []app.NewMember{{UserID: uuid.Must(uuid.NewV7()), Role: store.Viewer}})
			return err
		}, "app.member.refused.v1 CREATE project"},
		{"UpdateMember", store.Owner, func(c app.Call) error {
			_, err := b.UpdateMember(ctx, c, app.MemberUpdate{ProjectID: p.ID, ID: uuid.Must(uuid.NewV7()), Role: store.Viewer})
			if apperr.ReasonOf(err) == "MEMBER_NOT_FOUND" {
				return nil
			}
			return err
		}, "app.member.refused.v1 UPDATE project_member"},
		{"RemoveMember", store.Owner, func(c app.Call) error {
			err := b.RemoveMember(ctx, c, p.ID, uuid.Must(uuid.NewV7()), 0)
			if apperr.ReasonOf(err) == "MEMBER_NOT_FOUND" {
				return nil
			}
			return err
		}, "app.member.refused.v1 DELETE project_member"},
	}
	callers := map[store.Role]app.Call{store.Viewer: viewer, store.Editor: editor, store.Owner: second}
	for _, op := range operations {
		for role, call := range callers {
			b.news()
			err := op.do(call)
			if role.Includes(op.need) {
				if err != nil {
					t.Errorf("%s by %s: %v", op.name, role, err)
				}
				continue
			}
			b.wantReason(err, apperr.KindPermissionDenied, "PROJECT_ROLE_REQUIRED")
			wantEnvelope(t, call, b.wantNews(op.line+" DENIED PROJECT_ROLE_REQUIRED")...)
		}
		b.news()
		b.wantReason(op.do(stranger), apperr.KindNotFound, "PROJECT_NOT_FOUND") // existence is not told
		b.wantNews(op.line + " DENIED NOT_A_MEMBER")
		if err := op.do(admin); err != nil {
			t.Errorf("%s by an admin: %v", op.name, err)
		}
	}
	b.wantWhole()
}

// TestFailures: what cannot be done changes nothing and is recorded once, with its reason (T18).
func TestFailures(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), caller("Ada")
	p := b.project(ada)
	m := b.member(ada, p, uuid.Must(uuid.NewV7()), store.Viewer)
	none := uuid.Must(uuid.NewV7())
	self, err := b.ListMembers(ctx, ada, p.ID, uuid.Nil, 1)
	b.must(err)
	title := "lost update"
	before := b.count(`SELECT sum(version) FROM (SELECT version FROM projects UNION ALL SELECT version FROM project_members) v`)

	for name, c := range map[string]struct {
		do     func() error
		kind   apperr.Kind
		reason string
		line   string
	}{
		"slug taken": {func() error {
			_, err := b.CreateProject(ctx, ada, app.NewProject{Slug: p.Slug, DisplayName: "Copy"})
			return err
		}, apperr.KindAlreadyExists, "PROJECT_SLUG_TAKEN", "app.project.refused.v1 CREATE project FAILED PROJECT_SLUG_TAKEN"},
		"stale etag of a project": {func() error {
			_, err := b.UpdateProject(ctx, ada, app.ProjectUpdate{ID: p.ID, Etag: 7, DisplayName: &title})
			return err
		}, apperr.KindAborted, "ETAG_MISMATCH", "app.project.refused.v1 UPDATE project FAILED ETAG_MISMATCH"},
		"stale etag of a deletion": {
			func() error { return b.DeleteProject(ctx, ada, p.ID, 7) },
			apperr.KindAborted, "ETAG_MISMATCH", "app.project.refused.v1 DELETE project FAILED ETAG_MISMATCH",
		},
		"stale etag of a member": {func() error {
			_, err := b.UpdateMember(ctx, ada, app.MemberUpdate{ProjectID: p.ID, ID: m.ID, Etag: 7, Role: store.Owner})
			return err
		}, apperr.KindAborted, "ETAG_MISMATCH", "app.member.refused.v1 UPDATE project_member FAILED ETAG_MISMATCH"},
		"no such project": {
			func() error { return b.DeleteProject(ctx, ada, none, 0) },
			apperr.KindNotFound, "PROJECT_NOT_FOUND", "app.project.refused.v1 DELETE project FAILED PROJECT_NOT_FOUND",
		},
		"no such member": {
			func() error { return b.RemoveMember(ctx, ada, p.ID, none, 0) },
			apperr.KindNotFound, "MEMBER_NOT_FOUND", "app.member.refused.v1 DELETE project_member FAILED MEMBER_NOT_FOUND",
		},
		"member already": {func() error {
			_, err := b.AddMember(ctx, ada, p.ID, m.UserID, store.Editor)
			return err
		}, apperr.KindAlreadyExists, "MEMBER_EXISTS", "app.member.refused.v1 CREATE project FAILED MEMBER_EXISTS"},
		"last owner leaves": {
			func() error { return b.RemoveMember(ctx, ada, p.ID, self[0].ID, 0) },
			apperr.KindFailedPrecondition, "LAST_OWNER", "app.member.refused.v1 DELETE project_member FAILED LAST_OWNER",
		},
		"last owner steps down": {func() error {
			_, err := b.UpdateMember(ctx, ada, app.MemberUpdate{ProjectID: p.ID, ID: self[0].ID, Role: store.Viewer})
			return err
		}, apperr.KindFailedPrecondition, "LAST_OWNER", "app.member.refused.v1 UPDATE project_member FAILED LAST_OWNER"},
	} {
		b.news()
		err := c.do()
		b.wantReason(err, c.kind, c.reason)
		events := b.wantNews(c.line)
		if t.Failed() {
			t.Fatal("in: " + name)
		}
		if method := events[0].GetMetadata()["method"]; method != "Test" {
			t.Errorf("%s: method is %q", name, method)
		}
	}
	if _, err := b.GetProject(ctx, ada, none); apperr.KindOf(err) != apperr.KindNotFound {
		t.Errorf("reading nothing: %v", err)
	}
	b.wantNews() // reading what is not there is nobody's deed
	if after := b.count(`SELECT sum(version) FROM (SELECT version FROM projects UNION ALL SELECT version FROM project_members) v`); after != before {
		t.Errorf("failures changed rows: versions add up to %d, before %d", after, before)
	}
	b.wantWhole()
}

// TestUnrecordableIsUndone: where the event is refused, the change is not made (U18, U84).
func TestUnrecordableIsUndone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{strings.Repeat("x", 5000), "nul \x00 byte", "not \xff UTF-8"} {
		call := caller(name)
		call.Info.CorrelationID = "c"
		_, err := b.CreateProject(t.Context(), call, app.NewProject{Slug: "orion", DisplayName: "Orion"})
		b.wantReason(err, apperr.KindInvalidArgument, "EVENT_REFUSED")
	}
	if n := b.count(`SELECT (SELECT count(*) FROM projects) + (SELECT count(*) FROM project_members)`); n != 0 {
		t.Errorf("%d rows stand without an event", n)
	}
	if !strings.Contains(b.log.String(), "a refusal is not recorded") {
		t.Error("that the refusal could not be recorded either is not in the log")
	}
}

// TestCallerGivesUp: a cancelled call leaves neither row nor event, and is not recorded as failed.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.CreateProject(ctx, caller("Ada"), app.NewProject{Slug: "orion", DisplayName: "Orion"}); err == nil {
		t.Error("a cancelled call succeeded")
	}
	b.wantNews()
	if n := b.count(`SELECT count(*) FROM projects`); n != 0 {
		t.Error("a cancelled call left a row")
	}
}

// TestCallRefused: a call that was not let in is recorded with what is known of the caller, and strangers cannot fill
// the outbox with such records.
func TestCallRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const method = "/counterfoil.outbox.v1.OutboxService/RequeueOutboxEvents"
	ctx := grpcserver.WithInfo(t.Context(), grpcserver.Info{Method: method, ClientAddress: "192.0.2.9", CorrelationID: "c"})
	known := authn.Principal{UserID: uuid.NewString(), DisplayName: "Vic", SessionID: "s"}
	b.CallRefused(ctx, authn.Refusal{Method: method, Reason: "ROLE_REQUIRED", Principal: known, Known: true})
	e := b.wantNews("app.call.refused.v1 OPERATE method DENIED ROLE_REQUIRED")[0]
	if e.GetActor().GetId() != known.UserID || e.GetResource().GetId() != "RequeueOutboxEvents" || e.GetContext().GetClientAddress().GetPlain() != "192.0.2.9" {
		t.Errorf("event is %v", e)
	}
	for range 150 {
		b.CallRefused(ctx, authn.Refusal{Method: method, Reason: "TOKEN_MISSING"})
	}
	events := b.news()
	if n := len(events); n < 100 || n > 149 {
		t.Errorf("of 150 anonymous refusals at once %d are recorded, want the first 100 and few more", n)
	}
	if a := events[0].GetActor(); a.GetType() != "anonymous" || a.GetId() != "" {
		t.Errorf("actor is %v", a)
	}
}
