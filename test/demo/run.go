// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/counterfoil/counterfoil/test/demo/report"
	"github.com/counterfoil/counterfoil/test/demo/scenario"
	"github.com/counterfoil/counterfoil/test/harness"
)

// leastActions is how many actions the day must hold beside the import and the steady traffic, over both owners.
const leastActions = 40

// target is a system to play against.
type target struct {
	scenario.System
	// suffix makes names unique on a system that is not new.
	suffix string
	// cli is the path of the operator's CLI, folder a directory for its login.
	cli, folder string
	// addresses are host:port of the three services.
	addresses map[string]string
	// logs says where to look when something went wrong.
	logs func() []string
	// close ends what was started; keep leaves files behind for whoever looks into a failure.
	close func(keep bool) error
}

// run plays the day on a system and prints what came of it. scale divides the system's times; it is 1 but for tests.
func run(ctx context.Context, compose bool, scale float64, w io.Writer) (err error) {
	begin := time.Now()
	report.Printf(w, "Counterfoil: people work, Admin and Redis are killed under them and come back, and the audit log is held against what was committed.\n")
	log := progress(w, begin)
	start := startLocal
	if compose {
		start = startCompose
	}
	t, err := start(ctx, scale, log)
	if err != nil {
		return ended(ctx, err)
	}
	defer func() {
		failed := err != nil
		if failed {
			for _, line := range t.logs() {
				report.Printf(w, "log: %s\n", line)
			}
		}
		err = ended(ctx, errors.Join(err, t.close(failed)))
	}()

	var id [3]byte
	_, _ = rand.Read(id[:]) // never fails
	script := scenario.NewScript(t.System, "demo-"+hex.EncodeToString(id[:]), log)
	day, err := scenario.Play(ctx, script, t.suffix)
	if err != nil {
		return errors.Join(err, t.unrecorded(ctx))
	}
	trace, err := t.follow(ctx, day.Operator, script)
	if err != nil {
		return err
	}
	if _, err := t.Settle(ctx); err != nil {
		return errors.Join(err, t.unrecorded(ctx))
	}
	if err := show(ctx, w, t, script, day, begin, trace); err != nil {
		return err
	}
	return check(ctx, w, t, script, day)
}

// unrecorded names what a day that ended early left without its record, for whoever looks into it.
func (t *target) unrecorded(ctx context.Context) error {
	committed, err := report.Committed(ctx, t.Databases)
	if err != nil {
		return err
	}
	recorded, err := report.Recorded(ctx, t.Databases)
	if err != nil {
		return err
	}
	return problem(report.Compare(committed, recorded).Problems())
}

// problem is one error of many lines, or nil.
func problem(lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines, "\n"))
}

// ended replaces what a cancelled run complains about by the reason of the cancellation.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("interrupted: %w", context.Cause(ctx))
	}
	return err
}

// progress prints lines with the time since begin, so that nobody is left wondering.
func progress(w io.Writer, begin time.Time) func(format string, args ...any) {
	return func(format string, args ...any) {
		report.Printf(w, "%6.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
}

func heading(w io.Writer, text string) {
	report.Printf(w, "\n%s\n%s\n\n", text, strings.Repeat("=", len([]rune(text))))
}

// show prints the trail, the outage, the alerts, and the way of one event.
func show(ctx context.Context, w io.Writer, t *target, script *scenario.Script, day scenario.Result, begin time.Time, trace tracer) error {
	admin, token := t.Services[scenario.Admin], day.Auditor.Token()
	trail, err := report.ReadTrail(ctx, admin, token, begin)
	if err != nil {
		return err
	}
	heading(w, fmt.Sprintf("The audit trail: %d records, as an auditor reads them through Admin's API", trail.Len()))
	trail.Write(w, script.Chapters(), script.Chapter)

	heading(w, "The outage")
	report.WriteOutage(w, day.Outage, script.Steps())

	heading(w, "Security alerts")
	alerts, err := trail.WriteAlerts(ctx, w, admin, token, begin)
	if err != nil {
		return err
	}
	if alerts == 0 {
		return errors.New("no security alert was raised")
	}

	event, wait := trail.Slowest()
	heading(w, fmt.Sprintf("The way of the event that waited longest for its record, %.1f s: counterfoil trace %s", wait.Seconds(), event))
	text, err := trace(ctx, event)
	report.Printf(w, "%s", indent(text))
	return err
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ") + "\n"
}

// check holds the audit log against what was committed, and prints the last line if nothing is wrong.
func check(ctx context.Context, w io.Writer, t *target, script *scenario.Script, day scenario.Result) error {
	heading(w, "The check")
	committed, err := report.Committed(ctx, t.Databases)
	if err != nil {
		return err
	}
	recorded, err := report.Recorded(ctx, t.Databases)
	if err != nil {
		return err
	}
	c := report.Compare(committed, recorded)
	problems := c.Problems()
	report.Printf(w, "committed, read from the owners' outboxes:  %d events (auth %d, app %d)  sha256 %x\n", c.Actions, c.ByOwner["auth"], c.ByOwner["app"], c.Digest)
	report.Printf(w, "recorded, read from Admin's audit_logs:     %d events%*s  sha256 %x\n", len(recorded), len(fmt.Sprintf(" (auth %d, app %d)", c.ByOwner["auth"], c.ByOwner["app"])), "", c.DigestRecorded)

	left, err := report.Left(ctx, t.Databases[scenario.Admin], script.Run)
	if err != nil {
		return err
	}
	steps := script.Steps()
	unaccounted := report.Unaccounted(steps, left)
	problems = append(problems, unaccounted...)
	report.Printf(w, "the demo's own journal:                     %d calls, %d of them left other events than they must\n", len(steps), len(unaccounted))

	invariants, err := harness.Check(ctx, t.Databases)
	if err != nil {
		return err
	}
	for _, v := range invariants.Violations {
		problems = append(problems, v.String())
	}
	report.Printf(w, "invariants I1 to I5, in SQL of their own:   %d violations; Admin recorded %d actions of its own\n\n", len(invariants.Violations), invariants.Own)

	problems = append(problems, enough(steps)...)
	problems = append(problems, report.OutageProblems(day.Outage, steps)...)
	if err := problem(problems); err != nil {
		return err
	}
	report.Printf(w, "demo: ok actions=%d recorded=%d missing=%d duplicates=%d\n", c.Actions, c.Recorded, len(c.Missing), len(c.Duplicates))
	return nil
}

// enough counts what the day held beside the import and the traffic.
func enough(steps []scenario.Step) []string {
	actions := map[string]int{}
	for _, s := range steps {
		if s.Background {
			continue
		}
		for action, count := range s.Events {
			if count < 100 {
				owner, _, _ := strings.Cut(action, ".")
				actions[owner] += count
			}
		}
	}
	if actions["auth"] == 0 || actions["app"] == 0 || actions["auth"]+actions["app"] < leastActions {
		return []string{fmt.Sprintf("the day held %d actions of auth and %d of app, want %d", actions["auth"], actions["app"], leastActions)}
	}
	return nil
}
