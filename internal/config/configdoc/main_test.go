// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const source = `package main

type settings struct {
	Addr  string        ` + "`env:\"ADDR\" envDefault:\"127.0.0.1:1\" doc:\"Where to listen | and more.\"`" + `
	Grace time.Duration ` + "`env:\"GRACE\" envDefault:\"10s\" doc:\"How long.\"`" + `
	URL   config.Secret ` + "`env:\"URL,required\" doc:\"The database.\"`" + `
	Key   config.Secret ` + "`env:\"KEY\" doc:\"A key.\"`" + `
	command string
}

type bootstrapSettings struct {
	Nets []netip.Prefix ` + "`env:\"NETS\" doc:\"Networks.\"`" + `
}

type other struct{ n int }
`

// TestPage: one table for each struct of settings, with what its tags say.
func TestPage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.go")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	sections, err := structs(file, "auth")
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	if err := writeMarkdown(&page, sections...); err != nil {
		t.Fatal(err)
	}
	want := "## auth\n\n| variable | type | default | meaning |\n|---|---|---|---|\n" +
		"| `ADDR` | text | `127.0.0.1:1` | Where to listen \\| and more. |\n" +
		"| `GRACE` | duration | `10s` | How long. |\n" +
		"| `URL` | secret | **required** | The database. Or `URL_FILE`: a file that holds it. |\n" +
		"| `KEY` | secret | – | A key. Or `KEY_FILE`: a file that holds it. |\n" +
		"\n## auth bootstrap\n\n| variable | type | default | meaning |\n|---|---|---|---|\n" +
		"| `NETS` | list | – | Networks. |\n"
	if diff := cmp.Diff(want, page.String()); diff != "" {
		t.Error(diff)
	}
	if err := writeMarkdown(failing{}, sections...); err == nil {
		t.Error("a failed write is not reported")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("disk full") }
