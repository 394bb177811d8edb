// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/testdb"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// bundle is one test's service on a database of its own.
type bundle struct {
	*app.Service
	t    *testing.T
	db   *testdb.DB
	log  *strings.Builder
	seen int // events that earlier calls of news have returned
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, db: testdb.New(t, testdb.App), log: &strings.Builder{}}
	b.Service = app.New(app.Config{DB: b.db.Service, Logger: slog.New(slog.NewTextHandler(b.log, nil))})
	return b
}

// caller is a user who calls, each time another one.
func caller(name string) app.Call {
	return app.Call{
		UserID: uuid.Must(uuid.NewV7()), DisplayName: name, SessionID: uuid.NewString(),
		Info: grpcserver.Info{
			Method: "/counterfoil.app.v1.ProjectService/Test", ClientAddress: "192.0.2.7", UserAgent: "test/1",
			CorrelationID: "correlation-" + name, TraceID: "0af7651916cd43dd8448eb211c80319c",
		},
	}
}

// with returns call under a fresh request id, for a body that is told apart by its text.
func with(call app.Call, id uuid.UUID, body string) app.Call {
	call.Request = idempotency.Key{Principal: call.UserID.String(), Method: call.Info.Method, RequestID: id, BodyHash: []byte(body)}
	return call
}

// project creates one, owned by call, and forgets its events.
func (b *bundle) project(call app.Call) store.Project {
	b.t.Helper()
	p, err := b.CreateProject(b.t.Context(), call, app.NewProject{Slug: "p-" + uuid.NewString()[:8], DisplayName: "Orion", Description: "first"})
	b.must(err)
	b.news()
	return p
}

// member adds a user to p and forgets its event.
func (b *bundle) member(owner app.Call, p store.Project, user uuid.UUID, role store.Role) store.Member {
	b.t.Helper()
	m, err := b.AddMember(b.t.Context(), owner, p.ID, user, role)
	b.must(err)
	b.news()
	return m
}

// news returns the events appended since it was last asked.
func (b *bundle) news() []*auditv1.AuditEvent {
	b.t.Helper()
	rows, err := b.db.Super.Query(b.t.Context(), `SELECT payload FROM audit_outbox ORDER BY append_no OFFSET $1`, b.seen)
	b.must(err)
	defer rows.Close()
	var events []*auditv1.AuditEvent
	for rows.Next() {
		var payload []byte
		b.must(rows.Scan(&payload))
		e := &auditv1.AuditEvent{}
		b.must(proto.Unmarshal(payload, e))
		events = append(events, e)
	}
	b.must(rows.Err())
	b.seen += len(events)
	return events
}

// wantNews fails unless exactly these events were appended since the last look; see line for how they are written.
func (b *bundle) wantNews(want ...string) []*auditv1.AuditEvent {
	b.t.Helper()
	events := b.news()
	var got []string
	for _, e := range events {
		got = append(got, line(e))
	}
	if !slices.Equal(got, want) {
		b.t.Errorf("events:\n got  %s\n want %s", strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
	return events
}

// line writes an event in one line: type, operation, resource and version, outcome or reason, changes.
func line(e *auditv1.AuditEvent) string {
	s := fmt.Sprintf("%s %s %s", e.GetEventType(), strings.TrimPrefix(e.GetOperation().String(), "OPERATION_"), e.GetResource().GetType())
	if v := e.GetResource().GetVersion(); v != 0 {
		s += fmt.Sprintf("/%d", v)
	}
	if e.GetOutcome() != auditv1.Outcome_OUTCOME_SUCCEEDED {
		s += " " + strings.TrimPrefix(e.GetOutcome().String(), "OUTCOME_") + " " + e.GetReason()
	}
	for _, c := range e.GetChanges() {
		s += fmt.Sprintf(" %s:%s→%s", c.GetField(), cmp.Or(c.GetOldValue().GetPlain(), "-"), cmp.Or(c.GetNewValue().GetPlain(), "-"))
	}
	return s
}

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bundle) wantReason(err error, kind apperr.Kind, reason string) {
	b.t.Helper()
	if apperr.KindOf(err) != kind || apperr.ReasonOf(err) != reason {
		b.t.Errorf("got error %v, want %v (%s)", err, kind, reason)
	}
}

// count returns what a statement counts.
func (b *bundle) count(sql string, args ...any) (n int) {
	b.t.Helper()
	b.must(b.db.Super.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

// wantWhole fails unless every version of every row has exactly one event, no event names a version that its row never
// had, and what is gone was recorded as deleted last. It is I1 for one owner, in SQL that shares nothing with the service.
func (b *bundle) wantWhole() {
	b.t.Helper()
	broken := b.count(`
		WITH rows AS (
			SELECT 'project' AS kind, id::text, version FROM projects
			UNION ALL SELECT 'project_member', id::text, version FROM project_members
		), events AS (
			SELECT resource_type AS kind, resource_id AS id, count(*) AS n, max(resource_version) AS version,
			       coalesce(max(resource_version) FILTER (WHERE operation = 'DELETE'), 0) AS deleted
			FROM audit_outbox WHERE resource_version IS NOT NULL GROUP BY 1, 2
		)
		SELECT count(*) FROM rows r FULL JOIN events e USING (kind, id)
		WHERE e.n IS DISTINCT FROM e.version
		   OR CASE WHEN r.version IS NULL THEN e.deleted <> e.version ELSE r.version IS DISTINCT FROM e.version OR e.deleted > 0 END`)
	if broken != 0 {
		b.t.Errorf("%d rows do not have exactly one event for each version", broken)
	}
}

// sameTime compares to the microsecond, which is what rows, events and answers have.
func sameTime(a, b time.Time) bool { return a.Equal(b) && a.Nanosecond()%1000 == 0 }
