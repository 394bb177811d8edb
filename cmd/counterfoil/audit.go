// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

type auditCmd struct {
	List   auditListCmd   `cmd:"" help:"Show who did what, newest first."`
	Get    auditGetCmd    `cmd:"" help:"Show everything about one record."`
	Export auditExportCmd `cmd:"" help:"Write all matching records to a file."`
}

func (a *app) auditLogs() adminv1.AuditLogServiceClient {
	return adminv1.NewAuditLogServiceClient(a.conn(serviceAdmin))
}

// filterFlags choose records. They are joined by AND; a flag given several times means any of its values.
type filterFlags struct {
	Filter      string   `placeholder:"EXPR" help:"An AIP-160 filter, see above."`
	Owner       []string `placeholder:"NAME" help:"Only what auth, app or admin recorded."`
	Action      []string `placeholder:"ACTION" help:"Only these actions; a * at the end stands for anything: auth.user.*"`
	Operation   []string `placeholder:"OP" help:"Only create, read, update, delete, login, logout, export or operate."`
	Actor       []string `placeholder:"USER" help:"Only what these did: id, users/ID, address, or me."`
	Resource    []string `placeholder:"WHAT" help:"Only what was done to these: TYPE, ID, TYPE/ID, users/ID or projects/ID."`
	Outcome     []string `placeholder:"HOW" help:"Only succeeded, failed or denied."`
	Correlation string   `placeholder:"ID" help:"Only what was done in this call."`
	Trace       string   `placeholder:"ID" help:"Only what was done in this trace."`
	Since       string   `placeholder:"TIME" help:"Only what was done at this time or later: 2026-11-30T12:00:00Z, 2026-11-30, or 2h, 7d ago."`
	Until       string   `placeholder:"TIME" help:"Only what was done before this time."`
}

const filterHelp = `--filter takes an AIP-160 filter over owner, action, operation, actor.id, actor.type, resource.id, resource.type, outcome,
correlation_id, trace_id and occur_time, with =, !=, <, <=, >, >= (the last four for occur_time only), AND, OR, NOT and
parentheses. The other flags are joined to it by AND; one given several times means any of its values.

`

// build returns the filter that the flags mean.
func (f filterFlags) build(ctx context.Context, a *app) (string, error) {
	var terms []string
	if strings.TrimSpace(f.Filter) != "" {
		terms = append(terms, "("+f.Filter+")")
	}
	anyOf := func(field string, values []string) {
		if len(values) == 0 {
			return
		}
		var options []string
		for _, v := range values {
			options = append(options, field+" = "+quote(v))
		}
		terms = append(terms, group(options))
	}
	anyOf("owner", f.Owner)
	anyOf("action", f.Action)
	operations, err := words("--operation", f.Operation, "OPERATION_", auditv1.Operation_value)
	if err != nil {
		return "", err
	}
	anyOf("operation", operations)
	outcomes, err := words("--outcome", f.Outcome, "OUTCOME_", auditv1.Outcome_value)
	if err != nil {
		return "", err
	}
	anyOf("outcome", outcomes)
	var actors []string
	for _, text := range f.Actor {
		id := text
		if text == "me" || strings.ContainsAny(text, "@/") {
			if id, err = a.userID(ctx, text); err != nil {
				return "", err
			}
		}
		actors = append(actors, id)
	}
	anyOf("actor.id", actors)
	if len(f.Resource) > 0 {
		var options []string
		for _, text := range f.Resource {
			options = append(options, resourceTerm(text))
		}
		terms = append(terms, group(options))
	}
	if f.Correlation != "" {
		anyOf("correlation_id", []string{f.Correlation})
	}
	if f.Trace != "" {
		anyOf("trace_id", []string{f.Trace})
	}
	times, err := f.times(a)
	return strings.Join(append(terms, times...), " AND "), err
}

func (f filterFlags) times(a *app) ([]string, error) {
	var terms []string
	since, err := a.moment("--since", f.Since)
	if err != nil {
		return nil, err
	}
	until, err := a.moment("--until", f.Until)
	if err != nil {
		return nil, err
	}
	if !since.IsZero() {
		terms = append(terms, "occur_time >= "+quote(since.Format(time.RFC3339Nano)))
	}
	if !until.IsZero() {
		terms = append(terms, "occur_time < "+quote(until.Format(time.RFC3339Nano)))
	}
	return terms, nil
}

