// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package naive

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// The writers that this repository is there to replace: a business change in one database, its audit record written to
// another by a call. They are kept to show what goes wrong with them, beside the path under the same faults.

// faults are what can happen between two databases.
type fault int

const (
	nothing         fault = iota
	callFails             // the audit service is down: nothing was written there
	answerLost            // the audit service wrote, and its answer never came
	commitFails           // the business transaction cannot commit
	callerDies            // the process ends between the two writes
	answerSwallowed       // as answerLost, and the caller ignores errors of the call
)

var errFault = errors.New("the fault of this case")

// world is a business database and an audit database, each with one table.
type world struct {
	t               *testing.T
	business, audit *pgxpool.Pool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	auth, admin := testdb.New(t, testdb.Auth).WithoutGuard(t), testdb.New(t, testdb.Admin)
	w := &world{t: t, business: auth.Service, audit: admin.Service}
	for _, db := range []*testdb.DB{auth, admin} {
		if _, err := db.Super.Exec(t.Context(), "CREATE TABLE actions (id uuid PRIMARY KEY); GRANT ALL ON actions TO PUBLIC"); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// result says what stands where in the end.
type result struct{ Action, Record bool }

func (w *world) result(id string) result {
	w.t.Helper()
	return result{Action: w.has(w.business, id), Record: w.has(w.audit, id)}
}

func (w *world) has(db *pgxpool.Pool, id string) (found bool) {
	w.t.Helper()
	if err := db.QueryRow(w.t.Context(), "SELECT EXISTS (SELECT FROM actions WHERE id = $1)", id).Scan(&found); err != nil {
		w.t.Fatal(err)
	}
	return found
}

const insert = "INSERT INTO actions VALUES ($1) ON CONFLICT DO NOTHING"

// callAudit is the remote call.
func (w *world) callAudit(ctx context.Context, f fault, id string) error {
	if f == callFails {
		return errFault
	}
	if _, err := w.audit.Exec(ctx, insert, id); err != nil {
		return err
	}
	if f == answerLost {
		return errFault
	}
	return nil
}

// act changes the business database; inside runs in the transaction, before it commits.
func (w *world) act(ctx context.Context, f fault, id string, inside func() error) error {
	return pgx.BeginFunc(ctx, w.business, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insert, id); err != nil {
			return err
		}
		if err := inside(); err != nil {
			return err
		}
		if f == commitFails {
			return errFault
		}
		return nil
	})
}

func none() error { return nil }

// commitThenCall, callThenCommit and callInside are the three orders in which the two writes can be made (U4, U5, U7).
func (w *world) commitThenCall(ctx context.Context, f fault, id string) {
	if w.act(ctx, f, id, none) == nil && f != callerDies {
		_ = w.callAudit(ctx, f, id) // too late to undo
	}
}

func (w *world) callThenCommit(ctx context.Context, f fault, id string) {
	if err := w.callAudit(ctx, f, id); err == nil && f != callerDies {
		_ = w.act(ctx, f, id, none)
	}
}

func (w *world) callInside(ctx context.Context, f fault, id string) {
	_ = w.act(ctx, f, id, func() error {
		if f == answerSwallowed {
			_ = w.callAudit(ctx, callFails, id)
			return nil
		}
		if err := w.callAudit(ctx, f, id); err != nil {
			return err
		}
		if f == callerDies {
			return errFault // what the server does with the transaction of a process that ended
		}
		return nil
	})
}

// TestNaiveWritersDisagree is what happens without an outbox: each order of the two writes leaves an action without a
// record or a record without an action under some fault, and which of them depends on how errors travel (U4, U5, U7–U9).
func TestNaiveWritersDisagree(t *testing.T) {
	t.Parallel()
	both, neither, orphan, missing := result{true, true}, result{}, result{Record: true}, result{Action: true}
	w := newWorld(t)
	for name, c := range map[string]struct {
		write func(context.Context, fault, string)
		want  map[fault]result
	}{
		"commit, then call": {w.commitThenCall, map[fault]result{
			nothing: both, callFails: missing, answerLost: both, commitFails: neither, callerDies: missing,
		}},
		"call, then commit": {w.callThenCommit, map[fault]result{
			nothing: both, callFails: neither, answerLost: orphan, commitFails: orphan, callerDies: orphan,
		}},
		"call inside the transaction": {w.callInside, map[fault]result{
			nothing: both, callFails: neither, answerLost: orphan, commitFails: orphan, callerDies: orphan, answerSwallowed: missing,
		}},
	} {
		got := map[fault]result{}
		for f := range c.want {
			id := uuid.NewString()
			c.write(t.Context(), f, id)
			got[f] = w.result(id)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPathAgrees is the path under the same faults: action and record are both there in the end, or neither is, and each
// record is there once (U4, U5, U8, U9).
func TestPathAgrees(t *testing.T) {
	t.Parallel()
	both, neither := result{true, true}, result{}
	w := newWorld(t)
	p := newPath(t, w)
	for f, want := range map[fault]result{nothing: both, callFails: both, answerLost: both, commitFails: neither, callerDies: both} {
		e := outboxtest.Event()
		e.Resource.Id, e.Resource.Version, e.OccurTime = uuid.NewString(), 1, timestamppb.Now()
		p.write(f, e)
		p.settle()
		if got := w.result(e.GetResource().GetId()); got != want {
			t.Errorf("fault %d: %+v, want %+v", f, got, want)
		}
	}
	if copies := p.bridge.Stats().Duplicates; p.applied != len(p.seen) || copies == 0 {
		t.Errorf("%d effects for %d events, %d copies in the stream: want one each, and a copy", p.applied, len(p.seen), copies)
	}
}
