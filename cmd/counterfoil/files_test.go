// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

func chunk(text string, n int64) *adminv1.ExportAuditLogsResponse {
	return &adminv1.ExportAuditLogsResponse{Content: []byte(text), RecordCount: n}
}

// TestExport: the chunks joined are the file, on the output or under a name.
func TestExport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("AuditLogService/ExportAuditLogs", chunk("{\"a\"", 0), chunk(":1}\n{}\n", 2))
	o := w.run("audit", "export", "--owner", "auth")
	if o.code != exitOK || o.out != "{\"a\":1}\n{}\n" || o.err != "exported 2 records\n" {
		t.Errorf("exit code %d: %q %q", o.code, o.out, o.err)
	}
	got := w.asked("AuditLogService/ExportAuditLogs")[0].request.(*adminv1.ExportAuditLogsRequest)
	if got.GetFilter() != `owner = "auth"` || got.GetFormat() != adminv1.ExportFormat_EXPORT_FORMAT_NDJSON {
		t.Errorf("asked %v", got)
	}
	file := filepath.Join(t.TempDir(), "out.csv")
	same(t, w.must("audit", "export", "--format", "csv", "--file", file), "exported records  2\nfile              "+file+"\n")
	text, err := os.ReadFile(file)
	info, statErr := os.Stat(file)
	if err != nil || statErr != nil || string(text) != "{\"a\":1}\n{}\n" || info.Mode().Perm() != 0o600 {
		t.Errorf("%q, %v, %v", text, err, info.Mode())
	}
	if got := w.asked("AuditLogService/ExportAuditLogs")[1].request.(*adminv1.ExportAuditLogsRequest); got.GetFormat() != adminv1.ExportFormat_EXPORT_FORMAT_CSV {
		t.Errorf("asked %v", got)
	}
	checkJSON(t, w.must("audit", "export", "--file", file, "-o", "json"))
}