// resourceTerm reads TYPE, ID, TYPE/ID, users/ID or projects/ID.
func resourceTerm(text string) string {
	kind, id, both := strings.Cut(text, "/")
	switch {
	case !both && uuid.Validate(text) == nil:
		return "resource.id = " + quote(text)
	case !both:
		return "resource.type = " + quote(text)
	}
	kind = strings.TrimSuffix(kind, "s")
	return "(resource.type = " + quote(kind) + " AND resource.id = " + quote(id) + ")"
}

// words reads enum values that a person typed into the short names that filters use.
func words(flag string, texts []string, prefix string, values map[string]int32) ([]string, error) {
	var names []string
	for _, text := range texts {
		if _, err := enum(flag, text, prefix, values); err != nil {
			return nil, err
		}
		names = append(names, strings.TrimPrefix(strings.ToUpper(text), prefix))
	}
	return names, nil
}

// group joins alternatives.
func group(options []string) string {
	if len(options) == 1 {
		return options[0]
	}
	return "(" + strings.Join(options, " OR ") + ")"
}

// quote writes a text as a filter's value.
func quote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

type auditListCmd struct {
	filterFlags
	Changes bool `help:"Show what changed, too."`
	pageFlags
}

// Help implements kong.HelpProvider.
func (auditListCmd) Help() string {
	return filterHelp + examples(
		"counterfoil audit list",
		"counterfoil audit list --since 24h --outcome denied --outcome failed",
		"counterfoil audit list --actor grace@example.com --action 'app.project.*' --changes",
		`counterfoil audit list --filter 'resource.type = "login_policy" AND NOT actor.type = "system"' --all -o json`)
}

// Run lists the records.
func (c *auditListCmd) Run(ctx context.Context, a *app) error {
	filter, err := c.build(ctx, a)
	if err != nil {
		return err
	}
	header := []string{"WHEN (UTC)", "WHO", "DID", "TO WHAT", "RESULT", "FROM", "EVENT"}
	if c.Changes {
		header = append(header, "CHANGES")
	}
	return list[*adminv1.AuditLog]{
		what: "records", header: header,
		row: func(l *adminv1.AuditLog) []string {
			e := l.GetEvent()
			row := []string{when(e.GetOccurTime()), who(e.GetActor()), e.GetAction(), toWhat(e), result(e), fromWhere(e.GetContext()), e.GetAuditId()}
			if c.Changes {
				row = append(row, changes(e))
			}
			return row
		},
		get: func(ctx context.Context, size int32, token string) ([]*adminv1.AuditLog, string, error) {
			r, err := a.auditLogs().ListAuditLogs(ctx, &adminv1.ListAuditLogsRequest{PageSize: size, PageToken: token, Filter: filter})
			return r.GetAuditLogs(), r.GetNextPageToken(), err
		},
	}.show(ctx, a, c.pageFlags)
}

type auditGetCmd struct {
	Event string `arg:"" help:"Event id, or auditLogs/ID."`
	Full  bool   `help:"With the exact bytes that the ledger hashes (json: base64)."`
}

// Help implements kong.HelpProvider.
func (auditGetCmd) Help() string {
	return examples("counterfoil audit get 01980000-0000-7000-8000-000000000001",
		"counterfoil audit get auditLogs/01980000-0000-7000-8000-000000000001 --full -o json")
}

// Run shows the record.
func (c *auditGetCmd) Run(ctx context.Context, a *app) error {
	id, err := lastID("an event", c.Event)
	if err != nil {
		return err
	}
	view := adminv1.AuditLogView_AUDIT_LOG_VIEW_BASIC
	if c.Full {
		view = adminv1.AuditLogView_AUDIT_LOG_VIEW_FULL
	}
	r, err := a.auditLogs().GetAuditLog(ctx, &adminv1.GetAuditLogRequest{Name: "auditLogs/" + id, View: view})
	if err != nil {
		return err
	}
	return a.out.result(r.GetAuditLog(), recordFields(r.GetAuditLog())...)
}
