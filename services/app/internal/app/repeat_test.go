// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// mutations are all operations that change something, each on a fresh project; run returns what the call answers, in
// one comparable value. The etag is that of the first version, so that a repeat always comes with a stale one.
func mutations(b *bundle, ada app.Call) map[string]func() (run func(call app.Call) (any, error)) {
	b.t.Helper()
	ctx := b.t.Context()
	fresh := func() (store.Project, store.Member) {
		p := b.project(ada)
		return p, b.member(ada, p, uuid.Must(uuid.NewV7()), store.Viewer)
	}
	return map[string]func() func(call app.Call) (any, error){
		"CreateProject": func() func(app.Call) (any, error) {
			n := app.NewProject{Slug: "c-" + uuid.NewString()[:8], DisplayName: "Created"}
			return func(c app.Call) (any, error) { return b.CreateProject(ctx, c, n) }
		},
		"UpdateProject": func() func(app.Call) (any, error) {
			p, _ := fresh()
			title := "Updated"
			return func(c app.Call) (any, error) {
				return b.UpdateProject(ctx, c, app.ProjectUpdate{ID: p.ID, Etag: 1, DisplayName: &title})
			}
		},
		"ArchiveProject": func() func(app.Call) (any, error) {
			p, _ := fresh()
			return func(c app.Call) (any, error) { return b.ArchiveProject(ctx, c, p.ID, 1) }
		},
		"RestoreProject": func() func(app.Call) (any, error) {
			p, _ := fresh()
			_, err := b.ArchiveProject(ctx, ada, p.ID, 1)
			b.must(err)
			return func(c app.Call) (any, error) { return b.RestoreProject(ctx, c, p.ID, 2) }
		},
		"DeleteProject": func() func(app.Call) (any, error) {
			p, _ := fresh()
			return func(c app.Call) (any, error) { return nil, b.DeleteProject(ctx, c, p.ID, 1) }
		},
		"AddMember": func() func(app.Call) (any, error) {
			p, _ := fresh()
			user := uuid.Must(uuid.NewV7())
			return func(c app.Call) (any, error) { return b.AddMember(ctx, c, p.ID, user, store.Editor) }
		},
		"UpdateMember": func() func(app.Call) (any, error) {
			p, m := fresh()
			return func(c app.Call) (any, error) {
				return b.UpdateMember(ctx, c, app.MemberUpdate{ProjectID: p.ID, ID: m.ID, Etag: 1, Role: store.Editor})
			}
		},
		"RemoveMember": func() func(app.Call) (any, error) {
			p, m := fresh()
			return func(c app.Call) (any, error) { return nil, b.RemoveMember(ctx, c, p.ID, m.ID, 1) }
		},
		"ImportMembers": func() func(app.Call) (any, error) {
			p, _ := fresh()
			list := []app.NewMember{{UserID: uuid.Must(uuid.NewV7()), Role: store.Viewer}, {UserID: uuid.Must(uuid.NewV7()), Role: store.Editor}}
			return func(c app.Call) (any, error) { return b.ImportMembers(ctx, c, p.ID, list) }
		},
	}
}

// TestRepeat: a call that is made again under its request id answers the same, changes nothing and records nothing; the
// id with another body is refused, and the refusal recorded (design: requests).
func TestRepeat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := caller("Ada")
	for name, prepare := range mutations(b, ada) {
		run := prepare()
		b.news()
		call := with(ada, uuid.New(), name)
		first, err := run(call)
		b.must(err)
		if len(b.news()) == 0 {
			t.Errorf("%s recorded nothing", name)
		}
		second, err := run(call)
		if err != nil || second != first {
			t.Errorf("%s again: got %+v, %v, want %+v", name, second, err, first)
		}
		if again := b.news(); len(again) != 0 {
			t.Errorf("%s again recorded %v", name, again)
		}
		_, err = run(with(ada, call.Request.RequestID, "another body"))
		b.wantReason(err, apperr.KindInvalidArgument, "REQUEST_ID_REUSED")
		if events := b.news(); len(events) != 1 || events[0].GetReason() != "REQUEST_ID_REUSED" {
			t.Errorf("%s with another body recorded %v", name, events)
		}
	}
	b.wantWhole()
}

