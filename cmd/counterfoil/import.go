// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
)

// maxImport is how many members App takes in one transaction.
const maxImport = 10_000

// maxImportBytes bounds the file: ten thousand lines are a tenth of it.
const maxImportBytes = 16 << 20

type importCmd struct {
	projectArg
	File   string `arg:"" help:"The list: CSV with the header user,role, or one JSON object a line; - is the standard input."`
	Format string `enum:"auto,csv,ndjson" default:"auto" help:"csv or ndjson; auto goes by the file's ending, or its first character."`
	DryRun bool   `help:"Check the file and count; add nobody."`
	requestFlags
}

// Help implements kong.HelpProvider.
func (importCmd) Help() string {
	return `Users are named by id; roles are viewer, editor and owner. At most 10000 lines: all are added in one transaction, with one
audit event each, or none is.

    user,role
    01980000-0000-7000-8000-000000000001,editor

    {"user": "01980000-0000-7000-8000-000000000001", "role": "editor"}

` + examples("counterfoil project import apollo members.csv --dry-run", "counterfoil project import apollo - --format ndjson < members.ndjson")
}

// imported is one member of the file, and the line that names it.
type imported struct {
	member *appv1.ImportedMember
	line   int
}

// Run adds the members.
func (c *importCmd) Run(ctx context.Context, a *app) error {
	text, err := c.read(a)
	if err != nil {
		return err
	}
	found, err := c.parse(text)
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return usage("%s lists nobody", c.File)
	case len(found) > maxImport:
		return usage("%s lists %d users; one transaction takes %d: split the file", c.File, len(found), maxImport)
	}
	if c.DryRun {
		return c.count(a, found)
	}
	project, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	request := &appv1.ImportMembersRequest{Parent: project, RequestId: c.id(a)}
	for _, item := range found {
		request.Members = append(request.Members, item.member)
	}
	r, err := a.projects().ImportMembers(ctx, request)
	if err != nil {
		c.locate(a, err, found)
		return err
	}
	return a.out.result(r, [2]string{"imported members", strconv.Itoa(int(r.GetImportedCount()))})
}

func (c *importCmd) read(a *app) ([]byte, error) {
	in := a.in
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return nil, usage("%v", err)
		}
		defer file.Close() //nolint:errcheck // only read
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxImportBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", c.File, err)
	}
	if len(text) > maxImportBytes {
		return nil, usage("%s is larger than %d MiB", c.File, maxImportBytes>>20)
	}
	return bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), nil // spreadsheets write a byte order mark
}

func (c *importCmd) parse(text []byte) ([]imported, error) {
	lines := c.Format == "ndjson"
	if c.Format == "auto" {
		lines = strings.HasSuffix(c.File, ".ndjson") || strings.HasSuffix(c.File, ".jsonl") ||
			!strings.HasSuffix(c.File, ".csv") && bytes.HasPrefix(bytes.TrimSpace(text), []byte("{"))
	}
	if lines {
		return parseLines(text)
	}
	return parseCSV(text)
}

// parseCSV reads the columns user and role, in any order and among others.
func parseCSV(text []byte) ([]imported, error) {
	reader := csv.NewReader(bytes.NewReader(text))
	reader.TrimLeadingSpace = true
	header, err := reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, usage("%v", err)
	}
	columns := make(map[string]int)
	for i, name := range header {
		columns[strings.ToLower(strings.TrimSpace(name))] = i
	}
	user, hasUser := columns["user"]
	role, hasRole := columns["role"]
	if !hasUser || !hasRole {
		return nil, usage("the first line must name the columns user and role, not %q", strings.Join(header, ","))
	}
	var found []imported
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, usage("%v", err)
		}
		line, _ := reader.FieldPos(0)
		item, err := importedMember(line, record[user], record[role])
		if err != nil {
			return nil, err
		}
		found = append(found, item)
	}
}

// parseLines reads one JSON object a line; blank lines are skipped.
func parseLines(text []byte) ([]imported, error) {
	var found []imported
	number := 0
	for line := range bytes.Lines(text) {
		number++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var row struct{ User, Role string }
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&row); err != nil {
			return nil, usage(`line %d is not an object such as {"user": "…", "role": "editor"}: %v`, number, err)
		}
		item, err := importedMember(number, row.User, row.Role)
		if err != nil {
			return nil, err
		}
		found = append(found, item)
	}
	return found, nil
}

func importedMember(line int, user, role string) (imported, error) {
	id, err := lastID("a user", user)
	if err != nil {
		return imported{}, usage("line %d: %v", line, err)
	}
	value, err := memberRole("role", strings.TrimSpace(role))
	if err != nil {
		return imported{}, usage("line %d: %v", line, err)
	}
	return imported{member: &appv1.ImportedMember{User: id, Role: value}, line: line}, nil
}

// count says what an import would do.
func (c *importCmd) count(a *app, found []imported) error {
	byRole := make(map[string]int)
	for _, item := range found {
		byRole[strings.ToLower(word(item.member.GetRole(), "MEMBER_ROLE_"))]++
	}
	if a.out.json {
		return a.out.value(map[string]any{"dryRun": true, "memberCount": len(found), "memberCountByRole": byRole})
	}
	return a.out.fields(
		[2]string{"would import members", strconv.Itoa(len(found))},
		[2]string{"owners", strconv.Itoa(byRole["owner"])},
		[2]string{"editors", strconv.Itoa(byRole["editor"])},
		[2]string{"viewers", strconv.Itoa(byRole["viewer"])},
	)
}

// locate says which lines of the file App refused: it counts from zero, and knows no lines.
func (c *importCmd) locate(a *app, err error, found []imported) {
	s, ok := statusOf(err)
	if !ok {
		return
	}
	for _, detail := range s.Details() {
		bad, ok := detail.(*errdetails.BadRequest)
		if !ok {
			continue
		}
		for _, v := range bad.GetFieldViolations() {
			var index int
			if _, err := fmt.Sscanf(v.GetField(), "members[%d]", &index); err == nil && index >= 0 && index < len(found) {
				a.note("%s line %d: %s", c.File, found[index].line, v.GetDescription())
			}
		}
	}
}
