// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/pkg/audit"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

// logged is a record of what Ada did, n seconds after noon.
func logged(n int, action string, resource *auditv1.Resource, change func(*auditv1.AuditEvent)) *adminv1.AuditLog {
	e := &auditv1.AuditEvent{
		AuditId: fmt.Sprintf("id-%03d", n), Action: action, Resource: resource, Outcome: auditv1.Outcome_OUTCOME_SUCCEEDED,
		Actor:     &auditv1.Actor{Type: "user", Id: "u-1", DisplayName: audit.Plain("Ada")},
		OccurTime: timestamppb.New(noon.Add(time.Duration(n) * time.Second)), Context: &auditv1.RequestContext{CorrelationId: "run.1.1"},
	}
	if change != nil {
		change(e)
	}
	return &adminv1.AuditLog{Event: e, RecordTime: timestamppb.New(e.GetOccurTime().AsTime().Add(time.Duration(n) * time.Millisecond))}
}

func trailOf(logs ...*adminv1.AuditLog) *Trail {
	t := &Trail{logs: logs, names: map[string]string{}}
	for _, l := range logs {
		t.learn(l.GetEvent())
	}
	return t
}

// written is what is printed below the header line, of a run with one chapter.
func written(t *Trail) []string {
	var out bytes.Buffer
	t.Write(&out, []string{"The first start", "Work"}, func(correlation string) (int, bool) { return 1, strings.HasPrefix(correlation, "run.") })
	return strings.Split(strings.TrimSpace(out.String()), "\n")[1:]
}

var (
	apollo = &auditv1.Resource{Type: "project", Id: "p-1", DisplayName: audit.Plain("Apollo"), Version: 1} //nolint:gochecknoglobals // a constant
	member = &auditv1.Resource{Type: "project_member", Id: "m-1", Version: 1}                              //nolint:gochecknoglobals // a constant
)