// TestExportBreaksOff: half an export never stands under the file's name.
func TestExportBreaksOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "out.ndjson")
	if err := os.WriteFile(file, []byte("yesterday's"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.on("AuditLogService/ExportAuditLogs", func(received) ([]proto.Message, error) {
		return []proto.Message{chunk("half", 0)}, refusal(codes.Unavailable, "SERVER_STOPPING", "stopping")
	})
	if o := w.run("audit", "export", "--file", file); o.code != exitUnavailable {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	text, err := os.ReadFile(file)
	left, globErr := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || globErr != nil || string(text) != "yesterday's" || len(left) != 0 {
		t.Errorf("%q, %v; left behind: %v", text, err, left)
	}
	if o := w.run("audit", "export", "--file", filepath.Join(dir, "no", "such", "folder")); o.code != exitFailure {
		t.Errorf("exit code %d", o.code)
	}
}

// TestExportRefreshes: a stream meets a token that is used up only when it is read.
func TestExportRefreshes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("AuthService/Refresh", &authv1.RefreshResponse{Tokens: tokens("new")})
	w.on("AuditLogService/ExportAuditLogs", func(c received) ([]proto.Message, error) {
		if c.metadata.Get("authorization")[0] != "Bearer new" {
			return nil, refusal(codes.Unauthenticated, "TOKEN_EXPIRED", "expired")
		}
		return []proto.Message{chunk("x\n", 1)}, nil
	})
	if o := w.run("audit", "export"); o.code != exitOK || o.out != "x\n" {
		t.Errorf("exit code %d: %q %s", o.code, o.out, o.err)
	}
}

// TestImportFormats: both formats, with what spreadsheets and editors do to them.
func TestImportFormats(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("ProjectService/ImportMembers", &appv1.ImportMembersResponse{ImportedCount: 2})
	for name, text := range map[string]string{
		"csv":                       "user,role\n" + userID + ",owner\n" + userID2 + ",viewer\n",
		"other columns, BOM, CRLF":  "\xef\xbb\xbfName,Role,User\r\n\"Ada, Countess\",OWNER," + userID + "\r\nG,MEMBER_ROLE_VIEWER,users/" + userID2 + "\r\n",
		"ndjson":                    `{"user":"` + userID + `","role":"owner"}` + "\n\n" + `{"role":"Viewer","user":"` + userID2 + `"}`,
		"quoted csv without the LF": "\"user\",\"role\"\n\"" + userID + "\",\"owner\"\n\"" + userID2 + "\",\"viewer\"",
	} {
		o := w.runWith(strings.NewReader(text), "project", "import", projectID, "-")
		if o.code != exitOK {
			t.Errorf("%s: exit code %d: %s", name, o.code, o.err)
			continue
		}
		calls := w.asked("ProjectService/ImportMembers")
		got := calls[len(calls)-1].request.(*appv1.ImportMembersRequest).GetMembers()
		if len(got) != 2 || got[0].GetUser() != userID || got[0].GetRole() != appv1.MemberRole_MEMBER_ROLE_OWNER ||
			got[1].GetUser() != userID2 || got[1].GetRole() != appv1.MemberRole_MEMBER_ROLE_VIEWER {
			t.Errorf("%s: imported %v", name, got)
		}
	}
}

// TestImportRefusals: a bad file is refused here, with its line, and nothing is sent.
func TestImportRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	many := "user,role\n" + strings.Repeat(userID+",viewer\n", maxImport+1)
	for text, want := range map[string]string{
		"":                                    "lists nobody",
		"user,role\n":                         "lists nobody",
		"id,role\n" + userID + ",owner\n":     "the columns user and role",
		"user,role\n" + userID + ",king\n":    `line 2: role: "king" is not one of viewer, editor, owner`,
		"user,role\nada@example.com,owner\n":  `line 2: "ada@example.com" is not the id of a user`,
		"user,role\n\n" + userID + "\n":       "record on line 3",
		`{"user":"` + userID + `","rol":"x"}`: "line 1 is not an object",
		"{\"user\":\"" + userID + "\"}":       `line 1: role: ""`,
		many:                                  "one transaction takes 10000",
		"user,role\n\"" + userID + "\",\"own": "extraneous or missing",
	} {
		o := w.runWith(strings.NewReader(text), "project", "import", projectID, "-")
		if o.code != exitUsage || !strings.Contains(o.err, want) {
			t.Errorf("%.60q: exit code %d: %s", text, o.code, o.err)
		}
	}
	if o := w.run("project", "import", projectID, "/does/not/exist.csv"); o.code != exitUsage {
		t.Errorf("exit code %d", o.code)
	}
	if len(w.calls) != 0 {
		t.Errorf("called %v", w.calls)
	}
}

// TestImportDryRunAndLines: a rehearsal sends nothing, and what App refuses is told by the file's line.
func TestImportDryRunAndLines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := "user,role\n\n" + userID + ",owner\n" + userID2 + ",viewer\n"
	o := w.runWith(strings.NewReader(text), "project", "import", projectID, "-", "--dry-run")
	same(t, o.out, "would import members  2\nowners                1\neditors               0\nviewers               1\n")
	o = w.runWith(strings.NewReader(text), "project", "import", projectID, "-", "--dry-run", "-o", "json")
	checkJSON(t, o.out)
	if len(w.calls) != 0 {
		t.Fatalf("called %v", w.calls)
	}
	w.fails("ProjectService/ImportMembers", refusal(codes.AlreadyExists, "MEMBER_EXISTS", "a user is a member already",
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "members[1].user", Description: "is a member already"}}}))
	o = w.runWith(strings.NewReader(text), "project", "import", projectID, "-")
	if o.code != exitConflict {
		t.Errorf("exit code %d", o.code)
	}
	has(t, o.err, "- line 4: is a member already", "members[1].user")
}

// TestImportFull: the largest import goes through in one call.
func TestImportFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("ProjectService/ImportMembers", &appv1.ImportMembersResponse{ImportedCount: maxImport})
	var text strings.Builder
	text.WriteString("user,role\n")
	for i := range maxImport {
		fmt.Fprintf(&text, "01980000-0000-7000-8000-%012x,viewer\n", i)
	}
	if o := w.runWith(strings.NewReader(text.String()), "project", "import", projectID, "-"); o.code != exitOK {
		t.Fatal(o.err)
	}
	if n := len(only[*appv1.ImportMembersRequest](w, "ProjectService/ImportMembers").GetMembers()); n != maxImport {
		t.Errorf("%d members", n)
	}
}
