// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package report prints what the audit log holds as a person reads it, and holds it against what was committed: the
// owners' outboxes, read as raw bytes, and the demo's own journal of its calls. It knows nothing of what a scenario meant to
// do; all that it prints was read or measured.
package report

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// foldAbove is how often the same actor may do the same in one project before it becomes one line of a chapter.
const foldAbove = 8

// The layout of a line: time, actor, action, target, result. Changes follow where lineWidth allows, else on the next line.
const (
	lineFormat  = "%-12s  %-17s  %-32s  %-32s  %s"
	targetWidth = 32
	lineWidth   = 150
)

// Trail is the audit log of one run, oldest first.
type Trail struct {
	logs  []*adminv1.AuditLog
	names map[string]string // display names by the id of a user or project
}

// ReadTrail reads what happened since begin, through Admin's API, with the access token of an auditor.
func ReadTrail(ctx context.Context, admin *grpc.ClientConn, token string, begin time.Time) (*Trail, error) {
	client := adminv1.NewAuditLogServiceClient(admin)
	request := &adminv1.ListAuditLogsRequest{
		Filter: fmt.Sprintf("occur_time >= %q", begin.UTC().Format(time.RFC3339Nano)), PageSize: 1000,
	}
	t := &Trail{names: map[string]string{}}
	for {
		answer, err := client.ListAuditLogs(harness.WithToken(ctx, token), request)
		if err != nil {
			return nil, fmt.Errorf("list audit logs: %w", err)
		}
		t.logs = append(t.logs, answer.GetAuditLogs()...)
		if request.PageToken = answer.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	slices.SortFunc(t.logs, func(a, b *adminv1.AuditLog) int { // events of one transaction have one time, and ids in their order
		return cmp.Or(happened(a).Compare(happened(b)), cmp.Compare(a.GetEvent().GetAuditId(), b.GetEvent().GetAuditId()))
	})
	for _, l := range t.logs {
		t.learn(l.GetEvent())
	}
	return t, nil
}

// happened is when.
func happened(l *adminv1.AuditLog) time.Time { return l.GetEvent().GetOccurTime().AsTime() }

// waited is how long it took from there to the record.
func waited(l *adminv1.AuditLog) time.Duration { return l.GetRecordTime().AsTime().Sub(happened(l)) }

// Len returns the number of records.
func (t *Trail) Len() int { return len(t.logs) }

// Slowest returns the id of the event that waited longest for its record, and how long; "" in an empty trail.
func (t *Trail) Slowest() (id string, wait time.Duration) {
	for _, l := range t.logs {
		if id == "" || waited(l) > wait {
			id, wait = l.GetEvent().GetAuditId(), waited(l)
		}
	}
	return id, wait
}

// Write prints the trail by chapters. chapter tells the chapter of a correlation id; records of others
// are left out, and those without such an id stand in chapter 0.
func (t *Trail) Write(w io.Writer, titles []string, chapter func(correlation string) (int, bool)) {
	groups := make([][]*adminv1.AuditLog, len(titles))
	for _, l := range t.logs {
		correlation := l.GetEvent().GetContext().GetCorrelationId()
		i, ours := chapter(correlation)
		switch {
		case correlation == "":
			groups[0] = append(groups[0], l)
		case ours:
			groups[i] = append(groups[i], l)
		}
	}
	Printf(w, lineFormat+"\n", "TIME (UTC)", "WHO", "DID WHAT", "TO WHAT", "RESULT")
	for i, group := range groups {
		if len(group) == 0 {
			continue
		}
		Printf(w, "\n%d. %s\n", i, titles[i])
		for _, l := range fold(group) {
			t.writeLine(w, l)
		}
	}
}

// line is one line of the trail: one event, or many of a kind.
type line struct {
	first, last *adminv1.AuditLog
	count       int
}

// fold makes one line of what one actor did with one result more often than foldAbove, at the place of the first.
func fold(group []*adminv1.AuditLog) []line {
	kind := func(l *adminv1.AuditLog) string {
		e := l.GetEvent()
		return strings.Join([]string{e.GetActor().GetType(), e.GetActor().GetId(), e.GetAction(), e.GetOutcome().String(), e.GetReason(), related(e, "project")}, "\x00")
	}
	counts := map[string]int{}
	for _, l := range group {
		counts[kind(l)]++
	}
	var lines []line
	folded := map[string]int{} // where the line of a kind stands
	for _, l := range group {
		at, open := folded[kind(l)]
		switch {
		case counts[kind(l)] <= foldAbove:
			lines = append(lines, line{l, l, 1})
		case open:
			lines[at].last = l
			lines[at].count++
		default:
			folded[kind(l)] = len(lines)
			lines = append(lines, line{l, l, 1})
		}
	}
	return lines
}

func (t *Trail) writeLine(w io.Writer, l line) {
	e := l.first.GetEvent()
	what, target := e.GetAction(), t.target(e)
	if l.count > 1 {
		what = fmt.Sprintf("%s × %d", what, l.count)
		target = t.common(l)
	}
	text := fmt.Sprintf(lineFormat, clock(happened(l.first)), t.actor(e), what, cut(target, targetWidth), result(e))
	Printf(w, "%s", text)
	details := t.changes(e)
	if l.count > 1 {
		details = "until " + clock(happened(l.last))
	}
	switch {
	case details == "":
		Printf(w, "\n")
	case len([]rune(text))+2+len([]rune(details)) <= lineWidth:
		Printf(w, "%s\n", "  "+details)
	default:
		Printf(w, "\n%33s%s\n", "", details)
	}
}

// result is what came of it.
func result(e *auditv1.AuditEvent) string {
	word := strings.TrimPrefix(e.GetOutcome().String(), "OUTCOME_")
	if e.GetOutcome() == auditv1.Outcome_OUTCOME_SUCCEEDED {
		word = "ok"
	}
	return strings.TrimSpace(word + " " + e.GetReason())
}
