// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
)

// reasonFlags say why an operator acts.
type reasonFlags struct {
	Reason string `placeholder:"TEXT" help:"Why: it is kept in the audit log with your name. Needed, but for a dry run."`
}

// chosenFlags name what an operator acts on: some by id, or all that the filter flags select.
type chosenFlags struct {
	IDs    []string `arg:"" optional:"" name:"id" help:"Ids, alone or as the last part of a resource name; - reads them from the standard input, one a line."`
	All    bool     `help:"All that the filter flags select, instead of ids. Asks first; without a terminal it needs --yes."`
	DryRun bool     `help:"Show what would be touched, and touch nothing."`
}

// eventFlags name events, beside the ids that are arguments.
type eventFlags struct {
	Event []string `placeholder:"ID" help:"The same as an id as an argument."`
}

// named returns the ids that were given, each once.
func (c chosenFlags) named(a *app, more []string) ([]string, error) {
	var texts []string
	for _, text := range slices.Concat(c.IDs, more) {
		if text != "-" {
			texts = append(texts, text)
			continue
		}
		lines := bufio.NewScanner(a.in)
		for lines.Scan() {
			if line := strings.TrimSpace(lines.Text()); line != "" {
				texts = append(texts, line)
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("read ids: %w", err)
		}
	}
	if (len(texts) == 0) != c.All {
		return nil, usage("give ids, or --all for all that the filter flags select")
	}
	return ids("such a thing", texts)
}

// operation is something that an operator does to many things at once.
type operation[T proto.Message] struct {
	chosenFlags
	reasonFlags
	more []string // ids given in other ways than as arguments
	verb string   // "requeue"
	what string   // "events of auth"
	view list[T]
	id   func(T) string
	get  func(ctx context.Context, id string) (T, error)
	// eligible tells whether the operation would do anything to it.
	eligible func(T) bool
	// act does it to at most maxPage and returns the ids that it was done to.
	act func(ctx context.Context, ids []string) (done []string, err error)
	// final asks for confirmation even of what is named: it cannot be taken back.
	final bool
	// show prints the result.
	show func(done, asked []string) error
}

// run does it, or with --dry-run shows what it would be done to.
func (o operation[T]) run(ctx context.Context, a *app) error {
	if !o.DryRun && strings.TrimSpace(o.Reason) == "" {
		return usage("--reason is needed: say why, for whoever reads the audit log")
	}
	named, err := o.named(a, o.more)
	if err != nil {
		return err
	}
	if o.DryRun || o.All {
		chosen, err := o.choose(ctx, named)
		if err != nil {
			return err
		}
		if o.DryRun {
			return o.rehearse(ctx, a, chosen)
		}
		for _, item := range chosen {
			named = append(named, o.id(item))
		}
	}
	if len(named) == 0 {
		a.note("no %s to %s", o.what, o.verb)
		return o.show(nil, nil)
	}
	if o.All || o.final {
		if err := a.confirm("%s %d %s?", strings.ToUpper(o.verb[:1])+o.verb[1:], len(named), o.what); err != nil {
			return err
		}
	}
	var done []string
	for batch := range slices.Chunk(named, maxPage) {
		touched, err := o.act(ctx, batch)
		if err != nil {
			if len(done) > 0 {
				a.note("%d of %d %s were done before this error", len(done), len(named), o.what)
			}
			return err
		}
		done = append(done, touched...)
	}
	if err := o.show(done, named); err != nil {
		return err
	}
	if left := len(named) - len(done); left > 0 && !o.All {
		return &failure{
			code: exitConflict, text: fmt.Sprintf("%d of %d %s were left as they are: nothing to %s in their state", left, len(named), o.what, o.verb),
			hint: "--dry-run shows which ones can be",
		}
	}
	return nil
}

// choose reads what would be touched: it leaves out what the operation would do nothing to.
func (o operation[T]) choose(ctx context.Context, named []string) ([]T, error) {
	var found []T
	if o.All {
		var err error
		if found, err = collect(ctx, o.view.get); err != nil {
			return nil, err
		}
	}
	for _, id := range named {
		item, err := o.get(ctx, id)
		if err != nil {
			return nil, err
		}
		found = append(found, item)
	}
	return slices.DeleteFunc(found, func(item T) bool { return !o.eligible(item) }), nil
}

// rehearse shows what would be touched.
func (o operation[T]) rehearse(ctx context.Context, a *app, chosen []T) error {
	view := o.view
	view.get = func(context.Context, int32, string) ([]T, string, error) { return chosen, "", nil }
	if err := view.show(ctx, a, pageFlags{All: true}); err != nil {
		return err
	}
	a.note("dry run: would %s %d %s", o.verb, len(chosen), o.what)
	return nil
}
