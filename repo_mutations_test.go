// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"fmt"
	"go/ast"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const guarantees = "docs/guarantees.md"

// testsOf lists the names of the tests of one package's folder.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	found, err := filepath.Glob(path.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, name := range found {
		file, _ := parse(t, name)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}

// TestGuaranteesNameTestsWhereTheyAre: `./pkg/outbox TestX, TestY` names tests of that package, so that what a row says can be
// run as it stands.
func TestGuaranteesNameTestsWhereTheyAre(t *testing.T) {
	t.Parallel()
	if !present(t, guarantees, "each test that it names is in the package beside it") {
		return
	}
	packages := make(map[string]map[string]bool)
	seen := 0
	shape := regexp.MustCompile("^`(\\.[\\w./]*) ([A-Z].*)`$")
	for _, span := range code.FindAllString(read(t, guarantees), -1) {
		m := shape.FindStringSubmatch(span)
		if m == nil {
			continue
		}
		if packages[m[1]] == nil {
			packages[m[1]] = testsOf(t, m[1])
		}
		for name := range strings.SplitSeq(m[2], ", ") {
			seen++
			if top, _, _ := strings.Cut(name, "/"); !packages[m[1]][top] {
				t.Errorf("%s: there is no %s in %s", guarantees, top, m[1])
			}
		}
	}
	if seen == 0 {
		t.Errorf("%s names no package with a test", guarantees)
	}
}

// patch is what a mutation says of itself.
type patch struct{ pkg, test, target, diff string }

func readPatch(t *testing.T, name string) patch {
	t.Helper()
	text := read(t, name)
	head, diff, ok := strings.Cut(text, "\n--- a/")
	if !ok {
		t.Fatalf("%s holds no diff", name)
	}
	p := patch{diff: diff}
	p.target, _, _ = strings.Cut(diff, "\n")
	for line := range strings.SplitSeq(head, "\n") {
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "package":
			p.pkg = value
		case "test":
			p.test = value
		}
	}
	return p
}

// before returns the lines that the patch expects to find.
func (p patch) before() string {
	var lines strings.Builder
	_, hunk, _ := strings.Cut(p.diff, "\n@@ ")
	_, hunk, _ = strings.Cut(hunk, "\n")
	for line := range strings.SplitAfterSeq(hunk, "\n") {
		if strings.HasPrefix(line, " ") || strings.HasPrefix(line, "-") {
			lines.WriteString(line[1:])
		}
	}
	return lines.String()
}

// TestMutations: every patch in test/mutations still fits its file, names a test that exists, and is named in the row of
// docs/guarantees.md that it breaks; and the document names no other.
func TestMutations(t *testing.T) {
	t.Parallel()
	const dir = "test/mutations"
	if !present(t, guarantees, "each mutation is named in it") {
		return
	}
	text := read(t, guarantees)
	found, err := filepath.Glob(dir + "/*.patch")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 40 {
		t.Errorf("%s has %d patches, want at least 40", dir, len(found))
	}
	for _, file := range found {
		name := strings.TrimSuffix(filepath.Base(file), ".patch")
		p := readPatch(t, file)
		if top, _, _ := strings.Cut(p.test, "/"); !testsOf(t, p.pkg)[top] {
			t.Errorf("%s: there is no %s in %s", file, top, p.pkg)
		}
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("%s is not named in %s: add it to the row that it breaks", file, guarantees)
		}
		if !exists(p.target) || !strings.Contains(read(t, p.target), p.before()) {
			t.Errorf("%s no longer fits %s: write it anew", file, p.target)
		}
	}
	for row := range strings.SplitSeq(text, "\n") {
		cells := strings.Split(row, " | ")
		if len(cells) != 5 { // only the tables of promises have five
			continue
		}
		for _, span := range code.FindAllString(cells[4], -1) {
			if name := strings.Trim(span, "`"); !exists(path.Join(dir, name+".patch")) {
				t.Errorf("%s names the mutation %s, which is not there", guarantees, name)
			}
		}
	}
}

// TestGuaranteesHaveEveryRow: no row of the tables was dropped, and none is there twice.
func TestGuaranteesHaveEveryRow(t *testing.T) {
	t.Parallel()
	if !present(t, guarantees, "every row is in it once") {
		return
	}
	var want []string
	add := func(format string, from, to int, without ...int) {
		for n := from; n <= to; n++ {
			if !slices.Contains(without, n) {
				want = append(want, fmt.Sprintf(format, n))
			}
		}
	}
	add("U%d", 1, 102, 75, 86, 90, 91, 92, 93, 94, 95, 96)
	add("A%d", 1, 67, 3, 4, 5, 6, 8, 9, 31)
	add("T%d", 1, 20, 4, 6, 8, 14)
	add("BC-%02d", 1, 76)
	count := make(map[string]int)
	for _, m := range regexp.MustCompile(`(?m)^\| ((?:U|A|T|BC-)\d+) \| [^|]+ \| [^|]+ \|$`).FindAllStringSubmatch(read(t, guarantees), -1) {
		count[m[1]]++
	}
	for _, code := range want {
		if count[code] != 1 {
			t.Errorf("%s has %d rows for %s, want one", guarantees, count[code], code)
		}
	}
}

// TestOwnershipNamesExist: the tables and constraints by which the documents say who owns what are in the schema (U6).
func TestOwnershipNamesExist(t *testing.T) {
	t.Parallel()
	schemas, err := filepath.Glob("migrations/*/schema.sql")
	if err != nil || len(schemas) == 0 {
		t.Fatalf("no schema: %v", err)
	}
	var schema strings.Builder
	for _, name := range schemas {
		schema.WriteString(read(t, name))
	}
	_, owns, _ := strings.Cut(read(t, "docs/architecture.md"), "## Who owns what")
	owns, _, _ = strings.Cut(owns, "\n## ")
	seen := 0
	for _, span := range code.FindAllString(owns+read(t, "docs/adr/0001-outbox-not-dual-write.md"), -1) {
		name := strings.Trim(span, "`")
		if !regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`).MatchString(name) || name == "max_prepared_transactions" {
			continue
		}
		seen++
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(schema.String()) {
			t.Errorf("a document says that %s holds something, and no schema has it", name)
		}
	}
	if seen < 8 {
		t.Errorf("%d names found, want at least 8", seen)
	}
}

// TestServicesUseTheRealParts: no service can run on the store in memory or on the publisher that sends nothing (A35, A38).
func TestServicesUseTheRealParts(t *testing.T) {
	t.Parallel()
	for _, p := range list(t, "./services/...", "./cmd/...") {
		for _, dep := range p.Deps {
			for _, toy := range []string{"pkg/outbox/memory", "pkg/outbox/noop", "pkg/outbox/outboxtest", "pkg/inbox/inboxtest"} {
				if dep == module+"/"+toy {
					t.Errorf("%s depends on %s, which is for tests and samples", p.ImportPath, toy)
				}
			}
		}
	}
}