func TestALineSaysWhoDidWhatToWhatWithWhatResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		log  *adminv1.AuditLog
		want string
	}{
		"a change": {
			logged(1, "app.project.archived", apollo, func(e *auditv1.AuditEvent) {
				e.Changes = []*auditv1.Change{{Field: "state", OldValue: audit.Plain("ACTIVE"), NewValue: audit.Plain("ARCHIVED")}}
			}),
			"12:00:01.000 Ada app.project.archived project Apollo ok state: ACTIVE → ARCHIVED",
		},
		"a refusal": {
			logged(1, "app.project.refused", &auditv1.Resource{Type: "project", Id: "p-1"}, func(e *auditv1.AuditEvent) {
				e.Outcome, e.Reason = auditv1.Outcome_OUTCOME_DENIED, "PROJECT_ROLE_REQUIRED"
			}),
			"12:00:01.000 Ada app.project.refused project p-1 DENIED PROJECT_ROLE_REQUIRED",
		},
		"a secret field": {
			logged(1, "app.project.updated", apollo, func(e *auditv1.AuditEvent) { e.Changes = []*auditv1.Change{{Field: "description"}} }),
			"12:00:01.000 Ada app.project.updated project Apollo ok description: changed",
		},
		"a member, by name": {
			logged(1, "app.member.added", member, func(e *auditv1.AuditEvent) {
				e.RelatedResources = []*auditv1.Resource{apollo, {Type: "user", Id: "u-1"}}
			}),
			"12:00:01.000 Ada app.member.added Ada in Apollo ok",
		},
		"nobody in particular": {
			logged(1, "auth.login.failed", &auditv1.Resource{Type: "user", Id: "u-1"}, func(e *auditv1.AuditEvent) {
				e.Actor, e.Outcome, e.Reason = &auditv1.Actor{Type: "anonymous"}, auditv1.Outcome_OUTCOME_FAILED, "BAD_PASSWORD"
			}),
			"12:00:01.000 anonymous auth.login.failed user u-1 FAILED BAD_PASSWORD",
		},
		"a name that would talk to the terminal": {
			logged(1, "app.project.created", &auditv1.Resource{Type: "project", Id: "p-2", DisplayName: audit.Plain("\x1b[2Jgone")}, nil),
			"12:00:01.000 Ada app.project.created project \uFFFD[2Jgone ok",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines := written(trailOf(c.log))
			if got := strings.Join(strings.Fields(lines[len(lines)-1]), " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestChangesThatDoNotFitGoToTheNextLine(t *testing.T) {
	t.Parallel()
	lines := written(trailOf(logged(1, "app.project.updated", apollo, func(e *auditv1.AuditEvent) {
		for _, field := range []string{"first", "second", "third"} {
			e.Changes = append(e.Changes, &auditv1.Change{Field: field, NewValue: audit.Plain(strings.Repeat("x", 100))})
		}
	})))
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, strings.Repeat(" ", 33)+"first: – → x") || !strings.Contains(last, "x…, second") {
		t.Errorf("%q", lines)
	}
}

func TestAnImportIsOneLine(t *testing.T) {
	t.Parallel()
	imported := func(n int, e *auditv1.AuditEvent) {
		e.RelatedResources = []*auditv1.Resource{apollo, {Type: "user", Id: fmt.Sprintf("u-%d", 100+n)}}
	}
	logs := []*adminv1.AuditLog{logged(0, "app.project.created", apollo, nil)}
	for i := range 500 {
		logs = append(logs, logged(1+i, "app.member.added", member, func(e *auditv1.AuditEvent) { imported(i, e) }))
	}
	// One of a kind, and one into another project: lines of their own.
	logs = append(logs, logged(600, "app.member.removed", member, func(e *auditv1.AuditEvent) { imported(1, e) }),
		logged(601, "app.member.added", member, func(e *auditv1.AuditEvent) {
			e.RelatedResources = []*auditv1.Resource{{Type: "project", Id: "p-2", DisplayName: audit.Plain("Hermes")}, {Type: "user", Id: "u-1"}}
		}))
	lines := written(trailOf(logs...))
	var got []string
	for _, line := range lines[2:] {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"12:00:00.000 Ada app.project.created project Apollo ok",
		"12:00:01.000 Ada app.member.added × 500 members of Apollo ok until 12:08:20.000",
		"12:10:00.000 Ada app.member.removed u-101 in Apollo ok",
		"12:10:01.000 Ada app.member.added Ada in Hermes ok",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFewOfAKindStayLinesOfTheirOwn(t *testing.T) {
	t.Parallel()
	var logs []*adminv1.AuditLog
	for i := range foldAbove {
		logs = append(logs, logged(i, "app.project.updated", apollo, nil))
	}
	if lines := written(trailOf(logs...)); len(lines) != 2+foldAbove {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if lines := written(trailOf(append(logs, logged(99, "app.project.updated", apollo, nil))...)); len(lines) != 3 {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
}

func TestAnotherRunsRecordsAreLeftOut(t *testing.T) {
	t.Parallel()
	lines := written(trailOf(
		logged(1, "app.project.created", apollo, func(e *auditv1.AuditEvent) { e.Context.CorrelationId = "" }),
		logged(2, "app.project.deleted", apollo, func(e *auditv1.AuditEvent) { e.Context.CorrelationId = "elsewhere" }),
		logged(3, "app.project.updated", apollo, nil)))
	text := strings.Join(lines, "\n")
	if strings.Contains(text, "deleted") || !strings.Contains(text, "0. The first start\n12:00:01") || !strings.Contains(text, "1. Work\n12:00:03") {
		t.Errorf("%s", text)
	}
}

func TestSlowest(t *testing.T) {
	t.Parallel()
	trail := trailOf(logged(1, "a.b", apollo, nil), logged(7, "a.b", apollo, nil), logged(3, "a.b", apollo, nil))
	if id, wait := trail.Slowest(); id != "id-007" || wait != 7*time.Millisecond {
		t.Errorf("%s after %v", id, wait)
	}
	if id, _ := trailOf().Slowest(); id != "" {
		t.Errorf("%q of nothing", id)
	}
}
