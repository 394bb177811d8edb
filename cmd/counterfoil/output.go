// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// output is where results go, and how they look.
type output struct {
	w    io.Writer
	json bool
}

// text writes text as it is.
func (o *output) text(text string) error {
	if _, err := io.WriteString(o.w, text); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

// document writes a message as one JSON document over several lines.
func (o *output) document(m proto.Message) error {
	text, err := marshal(m)
	if err != nil {
		return err
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, text, "", "  "); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return o.text(indented.String() + "\n")
}

// line writes a message as one line of JSON.
func (o *output) line(m proto.Message) error {
	text, err := marshal(m)
	if err != nil {
		return err
	}
	return o.text(string(text) + "\n")
}

// value writes a Go value as one JSON document.
func (o *output) value(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return o.text(string(escapeJSON(text)) + "\n")
}

// marshal gives a message as compact ProtoJSON. Every field is there, so that scripts find the same keys each time; 64-bit
// numbers are strings.
func marshal(m proto.Message) ([]byte, error) {
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("print JSON: %w", err)
	}
	var compact bytes.Buffer // protojson varies its spaces on purpose
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("print JSON: %w", err)
	}
	return escapeJSON(compact.Bytes()), nil
}

// escapeJSON writes what could steer a terminal as JSON's own escapes: the same text to every JSON reader. Such characters
// can only stand inside a string.
func escapeJSON(text []byte) []byte {
	var b bytes.Buffer
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r >= 0x7f && steers(r) {
			if r > 0xffff {
				high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
				fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		} else {
			b.Write(text[:size])
		}
		text = text[size:]
	}
	return b.Bytes()
}

// steers tells whether a character could move the cursor, change colours or reverse what stands beside it.
func steers(r rune) bool {
	switch r {
	case '\u200c', '\u200d': // join letters and emoji
		return false
	case '\u2028', '\u2029':
		return true
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
}

// clean makes text that others wrote safe to print: control characters and invalid bytes are written out, as \x1b.
func clean(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return steers(r) || r == utf8.RuneError }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case steers(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case steers(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case steers(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		text = text[size:]
	}
	return b.String()
}

// table is rows under a header, in columns as wide as their widest cell.
type table struct {
	w   *tabwriter.Writer
	err error
}

// table starts a table.
func (o *output) table(header ...string) *table {
	t := &table{w: tabwriter.NewWriter(o.w, 0, 8, 2, ' ', 0)}
	t.row(header...)
	return t
}

// row adds a row. An empty cell is shown as "-".
func (t *table) row(cells ...string) {
	shown := make([]string, len(cells))
	for i, cell := range cells {
		shown[i] = or(clean(cell), "-")
	}
	_, err := io.WriteString(t.w, strings.Join(shown, "\t")+"\n")
	t.err = errors.Join(t.err, err)
}

// flush prints what was added so far.
func (t *table) flush() error {
	if err := errors.Join(t.err, t.w.Flush()); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

// fields prints names and values, one pair a line; pairs without a value are left out.
func (o *output) fields(pairs ...[2]string) error {
	t := &table{w: tabwriter.NewWriter(o.w, 0, 8, 2, ' ', 0)}
	for _, pair := range pairs {
		if pair[1] != "" {
			t.row(pair[0], pair[1])
		}
	}
	return t.flush()
}

// block prints headings and lines; a line without a heading continues the one before.
func (o *output) block(lines [][2]string) error {
	width := 0
	for _, l := range lines {
		width = max(width, len(l[0]))
	}
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "%-*s  %s\n", width, l[0], clean(l[1]))
	}
	return o.text(b.String())
}

// result prints a message as JSON, or as names and values.
func (o *output) result(m proto.Message, pairs ...[2]string) error {
	if o.json {
		return o.document(m)
	}
	return o.fields(pairs...)
}

// or returns text, or other if text is empty.
func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// when shows a time, always in UTC; columns and names say so.
func when(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format("2006-01-02 15:04:05")
}

// whenUTC is when, naming the zone.
func whenUTC(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return when(t) + " UTC"
}

// span shows a duration: seconds with one digit below a minute, whole seconds above.
func span(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// word shows an enum value without its prefix: DEAD for INBOX_STATE_DEAD, nothing for the zero value.
func word(value fmt.Stringer, prefix string) string {
	text := strings.TrimPrefix(value.String(), prefix)
	if text == "UNSPECIFIED" {
		return ""
	}
	return text
}

// enum reads a word that a person typed as one of an enum's values.
func enum(flag, text, prefix string, values map[string]int32) (int32, error) {
	name := strings.ToUpper(strings.ReplaceAll(text, "-", "_"))
	if n, ok := values[prefix+strings.TrimPrefix(name, prefix)]; ok && n != 0 {
		return n, nil
	}
	names := make([]string, len(values))
	for full, n := range values {
		if int(n) < len(names) {
			names[n] = strings.ToLower(strings.TrimPrefix(full, prefix))
		}
	}
	return 0, usage("%s: %q is not one of %s", flag, text, strings.Join(names[1:], ", "))
}
