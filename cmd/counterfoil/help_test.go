// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// leaves calls visit for each command that can be run.
func leaves(node *kong.Node, visit func(*kong.Node)) {
	if node.Leaf() {
		visit(node)
	}
	for _, child := range node.Children {
		leaves(child, visit)
	}
}

// grammarOf builds the parser as run does, as far as the model matters.
func grammarOf(t *testing.T) *kong.Kong {
	t.Helper()
	parser, err := kong.New(&grammar{}, kong.Name("counterfoil"), kong.Exit(func(int) {}),
		kong.Vars{"auth_address": "", "app_address": "", "admin_address": ""})
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

// words splits an example as a shell does, as far as the examples need it, and drops what is piped on.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, any := rune(0), false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '"' || r == '\''):
			quote, any = r, true
		case quote == 0 && r == ' ':
			if word.Len() > 0 || any {
				words = append(words, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteRune(r)
		}
	}
	for i, w := range words {
		if w == "|" || w == "<" {
			return words[:i]
		}
	}
	return words
}

// TestHelp: every command has help with examples, and the examples are command lines that the program takes.
func TestHelp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	count := 0
	leaves(grammarOf(t).Model.Node, func(node *kong.Node) {
		count++
		path := strings.Fields(node.FullPath())[1:]
		o := w.run(append(path, "--help")...)
		if o.code != exitOK || o.err != "" || !strings.Contains(o.out, "Examples:") {
			t.Errorf("%v --help: exit code %d: %s%s", path, o.code, o.out, o.err)
		}
		found := false
		for line := range strings.Lines(node.Detail) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "counterfoil ")
			if !ok || !strings.HasPrefix(line, "    ") {
				continue
			}
			args := shellWords(command)
			found = found || strings.HasPrefix(command, strings.Join(path, " "))
			if _, err := grammarOf(t).Parse(args); err != nil {
				t.Errorf("the example %q: %v", command, err)
			}
		}
		if !found {
			t.Errorf("%v has no example of itself", path)
		}
	})
	if count < 45 {
		t.Errorf("%d commands", count)
	}
}

// TestEveryVerbIsTested: a command that no table of verbs holds is not tested.
func TestEveryVerbIsTested(t *testing.T) {
	t.Parallel()
	tested := map[string]bool{"login": true, "logout": true, "whoami": true, "version": true, "trace": true, "audit export": true}
	for _, table := range [][]verb{accountVerbs(), projectVerbs("x"), deliveryVerbs()} {
		for _, v := range table {
			args := strings.Fields(v.args)
			tested[args[0]+" "+args[1]] = true
		}
	}
	leaves(grammarOf(t).Model.Node, func(node *kong.Node) {
		if path := strings.Join(strings.Fields(node.FullPath())[1:], " "); !tested[path] {
			t.Errorf("%s is not tested", path)
		}
	})
}
