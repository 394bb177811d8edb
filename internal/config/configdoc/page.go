// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
)

// field describes one variable.
type field struct {
	name     string // whole, prefixes included
	kind     string // a word for people: text, number, duration, true/false, list, secret
	defaults string // what holds when the variable is unset; empty if there is nothing
	doc      string // the doc tag
	required bool   // the program does not start without it
	secret   bool   // never printed, and may be given as NAME_FILE
}

// section is one program's part of the page.
type section struct {
	title  string
	fields []field
}

// writeMarkdown writes one table per section: the page docs/configuration.md.
func writeMarkdown(w io.Writer, sections ...section) error {
	var b strings.Builder
	for i, s := range sections {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %s\n\n", s.title)
		b.WriteString("| variable | type | default | meaning |\n|---|---|---|---|\n")
		for _, f := range s.fields {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, defaultCell(f), docCell(f))
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write configuration page: %w", err)
	}
	return nil
}

func defaultCell(f field) string {
	switch {
	case f.required:
		return "**required**"
	case f.defaults == "":
		return "–"
	default:
		return "`" + strings.ReplaceAll(f.defaults, "|", `\|`) + "`"
	}
}

func docCell(f field) string {
	doc := strings.ReplaceAll(f.doc, "|", `\|`)
	if f.secret {
		doc = strings.TrimSpace(doc + " Or `" + f.name + "_FILE`: a file that holds it.")
	}
	return doc
}
