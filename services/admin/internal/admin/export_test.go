// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// export returns the whole file.
func (b bundle) export(t *testing.T, filter string, format Format) (file []byte, records int64) {
	t.Helper()
	event := func(r Record) proto.Message { return r.Event }
	err := b.service.Export(t.Context(), b.caller, filter, format, event, func(piece []byte, n int64) error {
		file, records = append(file, piece...), n
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return file, records
}

// The numbers that floating point loses, as texts of a change (BC-68).
func bigNumbers() []string {
	return []string{"9007199254740993", "-1", "18446744073709551615", "1e400", "-9223372036854775808"}
}

func withBigNumbers(e *auditv1.AuditEvent) {
	e.Resource.Version = 9007199254740993
	for _, n := range bigNumbers() {
		e.Changes = append(e.Changes, &auditv1.Change{Field: "amount", OldValue: audit.Plain(n)})
	}
}

func TestExportNDJSON(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := newEvent(t, withBigNumbers)
	b.project(t, newEvent(t, func(e *auditv1.AuditEvent) { e.Metadata = map[string]string{"lines": "a\nb\u2028c\"d"} }), e)
	file, records := b.export(t, `owner = "auth"`, FormatNDJSON)
	if records != 2 {
		t.Errorf("%d records are counted, want 2", records)
	}
	var lines int
	scanner := bufio.NewScanner(bytes.NewReader(file))
	for ; scanner.Scan(); lines++ {
		var line map[string]any
		if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
			t.Fatalf("line %d is no JSON: %v", lines+1, err)
		}
		if bytes.Contains(scanner.Bytes(), []byte(`": "`)) {
			t.Errorf("line %d has white space that may vary: %s", lines+1, scanner.Bytes())
		}
	}
	if lines != 2 {
		t.Errorf("%d lines, want 2", lines)
	}
	for _, n := range append(bigNumbers(), "9007199254740993") {
		if !bytes.Contains(file, []byte(`"`+n+`"`)) {
			t.Errorf("the digits of %s are not in the file", n)
		}
	}
	again, _ := b.export(t, `owner = "auth"`, FormatNDJSON)
	if !bytes.Equal(file, again) {
		t.Error("the same records give another file")
	}
}

func TestExportCSV(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hostile := map[string]string{
		"formula": `=HYPERLINK("http://example.com","x")`, "plus": "+1", "minus": "-1", "at": "@SUM(A1)", "tab": "\tx",
		"return": "\rx", "space": "  =1+1", "full width": "＝1+1", "harmless": "a=b", "quoted": `a "b", c`,
	}
	want := map[string]string{}
	var batch []inbox.Event
	for what, name := range hostile {
		e := newEvent(t, withBigNumbers, func(e *auditv1.AuditEvent) {
			e.Actor.DisplayName, e.Reason = audit.Plain(name), "R_"+strings.ToUpper(strings.ReplaceAll(what, " ", "_"))
		})
		want[e.Audit.GetReason()] = "'" + name
		if what == "harmless" || what == "quoted" {
			want[e.Audit.GetReason()] = name
		}
		batch = append(batch, e)
	}
	sealed := newEvent(t, func(e *auditv1.AuditEvent) {
		e.Reason = "R_SEALED"
		e.Actor.DisplayName = &auditv1.Personal{Value: &auditv1.Personal_Sealed_{Sealed: &auditv1.Personal_Sealed{KeyId: "k", Ciphertext: []byte{1}}}}
	})
	want["R_SEALED"] = "(sealed)"
	b.project(t, append(batch, sealed)...)

	file, records := b.export(t, `owner = "auth"`, FormatCSV)
	rows, err := csv.NewReader(bytes.NewReader(file)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(want)+1 || records != int64(len(want)) {
		t.Fatalf("%d lines and %d records, want %d records", len(rows), records, len(want))
	}
	header := rows[0]
	column := func(row []string, name string) string { return row[slices.Index(header, name)] }
	for _, row := range rows[1:] {
		reason := column(row, "reason")
		if got := column(row, "actor_display_name"); got != want[reason] {
			t.Errorf("%s: %q, want %q", reason, got, want[reason])
		}
		if reason == "R_SEALED" {
			continue
		}
		if got := column(row, "resource_version"); got != "9007199254740993" {
			t.Errorf("resource_version is %s", got)
		}
		for _, n := range bigNumbers() {
			if !strings.Contains(column(row, "changes"), `"`+n+`"`) {
				t.Errorf("changes %s lack %s", column(row, "changes"), n)
			}
		}
		if _, err := time.Parse(time.RFC3339Nano, column(row, "occur_time")); err != nil {
			t.Error(err)
		}
	}
	for i, line := range bytes.SplitAfter(file, []byte("\n")) {
		if len(line) > 0 && !bytes.HasSuffix(line, []byte("\r\n")) {
			t.Errorf("line %d does not end as RFC 4180 says", i+1)
		}
	}
}

// An export of nothing is a file, too: the header says which columns there would have been.
func TestExportOfNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if file, records := b.export(t, `owner = "nobody"`, FormatCSV); records != 0 || !bytes.HasPrefix(file, []byte(`"event_id",`)) {
		t.Errorf("got %q and %d records", file, records)
	}
	if file, records := b.export(t, `owner = "nobody"`, FormatNDJSON); records != 0 || len(file) != 0 {
		t.Errorf("got %q and %d records", file, records)
	}
}

// An export goes through the pages, in the order of List, and holds each record once.
func TestExportOfManyPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	batch := make([]inbox.Event, 2*exportPage+3)
	for i := range batch {
		batch[i] = newEvent(t)
	}
	b.project(t, batch...)
	var pieces int
	seen := map[string]bool{}
	err := b.service.Export(t.Context(), b.caller, `owner = "auth"`, FormatNDJSON,
		func(r Record) proto.Message { seen[r.EventID.String()] = true; return r.Event },
		func([]byte, int64) error { pieces++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != len(batch) || pieces != 3 {
		t.Errorf("%d records in %d pieces, want %d in 3", len(seen), pieces, len(batch))
	}
}

// The export is recorded before anything is read; where that cannot be done, nothing is exported.
func TestExportIsRecordedFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.project(t, newEvent(t))
	recorded := false
	err := b.service.Export(t.Context(), b.caller, `owner = "auth"`, FormatCSV, nil, func([]byte, int64) error {
		recorded = b.count(t, `SELECT count(*) FROM audit_logs WHERE action = 'admin.audit_log.exported' AND operation = 'EXPORT'
			AND actor_id = $1`, b.caller.UserID) == 1
		return nil
	})
	if err != nil || !recorded {
		t.Errorf("at the first piece, recorded = %v, error %v", recorded, err)
	}
	b.breakLedger(t)
	err = b.service.Export(t.Context(), b.caller, "", FormatCSV, nil, func([]byte, int64) error {
		t.Error("something was exported without a record of it")
		return nil
	})
	if err == nil {
		t.Error("the export did not fail")
	}
}

func TestExportStopsWithItsReader(t *testing.T) {
	t.Parallel()
	b := setup(t)
	gone := errors.New("reader is gone")
	err := b.service.Export(t.Context(), b.caller, "", FormatCSV, nil, func([]byte, int64) error { return gone })
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if err := b.service.Export(t.Context(), b.caller, "colour = red", FormatCSV, nil, nil); apperr.KindOf(err) != apperr.KindInvalidArgument {
		t.Errorf("a bad filter gives %v", err)
	}
	if n := b.count(t, "SELECT count(*) FROM audit_logs WHERE action = 'admin.audit_log.exported'"); n != 1 {
		t.Errorf("%d exports are recorded, want 1: a filter that is refused exports nothing", n)
	}
}
