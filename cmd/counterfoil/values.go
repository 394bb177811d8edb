// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
)

// moment reads a time that a person typed: an RFC 3339 time, a date, or how long ago ("90m", "7d").
func (a *app) moment(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04", "2006-01-02 15:04:05", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			return t.UTC(), nil
		}
	}
	span := text
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int
		if _, err := fmt.Sscanf(days+"\n", "%d\n", &n); err == nil && n >= 0 && n < 36500 {
			span = fmt.Sprintf("%dh", 24*n)
		}
	}
	ago, err := time.ParseDuration(span)
	if err != nil || ago < 0 {
		return time.Time{}, usage("%s: %q is not a time: give 2026-11-30T12:00:00Z, 2026-11-30 (UTC), or how long ago, such as 90m or 7d", flag, text)
	}
	return a.now().Add(-ago).UTC(), nil
}

// ids reads ids that a person typed or copied from anywhere: the id alone or as the last part of a resource name. Each is
// kept once, in the order given.
func ids(what string, texts []string) ([]string, error) {
	var found []string
	seen := make(map[string]bool)
	for _, text := range texts {
		id, err := lastID(what, text)
		if err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			found = append(found, id)
		}
	}
	return found, nil
}

// lastID reads one id, alone or as the last part of a resource name.
func lastID(what, text string) (string, error) {
	id := strings.ToLower(strings.TrimSpace(text[strings.LastIndexByte(text, '/')+1:]))
	if len(id) != 36 || uuid.Validate(id) != nil {
		return "", usage("%q is not the id of %s: ids look like 01980000-0000-7000-8000-000000000001", text, what)
	}
	return id, nil
}
