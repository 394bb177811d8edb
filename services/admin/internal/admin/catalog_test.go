// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The list of known types is what the owners' source says that they emit: nothing is parked for want of a line, and no
// line outlives its event. The sources are read as text; Admin imports nothing of them (U24).
func TestKnownTypesAreWhatTheOwnersEmit(t *testing.T) {
	t.Parallel()
	action := regexp.MustCompile(`"((?:auth|app)\.[a-z_]+(?:\.[a-z_]+)*)"`)
	var emitted []string
	for _, owner := range Owners() {
		files, err := filepath.Glob(filepath.Join("..", "..", "..", owner, "internal", owner, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no sources of %s: %v", owner, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range action.FindAllSubmatch(source, -1) {
				emitted = append(emitted, string(match[1])+".v1")
			}
		}
	}
	slices.Sort(emitted)
	emitted = slices.Compact(emitted)
	for _, eventType := range emitted {
		if !slices.Contains(KnownTypes(), eventType) {
			t.Errorf("%s is emitted and not known here", eventType)
		}
	}
	for _, eventType := range KnownTypes() {
		if !slices.Contains(emitted, eventType) {
			t.Errorf("%s is known here and emitted nowhere", eventType)
		}
	}
}

func TestCatalogKnows(t *testing.T) {
	t.Parallel()
	known := Catalog().Known
	for _, c := range []struct {
		owner, eventType string
		version          int32
		want             bool
	}{
		{"auth", "auth.user.created.v1", 1, true},
		{"app", "app.project.created.v1", 1, true},
		{"app", "auth.user.created.v1", 1, false},
		{"auth", "auth.user.created.v1", 2, false},
		{"auth", "auth.user.created.v2", 2, false},
		{"auth", "auth.user.created", 1, false},
		{"auth", "", 0, false},
		{"admin", "admin.poison.discarded.v1", 1, false},
	} {
		if got := known(c.owner, c.eventType, c.version); got != c.want {
			t.Errorf("known(%q, %q, %d) = %v", c.owner, c.eventType, c.version, got)
		}
	}
}
