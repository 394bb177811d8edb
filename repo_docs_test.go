// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fence = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	code  = regexp.MustCompile("`[^`\n]+`")
	link  = regexp.MustCompile(`\]\(([^()\s]+)(?:\s+"[^"]*")?\)`)
)

// TestDocLinks: relative links in documents lead to files that are there, and to headings that are.
func TestDocLinks(t *testing.T) {
	t.Parallel()
	for _, doc := range files(t, ".md") {
		text := code.ReplaceAllString(fence.ReplaceAllString(read(t, doc), ""), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := doc
			if target != "" {
				file = path.Join(path.Dir(doc), target)
			}
			if !exists(file) {
				t.Errorf("%s links to %s, which is not there", doc, m[1])
				continue
			}
			if anchor != "" && strings.HasSuffix(file, ".md") && !slices.Contains(anchors(read(t, file)), anchor) {
				t.Errorf("%s links to %s, but %s has no such heading", doc, m[1], file)
			}
		}
	}
}

// anchors lists the headings of a document as links name them.
func anchors(text string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^#+\s+(.*?)\s*$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		heading := strings.ToLower(link.ReplaceAllString(m[1], "]"))
		heading = regexp.MustCompile(`[^\p{L}\p{N}\s_-]`).ReplaceAllString(heading, "")
		all = append(all, strings.ReplaceAll(heading, " ", "-"))
	}
	return all
}

// TestNamesInDocsExist: a path, a make target or a command's folder that a document names in code type is there. Documents rot
// by naming what has moved.
func TestNamesInDocsExist(t *testing.T) {
	t.Parallel()
	tops := make(map[string]bool)
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !slices.Contains([]string{"bin", ".dev", ".git"}, e.Name()) {
			tops[e.Name()] = true
		}
	}
	targets := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):`).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets[m[1]] = true
	}
	makeCall := regexp.MustCompile(`\bmake ([a-z][a-z-]*)`)
	for _, doc := range files(t, ".md") {
		text := read(t, doc)
		for _, span := range code.FindAllString(fence.ReplaceAllString(text, ""), -1) {
			for word := range strings.FieldsSeq(strings.Trim(span, "`")) {
				checkPath(t, doc, word, tops)
			}
		}
		for _, block := range append(fence.FindAllString(text, -1), code.FindAllString(text, -1)...) {
			for _, m := range makeCall.FindAllStringSubmatch(block, -1) {
				if !targets[m[1]] {
					t.Errorf("%s names make %s, which the Makefile does not have", doc, m[1])
				}
			}
		}
	}
}

// checkPath looks for a word that begins with one of our folders. Words with placeholders are left alone; a line number and a
// symbol after the file are cut off.
func checkPath(t *testing.T, doc, word string, tops map[string]bool) {
	t.Helper()
	word = strings.Trim(strings.TrimPrefix(word, "./"), ",.;:()")
	top, rest, ok := strings.Cut(word, "/")
	if !ok || !tops[top] || rest == "" || strings.ContainsAny(word, "<>{}$…=\\@\"'|") || strings.Contains(word, "NNNN") {
		return
	}
	word = strings.TrimSuffix(strings.TrimSuffix(word, "/..."), "/")
	word = regexp.MustCompile(`:\d+$`).ReplaceAllString(word, "")
	for _, base := range []string{".", path.Dir(doc), "services/*"} { // `internal/store` is said of all three
		if found, err := filepath.Glob(path.Join(base, word)); err == nil && len(found) > 0 {
			return
		}
	}
	// pkg/outbox.Append: a package and a name in it.
	if dir, name, ok := strings.Cut(word, "."); ok && exists(dir) && regexp.MustCompile(`^[A-Z]\w*`).MatchString(name) {
		return
	}
	t.Errorf("%s names %s, which is not there", doc, word)
}

// denied are claims that no such system can make (U1).
var denied = regexp.MustCompile(`(?i)\b(exactly-once|zero[- ]loss|tamper-?proof|never (be )?los[te]|can(not|'t) be lost|100 ?% reliable)\b`)

// TestDeniedWords: documents use those words only to deny them, in the same sentence or table cell.
func TestDeniedWords(t *testing.T) {
	t.Parallel()
	for _, doc := range files(t, ".md", ".proto") {
		for _, sentence := range claims(read(t, doc)) {
			t.Errorf("%s claims: %q", doc, sentence)
		}
	}
}

// claims returns the sentences that use a denied word without denying it.
func claims(text string) []string {
	negation := regexp.MustCompile(`(?i)\b(not|no|nor|neither|never|nothing|none|cannot|can't|isn't|doesn't|without|den(y|ies|ied)|refus(e|es|ed)|instead of|rather than|promised by nobody)\b`)
	text = regexp.MustCompile(`[ \t]*\n[ \t]*([^\s|#*-])`).ReplaceAllString(text, " $1") // unwrap lines
	var found []string
	for _, sentence := range regexp.MustCompile(`[.!?;]\s|\n|\|`).Split(text, -1) {
		if denied.MatchString(sentence) && !negation.MatchString(denied.ReplaceAllString(sentence, "")) {
			found = append(found, strings.TrimSpace(sentence))
		}
	}
	return found
}

