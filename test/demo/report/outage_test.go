// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/demo/scenario"
)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// anOutage is one of nine seconds: well, both away, both back. Change spoils it.
func anOutage(change func(*scenario.Outage, *[]scenario.Step)) (scenario.Outage, []scenario.Step) {
	o := scenario.Outage{
		Phases: []scenario.Phase{
			{Name: "well", Begin: at(0), End: at(3)},
			{Name: "away", Begin: at(3), End: at(6), AdminAway: true, RedisAway: true},
			{Name: "back", Begin: at(6), End: at(9)},
		},
		Happenings: []scenario.Happening{{At: at(3), What: "SIGKILL to both"}},
	}
	var steps []scenario.Step
	for i := range 9 {
		s := float64(i)
		away := i >= 3 && i < 6
		sample := scenario.Sample{At: at(s), Appended: 10 * (i + 1), Recorded: 10 * (i + 1), Admin: !away, Redis: !away}
		if away {
			sample.Recorded, sample.Waiting = 30, 10*(i-2)
		}
		o.Samples = append(o.Samples, sample)
		steps = append(steps, scenario.Step{Background: true, Begin: at(s + 0.1), Took: time.Duration(i+1) * time.Millisecond})
	}
	if change != nil {
		change(&o, &steps)
	}
	return o, steps
}

func TestOutageProblems(t *testing.T) {
	t.Parallel()
	if problems := OutageProblems(anOutage(nil)); len(problems) > 0 {
		t.Errorf("of a real outage: %q", problems)
	}
	if problems := OutageProblems(anOutage(func(o *scenario.Outage, _ *[]scenario.Step) { o.Samples[6].Waiting = 40 })); len(problems) > 0 {
		t.Errorf("of one after which the outbox was slow to empty: %q", problems)
	}
	for name, c := range map[string]struct {
		spoil func(*scenario.Outage, *[]scenario.Step)
		want  string
	}{
		"Redis answered": {func(o *scenario.Outage, _ *[]scenario.Step) { o.Samples[4].Redis = true }, "answered who was to be away"},
		"Admin answered": {func(o *scenario.Outage, _ *[]scenario.Step) { o.Samples[4].Admin = true }, "answered who was to be away"},
		"nothing piled up": {func(o *scenario.Outage, _ *[]scenario.Step) {
			o.Samples[3].Waiting, o.Samples[4].Waiting, o.Samples[5].Waiting = 0, 0, 0
		}, "the outbox held"},
		"nobody called":        {func(_ *scenario.Outage, s *[]scenario.Step) { *s = (*s)[:3] }, `nobody called while away`},
		"nobody looked":        {func(o *scenario.Outage, _ *[]scenario.Step) { o.Samples = o.Samples[:3] }, `nobody looked in the phase "away"`},
		"it did not happen":    {func(o *scenario.Outage, _ *[]scenario.Step) { *o = scenario.Outage{} }, "there was no outage"},
		"only others' traffic": {func(_ *scenario.Outage, s *[]scenario.Step) { (*s)[1].Background = false; *s = (*s)[1:2] }, "nobody called"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if problems := OutageProblems(anOutage(c.spoil)); !strings.Contains(strings.Join(problems, "\n"), c.want) {
				t.Errorf("problems %q, want %q", problems, c.want)
			}
		})
	}
}

func TestWriteOutage(t *testing.T) {
	t.Parallel()
	o, steps := anOutage(func(_ *scenario.Outage, s *[]scenario.Step) { (*s)[4].Err = errors.New("refused") })
	var out bytes.Buffer
	WriteOutage(&out, o, steps)
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"well 0.0 3.0 3 3 2.0 ms 3.0 ms 3.0 ms", // from, to, calls, good, p50, p99, max
		"away 3.0 6.0 3 2 5.0 ms 6.0 ms 6.0 ms",
		"5.0 silent silent 60 30 0 0 30 ########################################",
		"-- SIGKILL to both 3.0 silent silent",
		"The 30 events that waited when Admin came back were recorded within 0.0 s.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	out.Reset()
	WriteOutage(&out, scenario.Outage{}, nil)
	if out.Len() > 0 {
		t.Errorf("of no outage: %s", out.String())
	}
}

func TestDrained(t *testing.T) {
	t.Parallel()
	o, _ := anOutage(func(o *scenario.Outage, _ *[]scenario.Step) { o.Samples[6].Recorded = 59 }) // one short of the sixty
	if backlog, took, found := drained(o); !found || backlog != 30 || took != time.Second {
		t.Errorf("%d in %v, %v", backlog, took, found)
	}
	o, _ = anOutage(func(o *scenario.Outage, _ *[]scenario.Step) { o.Samples = o.Samples[:6] })
	if _, _, found := drained(o); found {
		t.Error("drained before Admin was back")
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	times := make([]time.Duration, 100)
	for i := range times {
		times[i] = time.Duration(i + 1)
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 51, 0.99: 100, 1: 100} {
		if got := quantile(times, q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("of nothing")
	}
}
