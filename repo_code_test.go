// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// remote are packages and methods that wait for somebody else: none may be used where a transaction is open (U7, BC-04).
var (
	remotePackages = []string{"http", "grpc", "redis", "net", "smtp", "exec"}
	remoteMethods  = []string{"XAdd", "Publish", "Wake"}
)

// TestNothingRemoteInsideATransaction: a function that holds an open transaction does database work and nothing else. What
// waits for a network inside it holds locks for as long as the network likes, and can have happened when the transaction
// has not.
func TestNothingRemoteInsideATransaction(t *testing.T) {
	t.Parallel()
	for _, name := range files(t, ".go") {
		if strings.HasSuffix(name, "_test.go") || !strings.HasPrefix(name, "services/") && !strings.HasPrefix(name, "pkg/") {
			continue
		}
		file, set := parse(t, name)
		for _, found := range remoteCalls(file) {
			t.Errorf("%s: %s.%s is used where a transaction is open: do it before, or after the commit",
				set.Position(found.Pos()), selectorBase(found), found.Sel.Name)
		}
	}
}

// remoteCalls lists what remote things a file uses inside functions that take a pgx.Tx.
func remoteCalls(file *ast.File) []*ast.SelectorExpr {
	var found []*ast.SelectorExpr
	search := func(body ast.Node) {
		ast.Inspect(body, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, isName := s.X.(*ast.Ident)
			if isName && slices.Contains(remotePackages, id.Name) || slices.Contains(remoteMethods, s.Sel.Name) {
				found = append(found, s)
			}
			return true
		})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch f := n.(type) {
		case *ast.FuncDecl:
			if f.Body != nil && takesTx(f.Type) {
				search(f.Body)
				return false
			}
		case *ast.FuncLit:
			if takesTx(f.Type) {
				search(f.Body)
				return false
			}
		}
		return true
	})
	return found
}

// takesTx tells whether a function has a parameter of type pgx.Tx.
func takesTx(f *ast.FuncType) bool {
	return slices.ContainsFunc(f.Params.List, func(field *ast.Field) bool {
		s, ok := field.Type.(*ast.SelectorExpr)
		return ok && s.Sel.Name == "Tx" && selectorBase(s) == "pgx"
	})
}

// selectorBase names what stands before the last dot, if it is a name.
func selectorBase(s *ast.SelectorExpr) string {
	if id, ok := s.X.(*ast.Ident); ok {
		return id.Name
	}
	return "…"
}

// TestRemoteCallsAreFound shows that the rule above finds what it forbids.
func TestRemoteCallsAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p
func outside() { http.Get("before") }
func inside(ctx context.Context, tx pgx.Tx) error { tx.Exec(ctx, ""); return grpc.Invoke() }
func nested(s *S) { pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error { s.dispatcher.Wake(); return nil }); s.dispatcher.Wake() }
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range remoteCalls(file) {
		names = append(names, s.Sel.Name)
	}
	if !slices.Equal(names, []string{"Invoke", "Wake"}) {
		t.Errorf("found %v, want [Invoke Wake]", names)
	}
}

// TestNoNotify: NOTIFY in a business transaction takes a lock over all databases at commit and halves throughput (BC-04). Nobody
// here uses it.
func TestNoNotify(t *testing.T) {
	t.Parallel()
	notify := regexp.MustCompile(`(?i)pg_notify\s*\(|^\s*NOTIFY\s`)
	for _, name := range files(t, ".go", ".sql") {
		if strings.HasPrefix(name, "repo_") || strings.HasPrefix(name, "test/bench/") {
			continue
		}
		if m := notify.FindString(read(t, name)); m != "" {
			t.Errorf("%s uses %s", name, m)
		}
	}
}

// notYetHit are failpoints whose code comes with the ledger.
var notYetHit = []string{"OutboxConfirmed", "InboxReceiptSent"}

// TestFailpoints: each name of internal/failpoint marks a place in product code, and the fault tests crash there.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	const list = "internal/failpoint/failpoint.go"
	if !present(t, list, "each failpoint is hit in product code and drilled in test/fault") {
		return
	}
	hits, drills := make(map[string]int), make(map[string]int)
	use := regexp.MustCompile(`\bfailpoint\.((?:Outbox|Inbox)\w+)`)
	for _, name := range files(t, ".go") {
		into := hits
		switch {
		case strings.HasPrefix(name, "internal/failpoint/"):
			continue
		case strings.HasPrefix(name, "test/fault/"):
			into = drills
		case strings.HasSuffix(name, "_test.go"), strings.HasPrefix(name, "test/"):
			continue
		}
		for _, m := range use.FindAllStringSubmatch(read(t, name), -1) {
			into[m[1]]++
		}
	}
	drilled := present(t, "test/fault", "it crashes at each failpoint")
	file, _ := parse(t, list)
	for _, constant := range constants(file) {
		if !regexp.MustCompile(`^(Outbox|Inbox)`).MatchString(constant) || slices.Contains(notYetHit, constant) {
			continue
		}
		if hits[constant] == 0 {
			t.Errorf("failpoint.%s marks no place in product code", constant)
		}
		if drilled && drills[constant] == 0 {
			t.Errorf("test/fault never crashes at failpoint.%s", constant)
		}
	}
}

// constants lists the names of a file's constants.
func constants(file *ast.File) []string {
	var names []string
	for _, decl := range file.Decls {
		d, ok := decl.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			continue
		}
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				names = append(names, v.Names[0].Name)
			}
		}
	}
	return names
}
