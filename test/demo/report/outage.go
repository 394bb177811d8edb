// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/counterfoil/counterfoil/test/demo/scenario"
)

// lookMargin is how long before the end of a phase a look must have begun to count for it.
const lookMargin = 500 * time.Millisecond

// barWidth is the length of the longest bar.
const barWidth = 40

// WriteOutage prints what people noticed of the outage, and where the events were meanwhile.
func WriteOutage(w io.Writer, o scenario.Outage, steps []scenario.Step) {
	if len(o.Phases) == 0 {
		return
	}
	start := o.Phases[0].Begin
	Printf(w, "The calls that people made, each phase by itself:\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	Printf(table, "  phase\tfrom s\tto s\tcalls\tanswered as expected\tp50\tp99\tmax\t\n")
	for _, p := range o.Phases {
		times, good := during(p, steps)
		Printf(table, "  %s\t%.1f\t%.1f\t%d\t%d\t%s\t%s\t%s\t\n", p.Name, p.Begin.Sub(start).Seconds(), p.End.Sub(start).Seconds(),
			len(times), good, milliseconds(quantile(times, 0.5)), milliseconds(quantile(times, 0.99)), milliseconds(quantile(times, 1)))
	}
	_ = table.Flush() // it writes to what w writes to
	Printf(w, "\nWhere the events were (both owners; counted in the three databases):\n")
	writeSamples(w, o, start)
	if backlog, took, found := drained(o); found {
		Printf(w, "\nThe %d events that waited when Admin came back were recorded within %.1f s.\n", backlog, took.Seconds())
	}
}

// drained tells how many events waited when the last phase began, and how long after it the first look found them recorded.
func drained(o scenario.Outage) (backlog int, took time.Duration, found bool) {
	back := o.Phases[len(o.Phases)-1].Begin
	appended := 0
	for _, s := range o.Samples {
		switch {
		case s.At.Before(back):
			appended, backlog = s.Appended, s.Appended-s.Recorded
		case s.Recorded >= appended:
			return backlog, s.At.Sub(back), true
		}
	}
	return backlog, 0, false
}

// during returns how long the background calls of a phase took, sorted, and how many were answered as they should be.
func during(p scenario.Phase, steps []scenario.Step) (times []time.Duration, good int) {
	for _, s := range steps {
		if !s.Background || s.Begin.Before(p.Begin) || !s.Begin.Before(p.End) {
			continue
		}
		times = append(times, s.Took)
		if s.Err == nil {
			good++
		}
	}
	slices.Sort(times)
	return times, good
}

// quantile returns the q-th of sorted times; q = 1 is the last.
func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return times[min(len(times)-1, int(q*float64(len(times))))]
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// writeSamples prints about one sample a second, with what happened between them.
func writeSamples(w io.Writer, o scenario.Outage, start time.Time) {
	deepest := 1
	for _, s := range o.Samples {
		deepest = max(deepest, s.Waiting)
	}
	Printf(w, "  %6s  %-9s %-9s  %8s  %10s  %9s  %8s  %8s\n", "second", "Admin", "Redis", "appended", "in outbox", "in stream", "in inbox", "recorded")
	happenings := o.Happenings
	var last time.Time
	for i, s := range o.Samples {
		for len(happenings) > 0 && !happenings[0].At.After(s.At) {
			Printf(w, "  %6.1f  -- %s\n", happenings[0].At.Sub(start).Seconds(), happenings[0].What)
			happenings, last = happenings[1:], time.Time{}
		}
		if s.At.Sub(last) < 900*time.Millisecond && i != len(o.Samples)-1 {
			continue
		}
		last = s.At
		line := fmt.Sprintf("  %6.1f  %-9s %-9s  %8d  %10d  %9d  %8d  %8d  %s", s.At.Sub(start).Seconds(), answers(s.Admin), answers(s.Redis),
			s.Appended, s.Waiting, s.Flying, s.Staged, s.Recorded, strings.Repeat("#", s.Waiting*barWidth/deepest))
		Printf(w, "%s\n", strings.TrimRight(line, " "))
	}
}

func answers(yes bool) string {
	if yes {
		return "answers"
	}
	return "silent"
}

// OutageProblems tells what speaks against an outage having taken place: a part that answered while it was to be away, an
// outbox that did not grow, or no calls.
func OutageProblems(o scenario.Outage, steps []scenario.Step) []string {
	var problems []string
	var before, deepest int
	for _, p := range o.Phases {
		if times, _ := during(p, steps); len(times) == 0 {
			problems = append(problems, "nobody called while "+p.Name)
		}
		looks := 0
		for _, s := range o.Samples {
			if s.At.Before(p.Begin) || s.At.After(p.End.Add(-lookMargin)) {
				continue // a look takes time: one that began just before the end may see what comes after it
			}
			looks++
			if p.AdminAway && s.Admin || p.RedisAway && s.Redis {
				problems = append(problems, fmt.Sprintf("in the phase %q somebody answered who was to be away", p.Name))
				break
			}
			if p.RedisAway {
				deepest = max(deepest, s.Waiting)
			} else if deepest == 0 { // afterwards it empties, as fast as the machine is
				before = max(before, s.Waiting)
			}
		}
		if looks == 0 {
			problems = append(problems, fmt.Sprintf("nobody looked in the phase %q", p.Name))
		}
	}
	if len(o.Phases) == 0 {
		return []string{"there was no outage"}
	}
	if deepest <= before {
		problems = append(problems, fmt.Sprintf("the outbox held %d events while Redis was away and %d before", deepest, before))
	}
	return problems
}