// TestRepeatAfterRefusal: nothing is remembered of a refused call, so it can be tried again under its id.
func TestRepeatAfterRefusal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada := t.Context(), caller("Ada")
	p := b.project(ada)
	call, user := with(ada, uuid.New(), "add"), uuid.Must(uuid.NewV7())
	_, err := b.ArchiveProject(ctx, ada, p.ID, 0)
	b.must(err)
	_, err = b.AddMember(ctx, call, p.ID, user, store.Viewer)
	b.wantReason(err, apperr.KindFailedPrecondition, "PROJECT_ARCHIVED")
	_, err = b.RestoreProject(ctx, ada, p.ID, 0)
	b.must(err)
	_, err = b.AddMember(ctx, call, p.ID, user, store.Viewer)
	b.must(err)
}

// TestRepeatTellsNothingNew: a repeat by somebody who is no member any more does not show them the project.
func TestRepeatTellsNothingNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, ada, ed := t.Context(), caller("Ada"), caller("Ed")
	p := b.project(ada)
	m := b.member(ada, p, ed.UserID, store.Editor)
	call, title := with(ed, uuid.New(), "update"), "by Ed"
	_, err := b.UpdateProject(ctx, call, app.ProjectUpdate{ID: p.ID, DisplayName: &title})
	b.must(err)
	b.must(b.RemoveMember(ctx, ada, p.ID, m.ID, 0))
	_, err = b.UpdateProject(ctx, call, app.ProjectUpdate{ID: p.ID, DisplayName: &title})
	b.wantReason(err, apperr.KindNotFound, "PROJECT_NOT_FOUND")
}

// TestRepeatAtOnce: of many copies of one call at the same time one changes and records, and all answer the same.
func TestRepeatAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada := caller("Ada")
	for name, prepare := range mutations(b, ada) {
		run := prepare()
		before := b.count(`SELECT count(*) FROM audit_outbox`)
		call := with(ada, uuid.New(), name)
		answers := make([]any, 8)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				var err error
				if answers[i], err = run(call); err != nil {
					t.Errorf("%s: copy %d: %v", name, i, err)
				}
			})
		}
		wg.Wait()
		for _, a := range answers {
			if a != answers[0] {
				t.Errorf("%s: answers differ: %+v and %+v", name, a, answers[0])
			}
		}
		want := map[string]int{"CreateProject": 2, "DeleteProject": 3, "ImportMembers": 2}[name]
		if got := b.count(`SELECT count(*) FROM audit_outbox`) - before; got != max(want, 1) {
			t.Errorf("%s: %d events of eight copies, want %d", name, got, max(want, 1))
		}
	}
	b.wantWhole()
}

// TestRepeatIsKnownWhateverHappensMeanwhile: that its caller is gone, or that the database cannot say whether it was made
// before, turns no repeat into a refusal of what was done. What was refused is recorded though the caller is gone.
func TestRepeatIsKnownWhateverHappensMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, title := caller("Ada"), "Updated"
	p, call := b.project(ada), with(ada, uuid.New(), "update")
	var meanwhile func()
	config := b.db.Service.Config()
	config.ConnConfig.Tracer = atRollback(func() { meanwhile() })
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	b.must(err)
	t.Cleanup(pool.Close)
	b.Service = app.New(app.Config{DB: pool, Logger: slog.New(slog.DiscardHandler)})
	update := func(ctx context.Context, call app.Call) error {
		_, err := b.UpdateProject(ctx, call, app.ProjectUpdate{ID: p.ID, Etag: 1, DisplayName: &title})
		return err
	}
	b.must(update(t.Context(), call))
	b.news()

	hangUp := func(call app.Call) {
		ctx, cancel := context.WithCancel(t.Context())
		meanwhile = cancel
		_ = update(ctx, call)
	}
	hangUp(call)
	b.wantNews()
	hangUp(with(ada, uuid.New(), "update"))
	if events := b.news(); len(events) != 1 || events[0].GetReason() != "ETAG_MISMATCH" {
		t.Errorf("a refusal whose caller is gone recorded %v", events)
	}
	rename := func(from, to string) {
		_, err := b.db.Owner.Exec(t.Context(), "ALTER TABLE "+from+" RENAME TO "+to)
		b.must(err)
	}
	meanwhile = func() { rename("requests", "away") }
	if err := update(t.Context(), call); apperr.KindOf(err) != apperr.KindInternal {
		t.Errorf("the repeat is answered with %v", err)
	}
	meanwhile = func() {}
	rename("away", "requests")
	b.must(update(t.Context(), call))
	b.wantNews()
}

// atRollback is a tracer that does something when a transaction is rolled back, before anything else happens.
type atRollback func()

func (do atRollback) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.EqualFold(q.SQL, "rollback") {
		do()
	}
	return ctx
}

func (atRollback) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
