// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// TestTerminalIsSafe: what strangers wrote cannot steer the terminal of who reads it, in tables or in JSON.
func TestTerminalIsSafe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	evil := "\x1b]0;owned\x07 \u202egnp.exe \u009b31m\r\nroot\tadmin \u2066x"
	e := granted()
	e.Actor.DisplayName = plain(evil)
	e.Context.UserAgent = evil
	e.RelatedResources[0].DisplayName = plain(evil)
	e.Context.ClientAddress = plain(evil)
	e.Metadata = map[string]string{evil: evil}
	w.says("AuditLogService/ListAuditLogs", &adminv1.ListAuditLogsResponse{AuditLogs: []*adminv1.AuditLog{record(e)}})
	w.says("AuditLogService/GetAuditLog", &adminv1.GetAuditLogResponse{AuditLog: record(e)})
	u := ada()
	u.DisplayName = evil
	w.says("UserService/ListUsers", &authv1.ListUsersResponse{Users: []*authv1.User{u}})
	for _, args := range [][]string{
		{"audit", "list", "--changes"},
		{"audit", "get", eventID},
		{"user", "list"},
		{"audit", "list", "-o", "json"},
		{"audit", "get", eventID, "-o", "json"},
		{"user", "list", "-o", "json"},
	} {
		out := w.must(args...)
		for _, r := range out {
			if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
				t.Errorf("%v printed %U", args, r)
				break
			}
		}
		if args[len(args)-1] == "json" {
			checkJSON(t, out)
		}
	}
	if n := strings.Count(w.must("user", "list"), "\n"); n != 2 {
		t.Errorf("a line break in a name made %d lines of 2", n)
	}
	has(t, w.must("user", "list"), `\x1b]0;owned\x07 \u202egnp.exe \u009b31m\r\nroot\tadmin \u2066x`)
}

// TestCleanProperty: cleaned text never steers, and text without anything to clean is left alone.
func TestCleanProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "text")
		cleaned := clean(text)
		if strings.ContainsFunc(cleaned, steers) {
			t.Fatalf("%q", cleaned)
		}
		if cleaned != clean(cleaned) {
			t.Fatalf("%q becomes %q", cleaned, clean(cleaned))
		}
		document, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var before, after string
		escaped := escapeJSON(document)
		if strings.ContainsFunc(string(escaped), steers) {
			t.Fatalf("%q", escaped)
		}
		if json.Unmarshal(document, &before) != nil || json.Unmarshal(escaped, &after) != nil || before != after {
			t.Fatalf("%q reads as %q", escaped, after)
		}
	})
	for _, text := range []string{"Ada Lovelace", "Zoë", "王", "👩\u200d🚀", `a\b`} {
		if clean(text) != text {
			t.Errorf("%q became %q", text, clean(text))
		}
	}
	if got := clean("tag \U000e0041 \xff \ufffd"); got != `tag \U000e0041 \xff `+"\ufffd" {
		t.Errorf("%q", got)
	}
	if got := string(escapeJSON([]byte("\"\U000e0041\""))); got != `"\udb40\udc41"` {
		t.Errorf("%s", got)
	}
}

func TestMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	a := &app{now: func() time.Time { return now }}
	for text, want := range map[string]time.Time{
		"":                          {},
		"2026-11-30T10:00:00Z":      now.Add(-2 * time.Hour),
		"2026-11-30T11:00:00+01:00": now.Add(-2 * time.Hour),
		"2026-11-30 10:00:00":       now.Add(-2 * time.Hour),
		"2026-11-30T10:00":          now.Add(-2 * time.Hour),
		"2026-11-30":                now.Add(-12 * time.Hour),
		"90m":                       now.Add(-90 * time.Minute),
		"7d":                        now.AddDate(0, 0, -7),
		"0s":                        now,
	} {
		if got, err := a.moment("--since", text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"yesterday", "-1h", "-1d", "d", "1e9d", "30.11.2026", "7", "99999999999999d"} {
		if got, err := a.moment("--since", text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	got, err := ids("an event", []string{eventID, "auditLogs/" + eventID, "consumers/audit-log/entries/" + strings.ToUpper(eventID2)})
	if err != nil || len(got) != 2 || got[0] != eventID || got[1] != eventID2 {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "x", eventID + "0", "{" + eventID + "}", "urn:uuid:" + eventID, strings.ReplaceAll(eventID, "-", "")} {
		if _, err := lastID("an event", text); err == nil {
			t.Errorf("%q is an id", text)
		}
	}
}

func TestPersonalValues(t *testing.T) {
	t.Parallel()
	e := denied()
	e.Actor.Type, e.Actor.Id, e.Actor.OnBehalfOf = "system", "bootstrap", userID
	if got := who(e.GetActor()); got != "system bootstrap for "+userID {
		t.Errorf("%q", got)
	}
	e.Actor.DisplayName = &auditv1.Personal{Value: &auditv1.Personal_Sealed_{Sealed: &auditv1.Personal_Sealed{KeyId: "k", Ciphertext: []byte("x")}}}
	if got := who(e.GetActor()); got != "(sealed) for "+userID {
		t.Errorf("%q", got)
	}
}