// TestClaimsAreFound shows that the rule above catches a claim and lets a denial pass.
func TestClaimsAreFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"Counterfoil gives exactly-once delivery.":              1,
		"It does not give exactly-once delivery.":               0,
		"Events are never lost. It is not magic.":               1,
		"| promise | zero loss |\n| non-promise | not that |":   1,
		"Nobody can say \"tamper-proof\" and so neither do we.": 0,
		"We do not say\n\"zero loss\" here.":                    0,
		"It takes effect once.":                                 0,
	} {
		if got := claims(text); len(got) != want {
			t.Errorf("%q: found %q, want %d", text, got, want)
		}
	}
}

// TestGuaranteesNameRealTests: every test that docs/guarantees.md names exists, subtest included, and none of them skips but for
// want of a server, which CI=true turns into a failure.
func TestGuaranteesNameRealTests(t *testing.T) {
	t.Parallel()
	const doc = "docs/guarantees.md"
	if !present(t, doc, "each test that it names exists and is not skipped") {
		return
	}
	tests, bodies := testFunctions(t)
	named := regexp.MustCompile(`\b((?:Test|Fuzz|Example|Benchmark)[A-Z_]\w*)(?:/([\w./-]+))?`)
	seen := 0
	for _, span := range code.FindAllString(read(t, doc), -1) {
		for _, m := range named.FindAllStringSubmatch(span, -1) {
			seen++
			if !tests[m[1]] {
				t.Errorf("%s names %s, which is not there", doc, m[1])
				continue
			}
			for part := range strings.SplitSeq(m[2], "/") {
				part = strings.TrimRight(part, ".")
				if part != "" && !strings.Contains(bodies, `"`+part+`"`) && !strings.Contains(bodies, `"`+strings.ReplaceAll(part, "_", " ")+`"`) {
					t.Errorf("%s names %s/%s: no test file holds the subtest's name %q", doc, m[1], m[2], part)
				}
			}
		}
	}
	if seen == 0 {
		t.Errorf("%s names no test at all", doc)
	}
}

// testFunctions lists the names of all tests, and the text of all files that can hold subtests.
func testFunctions(t *testing.T) (map[string]bool, string) {
	t.Helper()
	tests := make(map[string]bool)
	var bodies strings.Builder
	for _, name := range files(t, ".go") {
		kit := strings.HasSuffix(path.Dir(name), "test") // outboxtest, inboxtest: exported suites
		if !strings.HasSuffix(name, "_test.go") && !kit && !strings.HasPrefix(name, "test/") {
			continue
		}
		bodies.WriteString(read(t, name))
		file, _ := parse(t, name)
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasSuffix(name, "_test.go") {
				tests[f.Name.Name] = true
			}
		}
	}
	return tests, bodies.String()
}

// TestSkipsNameTheirReason: a test is skipped only with -short or where CI=true would fail instead, so that a green run has
// run everything.
func TestSkipsNameTheirReason(t *testing.T) {
	t.Parallel()
	for _, name := range files(t, ".go") {
		file, set := parse(t, name)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			skips, guarded := 0, false
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					id, ok := n.X.(*ast.Ident)
					if ok && (id.Name == "t" || id.Name == "tb" || id.Name == "b") && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, n.Sel.Name) {
						skips++
					}
					guarded = guarded || ok && id.Name == "testing" && n.Sel.Name == "Short"
				case *ast.BasicLit:
					guarded = guarded || n.Value == `"CI"`
				}
				return true
			})
			if skips > 0 && !guarded {
				t.Errorf("%s: %s skips without testing.Short or CI", set.Position(f.Pos()), f.Name.Name)
			}
		}
	}
}

// TestDecisions: dense numbers, one subject each, listed, and with the alternatives that were rejected.
func TestDecisions(t *testing.T) {
	t.Parallel()
	if !present(t, "docs/adr", "numbers dense, listed in README.md, alternatives named") {
		return
	}
	found, err := filepath.Glob("docs/adr/[0-9]*.md")
	if err != nil {
		t.Fatal(err)
	}
	index := read(t, "docs/adr/README.md")
	for i, name := range found {
		base := path.Base(filepath.ToSlash(name))
		if !strings.HasPrefix(base, fmt.Sprintf("%04d-", i+1)) {
			t.Errorf("%s: want number %04d (dense and unique)", name, i+1)
		}
		if !strings.Contains(index, "("+base+")") {
			t.Errorf("docs/adr/README.md does not list %s", base)
		}
		text := read(t, name)
		for _, heading := range []string{"## Context", "## Decision", "## Consequences", "## Alternatives"} {
			if !strings.Contains(text, heading) {
				t.Errorf("%s lacks %q", name, heading)
			}
		}
	}
}

// TestReadmeIsShort: it begins with what this is and two commands, and stays readable in one go.
func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	if !present(t, "README.md", "at most 150 lines, naming make demo and make test") {
		return
	}
	text := read(t, "README.md")
	if lines := strings.Count(text, "\n"); lines > 150 {
		t.Errorf("README.md has %d lines, at most 150", lines)
	}
	for _, command := range []string{"make demo", "make test"} {
		if !strings.Contains(text, command) {
			t.Errorf("README.md does not name %s", command)
		}
	}
}
