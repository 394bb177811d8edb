// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/test/demo/scenario"
)

func row(id byte, owner, payload string) Row {
	return Row{ID: uuid.UUID{15: id}, Owner: owner, Payload: []byte(payload)}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	committed := []Row{row(1, "auth", "one"), row(2, "app", "two"), row(3, "app", "three")}
	change := func(f func([]Row) []Row) []Row { return f(slices.Clone(committed)) }
	for name, c := range map[string]struct {
		committed, recorded []Row
		actions, matched    int
		problems            []string // the beginning of each
	}{
		"all recorded, in another order": {
			committed, change(func(r []Row) []Row { slices.Reverse(r); return r }), 3, 3, nil,
		},
		"nothing at all": {nil, nil, 0, 0, nil},
		"one missing": {
			committed, committed[:2], 3, 2, []string{"missing=1 [00000000-0000-0000-0000-000000000003]"},
		},
		"one recorded twice": {
			committed, append(slices.Clone(committed), committed[0]), 3, 2, []string{"duplicates=1 [00000000-0000-0000-0000-000000000001]"},
		},
		"one committed twice": {
			append(slices.Clone(committed), committed[0]), committed, 4, 3, []string{"duplicates=1"},
		},
		"one byte changed": {
			committed, change(func(r []Row) []Row { r[1].Payload = []byte("twO"); return r }), 3, 2, []string{"altered=1 [00000000-0000-0000-0000-000000000002]"},
		},
		"recorded under another owner": {
			committed, change(func(r []Row) []Row { r[1].Owner = "auth"; return r }), 3, 2, []string{"altered=1"},
		},
		"a record that nobody committed": {
			committed, append(slices.Clone(committed), row(9, "app", "nine")), 3, 3,
			[]string{"recorded but never committed=1 [00000000-0000-0000-0000-000000000009]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Compare(c.committed, c.recorded)
			if got.Actions != c.actions || got.Recorded != c.matched {
				t.Errorf("%d actions, %d recorded, want %d and %d", got.Actions, got.Recorded, c.actions, c.matched)
			}
			problems := got.Problems()
			if len(problems) != len(c.problems) {
				t.Fatalf("problems %q, want %q", problems, c.problems)
			}
			for i, want := range c.problems {
				if !strings.HasPrefix(problems[i], want) {
					t.Errorf("problem %q, want %q", problems[i], want)
				}
			}
		})
	}
}

func TestCompareCountsOwners(t *testing.T) {
	t.Parallel()
	got := Compare([]Row{row(1, "auth", "one"), row(2, "app", "two"), row(3, "app", "three")}, nil).ByOwner
	if got["auth"] != 1 || got["app"] != 2 {
		t.Errorf("%v", got)
	}
}

// The digests tell apart what the lists would, so a person can compare two numbers.
func TestDigest(t *testing.T) {
	t.Parallel()
	one := []Row{row(1, "auth", "one"), row(2, "app", "two")}
	if digest(one) != digest([]Row{one[1], one[0]}) {
		t.Error("the order of rows changes it")
	}
	for name, other := range map[string][]Row{
		"a row less": one[:1], "another byte": {row(1, "auth", "one"), row(2, "app", "twO")}, "another id": {row(1, "auth", "one"), row(3, "app", "two")},
	} {
		if digest(one) == digest(other) {
			t.Errorf("%s does not change it", name)
		}
	}
}

func TestManyIDsAreCutShort(t *testing.T) {
	t.Parallel()
	var many []Row
	for i := range 200 {
		many = append(many, row(byte(i), "app", "x"))
	}
	problems := Compare(many, nil).Problems()
	if len(problems) != 1 || !strings.HasPrefix(problems[0], "missing=200 [") || strings.Count(problems[0], "00000000-") != mostNamed {
		t.Errorf("%q", problems)
	}
}

func TestUnaccounted(t *testing.T) {
	t.Parallel()
	steps := []scenario.Step{
		{Correlation: "r.1.1", Events: map[string]int{"app.project.created": 1, "app.member.added": 1}},
		{Correlation: "r.1.2", Events: map[string]int{}}, // a read
	}
	good := func() map[string]map[string]int {
		return map[string]map[string]int{"r.1.1": {"app.project.created": 1, "app.member.added": 1}}
	}
	if problems := Unaccounted(steps, good()); len(problems) > 0 {
		t.Errorf("%q", problems)
	}
	for name, spoil := range map[string]func(map[string]map[string]int){
		"an event less":            func(m map[string]map[string]int) { delete(m["r.1.1"], "app.member.added") },
		"an event twice":           func(m map[string]map[string]int) { m["r.1.1"]["app.member.added"] = 2 },
		"an event of a read":       func(m map[string]map[string]int) { m["r.1.2"] = map[string]int{"app.project.refused": 1} },
		"a call that nobody made":  func(m map[string]map[string]int) { m["r.1.9"] = map[string]int{"app.project.deleted": 1} },
		"nothing at all of a call": func(m map[string]map[string]int) { delete(m, "r.1.1") },
	} {
		left := good()
		spoil(left)
		if problems := Unaccounted(steps, left); len(problems) != 1 {
			t.Errorf("%s: %q", name, problems)
		}
	}
}
