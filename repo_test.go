// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package repo holds no code. Its tests hold the repository's habits: the one shape of the services, the import walls, what
// every package and migration must have, and that the documents tell the truth about names. Each failure says what to do.
package repo

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/counterfoil/counterfoil"

// services are the folders below services/, each a service.
var services = []string{"auth", "app", "admin"}

// maxLines is the longest that a file written by hand may be.
const maxLines = 500

// files lists the repository's files with one of the endings, generated and vendored ones left out.
func files(t *testing.T, endings ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", ".dev", "bin", "third_party", "testdata", "node_modules"}, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if slices.Contains(endings, filepath.Ext(name)) && !strings.HasSuffix(name, ".pb.go") && !strings.HasSuffix(name, ".sql.go") {
			found = append(found, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// read returns a file's text.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// parse returns a Go file with its comments.
func parse(t *testing.T, name string) (*ast.File, *token.FileSet) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file, set
}

// exists tells whether the path is there.
func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// present ends the test where a part of the repository has not been written yet: then there is nothing to hold to the
// rule. A part that is there is held to it in full.
func present(t *testing.T, dir, rule string) bool {
	t.Helper()
	if exists(dir) {
		return true
	}
	t.Logf("%s is not there yet; once it is: %s", dir, rule)
	return false
}

// TestServiceShape: who has read one service can predict the others. Every service has the same files, a main.go that only
// puts parts together, and one name from which everything else derives.
func TestServiceShape(t *testing.T) {
	t.Parallel()
	for _, service := range services {
		dir := "services/" + service
		if !present(t, dir, "README.md, main.go, config.go, internal/"+service+", internal/store, internal/rpc") {
			continue
		}
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			for _, want := range []string{"README.md", "main.go", "config.go", "internal/" + service, "internal/store", "internal/rpc"} {
				if !exists(dir + "/" + want) {
					t.Errorf("%s/%s is missing: all services have the same shape", dir, want)
				}
			}
			if exists(dir + "/main.go") {
				checkMain(t, dir+"/main.go")
			}
			checkServiceName(t, dir, service)
		})
	}
}

// checkMain demands that main.go declares main and run alone, in under 100 lines.
func checkMain(t *testing.T, name string) {
	t.Helper()
	file, set := parse(t, name)
	var declared []string
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			declared = append(declared, d.Name.Name)
		case *ast.GenDecl:
			if d.Tok != token.IMPORT {
				declared = append(declared, d.Tok.String()+" at line "+fmt.Sprint(set.Position(d.Pos()).Line))
			}
		}
	}
	if !slices.Equal(declared, []string{"main", "run"}) {
		t.Errorf("%s declares %v: it declares main and run and nothing else", name, declared)
	}
	if lines := strings.Count(read(t, name), "\n"); lines >= 100 {
		t.Errorf("%s has %d lines: it must stay under 100", name, lines)
	}
}

// checkServiceName demands one `const service` with the folder's name.
func checkServiceName(t *testing.T, dir, service string) {
	t.Helper()
	found, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, name := range found {
		file, _ := parse(t, name)
		for _, decl := range file.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.CONST {
				continue
			}
			for _, spec := range d.Specs {
				v, ok := spec.(*ast.ValueSpec)
				if ok && v.Names[0].Name == "service" && len(v.Values) == 1 {
					if literal, ok := v.Values[0].(*ast.BasicLit); ok {
						values = append(values, literal.Value)
					}
				}
			}
		}
	}
	if want := `"` + service + `"`; !slices.Equal(values, []string{want}) {
		t.Errorf("%s has const service = %v, want exactly one, %s: logger, metrics and consumer names derive from it", dir, values, want)
	}
}

// pkg is what `go list -json` says about one package.
type pkg struct {
	ImportPath string
	Imports    []string // without those of tests
	Deps       []string
}

// list runs `go list -json` on patterns.
func list(t *testing.T, patterns ...string) []pkg {
	t.Helper()
	args := append([]string{"list", "-e", "-json=ImportPath,Imports,Deps"}, patterns...)
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// TestImportWalls: the packages that other teams take stay free of brokers, telemetry SDKs, each other and this system; no
// service knows another; plumbing knows no service; shipped code starts no servers.
func TestImportWalls(t *testing.T) {
	t.Parallel()
	cores := map[string]string{"pkg/outbox": "pkg/inbox", "pkg/inbox": "pkg/outbox"}
	for core, other := range cores {
		if !present(t, core, "no Redis, no OpenTelemetry, not "+other) {
			continue
		}
		for _, p := range list(t, "./"+core) {
			for _, dep := range p.Deps {
				for _, wall := range []string{"github.com/redis/", "go.opentelemetry.io/", module + "/" + other, module + "/services/"} {
					if strings.HasPrefix(dep, wall) {
						t.Errorf("%s depends on %s: its core knows no broker, no telemetry SDK and not %s", core, dep, other)
					}
				}
			}
		}
	}
	for _, p := range list(t, "./...") {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			if reason := wall(from, to); reason != "" {
				t.Errorf("%s imports %s: %s", from, to, reason)
			}
		}
	}
}

