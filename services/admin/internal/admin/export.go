// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// Format is how an export is written.
type Format string

// The formats.
const (
	FormatNDJSON Format = "ndjson"
	FormatCSV    Format = "csv"
)

// exportPage is how many records are read at once; memory is bounded by maxPageBytes.
const exportPage = 500

// Export writes every record that the filter holds for, newest first. It calls emit with each next piece of the file and
// the number of records written so far; a piece is valid only during the call.
//
// The export is recorded before the first record is read; if that fails, Export does. asJSON gives the message that one
// line of NDJSON holds. An error in the middle leaves a file that ends early: the caller must not take it for whole.
func (s *Service) Export(
	ctx context.Context, c Caller, filter string, format Format, asJSON func(Record) proto.Message,
	emit func(piece []byte, records int64) error,
) error {
	where, err := parseFilter(filter)
	if err != nil {
		return err
	}
	event, err := s.events.logExported(c, filter, string(format))
	if err != nil {
		return err
	}
	if err := s.recordAlone(ctx, event); err != nil {
		return fmt.Errorf("record the export: %w", err)
	}

	var piece bytes.Buffer
	write, err := writer(format, &piece, asJSON)
	if err != nil {
		return err
	}
	var records int64
	page := store.Page{Rows: exportPage, MaxBytes: maxPageBytes}
	for more := true; more; {
		var rows []store.AuditLog
		if rows, more, err = store.New(s.db).ListAuditLogs(ctx, where, page); err != nil {
			return err
		}
		for _, row := range rows {
			if err := write(serve(row)); err != nil {
				return fmt.Errorf("write record: %w", err)
			}
			page.Before = row.EventID
		}
		records += int64(len(rows))
		if err := emit(piece.Bytes(), records); err != nil {
			return err
		}
		piece.Reset()
	}
	return nil
}

// writer returns a function that appends one record to out in the format. A header, where there is one, is written at once.
func writer(format Format, out io.Writer, asJSON func(Record) proto.Message) (func(Record) error, error) {
	switch format {
	case FormatNDJSON:
		return func(r Record) error { return writeLine(out, asJSON(r)) }, nil
	case FormatCSV:
		return func(r Record) error {
			line, err := cells(r)
			if err != nil {
				return err
			}
			return writeCells(out, line)
		}, writeCells(out, csvHeader())
	default:
		return nil, fmt.Errorf("export format %q is not known", format)
	}
}

// writeLine writes a message as one line of ProtoJSON, where 64-bit numbers are strings (BC-68). The library varies its
// white space on purpose; Compact takes it out, so that the same record is always the same line.
func writeLine(out io.Writer, m proto.Message) error {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, text); err != nil {
		return err
	}
	line.WriteByte('\n')
	_, err = out.Write(line.Bytes())
	return err
}

// writeCells writes one line of RFC 4180, every cell quoted. Package encoding/csv drops carriage returns from cells.
func writeCells(out io.Writer, line []string) error {
	quoted := make([]string, len(line))
	for i, cell := range line {
		quoted[i] = `"` + strings.ReplaceAll(cell, `"`, `""`) + `"`
	}
	_, err := io.WriteString(out, strings.Join(quoted, ",")+"\r\n")
	return err
}

func csvHeader() []string {
	return []string{
		"event_id", "occur_time", "record_time", "owner", "ledger_id", "ledger_number", "action", "operation", "outcome", "reason",
		"actor_type", "actor_id", "actor_display_name", "resource_type", "resource_id", "resource_version",
		"resource_display_name", "correlation_id", "trace_id", "client_address", "client_address_claimed", "user_agent",
		"changes", "metadata",
	}
}

func cells(r Record) ([]string, error) {
	e := r.Event
	changes, err := changesCell(e.GetChanges())
	if err != nil {
		return nil, err
	}
	metadata, err := json.Marshal(e.GetMetadata())
	if err != nil {
		return nil, err
	}
	line := []string{
		r.EventID.String(), timeCell(e.GetOccurTime().AsTime()), timeCell(r.RecordTime), e.GetOwner(), r.LedgerID.String(),
		strconv.FormatInt(r.LedgerSeq, 10), e.GetAction(), strings.TrimPrefix(e.GetOperation().String(), "OPERATION_"),
		strings.TrimPrefix(e.GetOutcome().String(), "OUTCOME_"), e.GetReason(), e.GetActor().GetType(), e.GetActor().GetId(),
		personalCell(e.GetActor().GetDisplayName()), e.GetResource().GetType(), e.GetResource().GetId(),
		strconv.FormatInt(e.GetResource().GetVersion(), 10), personalCell(e.GetResource().GetDisplayName()),
		e.GetContext().GetCorrelationId(), e.GetContext().GetTraceId(), personalCell(e.GetContext().GetClientAddress()),
		strconv.FormatBool(e.GetContext().GetClientAddressClaimed()), e.GetContext().GetUserAgent(), changes, string(metadata),
	}
	for i := range line {
		line[i] = defuse(line[i])
	}
	return line, nil
}

func timeCell(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }

// personalCell shows a sealed value as that, never as an empty one.
func personalCell(p *auditv1.Personal) string {
	if p.GetSealed() != nil {
		return "(sealed)"
	}
	return p.GetPlain()
}

// changesCell keeps values as the texts they are, so that no digit of a number is lost.
func changesCell(changes []*auditv1.Change) (string, error) {
	type change struct {
		Field string  `json:"field"`
		Old   *string `json:"old"`
		New   *string `json:"new"`
	}
	value := func(p *auditv1.Personal) *string {
		if p == nil {
			return nil
		}
		text := personalCell(p)
		return &text
	}
	list := make([]change, len(changes))
	for i, c := range changes {
		list[i] = change{Field: c.GetField(), Old: value(c.GetOldValue()), New: value(c.GetNewValue())}
	}
	text, err := json.Marshal(list)
	return string(text), err
}

// defuse puts an apostrophe before a cell that a spreadsheet would run as a formula (OWASP, CSV Injection). Leading
// white space does not hide one, and line ends and tabs can start one after an import.
func defuse(cell string) string {
	if cell == "" {
		return cell
	}
	first, _ := firstRune(strings.TrimLeft(cell, " \u00A0\uFEFF"))
	if strings.ContainsRune("=+-@\t\r\n\uFF1D\uFF0B\uFF0D\uFF20", first) {
		return "'" + cell
	}
	return cell
}

func firstRune(text string) (rune, bool) {
	for _, r := range text {
		return r, true
	}
	return 0, false
}
