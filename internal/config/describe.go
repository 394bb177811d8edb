// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
)

// Field describes one variable.
type Field struct {
	// Name is the variable's full name, prefixes included.
	Name string
	// Type is a word for people: text, number, duration, yes/no, list, secret.
	Type string
	// Default is what holds when the variable is unset; empty if there is none.
	Default string
	// Doc is the doc tag.
	Doc string
	// Required says that the service does not start without it.
	Required bool
	// Secret says that it is never printed and may be given as NAME_FILE.
	Secret bool
}

// Section is one service's part of the configuration page.
type Section struct {
	Title  string
	Intro  string
	Fields []Field
}

// Describe lists the variables of cfg, a struct or a pointer to one, in the order of declaration. It returns nil for
// anything else.
func Describe(cfg any) []Field {
	entries, err := walk(cfg)
	if err != nil {
		return nil
	}
	fields := make([]Field, 0, len(entries))
	for _, e := range entries {
		fields = append(fields, e.Field)
	}
	return fields
}

// Redacted returns the values of cfg by variable name, to be logged once at start. Secrets show as "***".
func Redacted(cfg any) slog.Value {
	entries, err := walk(cfg)
	if err != nil {
		return slog.StringValue("not a struct")
	}
	attrs := make([]slog.Attr, 0, len(entries))
	for _, e := range entries {
		if !e.value.CanInterface() {
			continue
		}
		attrs = append(attrs, slog.String(e.Name, fmt.Sprint(e.value.Interface())))
	}
	return slog.GroupValue(attrs...)
}

// WriteMarkdown writes one table per section: the page docs/configuration.md.
func WriteMarkdown(w io.Writer, sections ...Section) error {
	var b strings.Builder
	for i, s := range sections {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %s\n\n", s.Title)
		if s.Intro != "" {
			fmt.Fprintf(&b, "%s\n\n", s.Intro)
		}
		b.WriteString("| variable | type | default | meaning |\n|---|---|---|---|\n")
		for _, f := range s.Fields {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, defaultCell(f), docCell(f))
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write configuration page: %w", err)
	}
	return nil
}

func defaultCell(f Field) string {
	switch {
	case f.Required:
		return "**required**"
	case f.Default == "":
		return "–"
	default:
		return "`" + strings.ReplaceAll(f.Default, "|", `\|`) + "`"
	}
}

func docCell(f Field) string {
	doc := strings.ReplaceAll(f.Doc, "|", `\|`)
	if f.Secret {
		doc = strings.TrimSpace(doc + " Or `" + f.Name + fileSuffix + "`: a file that holds it.")
	}
	return doc
}

// typeName is a word for people for a Go type.
func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Secret]():
		return "secret"
	case t.PkgPath() == "time" && t.Name() == "Duration":
		return "duration"
	case t == reflect.TypeFor[slog.Level]():
		return "log level"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true/false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list of " + typeName(t.Elem())
	default:
		return "text"
	}
}