// wall says why one of our packages may not import another, or nothing.
func wall(from, to string) string {
	in := func(name string, dirs ...string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") })
	}
	service := func(name string) string {
		parts := strings.Split(name, "/")
		if len(parts) < 2 || parts[0] != "services" {
			return ""
		}
		return parts[1]
	}
	switch {
	case service(to) != "" && service(from) != service(to) && !in(from, "test", "cmd"):
		return "what belongs to one service is nobody else's"
	case in(to, "internal/testdb", "internal/devserver") && !in(from, "internal/testdb", "internal/devserver", "migrations/schemadump", "test"):
		return "shipped code starts no servers"
	case in(to, "cmd", "test") && !in(from, "cmd", "test"):
		return "programs and tests are not libraries"
	}
	return ""
}

// TestWallsStop shows that the walls are not made of air.
func TestWallsStop(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		refused  bool
	}{
		{"services/auth", "services/auth/internal/store", false},
		{"services/auth", "services/app/internal/store", true},
		{"internal/pgdb", "services/auth/internal/auth", true},
		{"pkg/outbox", "services/auth", true},
		{"services/auth", "internal/testdb", true},
		{"test/e2e", "internal/devserver", false},
		{"services/admin", "pkg/inbox", false},
		{"pkg/inbox", "test/harness", true},
	} {
		if got := wall(c.from, c.to) != ""; got != c.refused {
			t.Errorf("%s imports %s: refused %v, want %v", c.from, c.to, got, c.refused)
		}
	}
}

// TestPackageDocs: every package has one comment that says what it gives; a command's says how it is called.
func TestPackageDocs(t *testing.T) {
	t.Parallel()
	docs := make(map[string][]string)
	names := make(map[string]string)
	for _, name := range files(t, ".go") {
		dir := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") && dir != "." {
			continue
		}
		file, _ := parse(t, name)
		if file.Name.Name == "repo" && dir != "." {
			continue
		}
		names[dir] = file.Name.Name
		if file.Doc != nil {
			docs[dir] = append(docs[dir], file.Doc.Text())
		}
	}
	for dir, name := range names {
		want := "Package " + name + " "
		if name == "main" {
			want = "Command "
		}
		switch texts := docs[dir]; {
		case len(texts) != 1:
			t.Errorf("%s has %d package comments, want one", dir, len(texts))
		case !strings.HasPrefix(texts[0], want):
			t.Errorf("%s: the package comment begins %.40q, want %q…", dir, texts[0], want)
		}
	}
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// TestSourceFiles: two lines of copyright, at most maxLines lines, no notes to self, errors that say what was being done.
func TestSourceFiles(t *testing.T) {
	t.Parallel()
	vague := regexp.MustCompile(`(Errorf|errors\.New)\("(failed to|could not|unable to|error )`)
	note := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)
	for _, name := range files(t, ".go", ".sql", ".sh", ".proto") {
		text := read(t, name)
		if generated.MatchString(text) || strings.HasSuffix(name, "/schema.sql") {
			continue
		}
		if lines := strings.Count(text, "\n"); lines > maxLines {
			t.Errorf("%s has %d lines: split it by operation, at most %d", name, lines, maxLines)
		}
		head := strings.Join(strings.SplitN(text, "\n", 6)[:min(5, strings.Count(text, "\n"))], "\n")
		if !strings.Contains(head, "SPDX-License-Identifier: Apache-2.0") {
			t.Errorf("%s: the copyright and SPDX lines are missing", name)
		}
		if m := vague.FindString(text); m != "" {
			t.Errorf("%s: %s…: say what was being done (insert user: %%w)", name, m)
		}
		if m := note.FindString(text); m != "" {
			t.Errorf("%s holds a note to self (%s): do it, or write it down where risks are listed", name, m)
		}
	}
}

// TestMigrationNumbers: NNNN_what_changes.sql, dense and unique for each owner, each saying why it is there.
func TestMigrationNumbers(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^(\d{4})_[a-z0-9_]+\.sql$`)
	for _, owner := range services {
		dir := "migrations/" + owner
		if !present(t, dir, "numbers dense and unique") {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		next := 1
		for _, entry := range entries {
			name := entry.Name()
			if !strings.HasSuffix(name, ".sql") || slices.Contains([]string{"grants.sql", "schema.sql"}, name) {
				continue
			}
			if m := shape.FindStringSubmatch(name); m == nil || m[1] != fmt.Sprintf("%04d", next) {
				t.Errorf("%s/%s: want %04d_<what_changes>.sql (numbers are dense and unique)", dir, name, next)
			}
			if !regexp.MustCompile(`(?m)^-- [A-Z]`).MatchString(strings.ReplaceAll(read(t, dir+"/"+name), "-- Copyright", "")) {
				t.Errorf("%s/%s: a comment at its head must say why it is there", dir, name)
			}
			next++
		}
	}
}
