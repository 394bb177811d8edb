// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// users returns n users to import as viewers.
func users(n int) []app.NewMember {
	list := make([]app.NewMember, n)
	for i := range list {
		list[i] = app.NewMember{UserID: uuid.Must(uuid.NewV7()), Role: store.Viewer}
	}
	return list
}

// TestImport: the largest import is one transaction with one event for each member, and so is the deletion of its
// project (BC-20).
func TestImport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), caller("Ada")
	p := b.project(ada)
	list := users(app.MaxImport)

	start := time.Now()
	n, err := b.ImportMembers(ctx, ada, p.ID, list)
	b.must(err)
	t.Logf("import of %d members: %v", n, time.Since(start).Round(time.Millisecond))
	if n != len(list) {
		t.Errorf("imported %d of %d", n, len(list))
	}
	if got := b.count(`SELECT count(*) FROM project_members WHERE project_id = $1`, p.ID); got != n+1 {
		t.Errorf("%d members, want %d and the owner", got, n)
	}
	if txs := b.count(`SELECT count(DISTINCT tx) FROM audit_outbox WHERE event_type = 'app.member.added.v1' AND resource_version = 1 AND append_no > 2`); txs != 1 {
		t.Errorf("the import took %d transactions, want 1", txs)
	}
	for i, e := range b.news() {
		if got := e.GetRelatedResources()[1].GetId(); got != list[i].UserID.String() {
			t.Fatalf("event %d is about user %s, want the list's order", i, got)
		}
	}
	b.wantWhole()

	start = time.Now()
	b.must(b.DeleteProject(ctx, ada, p.ID, 0))
	t.Logf("deletion of a project with them: %v", time.Since(start).Round(time.Millisecond))
	if got := len(b.news()); got != n+2 {
		t.Errorf("the deletion recorded %d events, want one for each of %d members and one", got, n+1)
	}
	b.wantWhole()
}

// TestImportWithABadItem: one bad item keeps all out, and the error names it.
func TestImportWithABadItem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), caller("Ada")
	p := b.project(ada)
	known := b.member(ada, p, uuid.Must(uuid.NewV7()), store.Editor)

	twice := users(20)
	twice[11] = twice[3]
	exists := users(20)
	exists[7].UserID = known.UserID
	exists[9].UserID = ada.UserID
	for name, c := range map[string]struct {
		list   []app.NewMember
		kind   apperr.Kind
		reason string
		field  string
	}{
		"the same user twice": {twice, apperr.KindInvalidArgument, "MEMBER_REPEATED", "members[11].user"},
		"a member already":    {exists, apperr.KindAlreadyExists, "MEMBER_EXISTS", "members[7].user"},
		"none":                {nil, apperr.KindInvalidArgument, "INVALID_FIELD", "members"},
		"too many":            {users(app.MaxImport + 1), apperr.KindInvalidArgument, "INVALID_FIELD", "members"},
	} {
		_, err := b.ImportMembers(ctx, with(ada, uuid.New(), name), p.ID, c.list)
		b.wantReason(err, c.kind, c.reason)
		var e *apperr.Error
		if !errors.As(err, &e) || len(e.Violations) != 1 || e.Violations[0].Field != c.field {
			t.Errorf("%s: error %+v does not name %s", name, e, c.field)
		}
		b.wantNews("app.member.refused.v1 CREATE project FAILED " + c.reason)
	}
	if n := b.count(`SELECT count(*) FROM project_members`); n != 2 {
		t.Errorf("%d members, want the two from before", n)
	}
	if n := b.count(`SELECT count(*) FROM requests`); n != 0 {
		t.Errorf("%d refused calls are remembered", n)
	}
}
