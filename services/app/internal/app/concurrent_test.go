// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// TestVersionsUnderConcurrency: 100 updates of one project at once make 100 versions, dense and unique, each with its
// event, in the order of the numbers that the outbox draws (BC-21).
func TestVersionsUnderConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := caller("Ada")
	p := b.project(ada)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			title := fmt.Sprintf("title %d", i)
			if _, err := b.UpdateProject(t.Context(), ada, app.ProjectUpdate{ID: p.ID, DisplayName: &title}); err != nil {
				t.Errorf("update %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	title := "title 0"
	for i, e := range b.news() {
		if v := e.GetResource().GetVersion(); v != int64(i)+2 {
			t.Fatalf("event %d has version %d, want %d", i, v, i+2)
		}
		if was := e.GetChanges()[0].GetOldValue().GetPlain(); i > 0 && was != title {
			t.Fatalf("version %d changed from %q, the one before changed to %q", i+2, was, title)
		}
		title = e.GetChanges()[0].GetNewValue().GetPlain()
	}
	if got, err := b.GetProject(t.Context(), ada, p.ID); err != nil || got.Version != 101 || got.DisplayName != title {
		t.Errorf("project is %+v, %v, want version 101 and %q", got, err, title)
	}
	b.wantWhole()
}

// TestEtagUnderConcurrency: of ten changes that were made from the same version one wins, nine are ABORTED, and each is
// recorded as what it was.
func TestEtagUnderConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := caller("Ada")
	p := b.project(ada)
	var won, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			title := fmt.Sprintf("title %d", i)
			_, err := b.UpdateProject(t.Context(), ada, app.ProjectUpdate{ID: p.ID, Etag: 1, DisplayName: &title})
			switch {
			case err == nil:
				won.Add(1)
			case apperr.ReasonOf(err) == "ETAG_MISMATCH" && apperr.KindOf(err) == apperr.KindAborted:
				lost.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	outcomes := map[string]int{}
	for _, e := range b.news() {
		outcomes[e.GetEventType()+e.GetReason()]++
	}
	if won.Load() != 1 || lost.Load() != 9 || outcomes["app.project.updated.v1"] != 1 || outcomes["app.project.refused.v1ETAG_MISMATCH"] != 9 {
		t.Errorf("%d won, %d lost, recorded %v", won.Load(), lost.Load(), outcomes)
	}
	b.wantWhole()
}

// TestOwnersRemoveEachOther: two owners who remove each other at the same moment leave one.
func TestOwnersRemoveEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	for range 10 {
		ada, bob := caller("Ada"), caller("Bob")
		p := b.project(ada)
		b.member(ada, p, bob.UserID, store.Owner)
		members, err := b.ListMembers(ctx, ada, p.ID, uuid.Nil, 2)
		b.must(err)
		var wg sync.WaitGroup
		for i, call := range []app.Call{ada, bob} {
			wg.Go(func() { _ = b.RemoveMember(ctx, call, p.ID, members[1-i].ID, 0) }) // one of them must fail
		}
		wg.Wait()
		if n := b.count(`SELECT count(*) FROM project_members WHERE project_id = $1 AND role = 'OWNER'`, p.ID); n != 1 {
			t.Fatalf("%d owners are left, want 1", n)
		}
	}
	b.wantWhole()
}

// TestRoleIsReadUnderTheLock: a member who is removed while their change waits for the project's lock does not get to
// make it. A single statement with a join would still see the role of when the waiting began.
func TestRoleIsReadUnderTheLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.WithoutGuard(t) // the removal below is made by hand
	ctx, ada, ed := t.Context(), caller("Ada"), caller("Ed")
	p := b.project(ada)
	m := b.member(ada, p, ed.UserID, store.Editor)

	tx, err := b.db.Super.Begin(ctx)
	b.must(err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, `SELECT FROM projects WHERE id = $1 FOR UPDATE`, p.ID)
	b.must(err)

	result := make(chan error, 1)
	go func() {
		title := "too late"
		_, err := b.UpdateProject(ctx, ed, app.ProjectUpdate{ID: p.ID, DisplayName: &title})
		result <- err
	}()
	for b.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the update never waited")
		}
	}
	_, err = tx.Exec(ctx, `DELETE FROM project_members WHERE id = $1`, m.ID)
	b.must(err)
	b.must(tx.Commit(ctx))
	b.wantReason(<-result, apperr.KindNotFound, "PROJECT_NOT_FOUND")
	b.wantNews("app.project.refused.v1 UPDATE project DENIED NOT_A_MEMBER")
}
