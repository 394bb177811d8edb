// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// pageFlags say how much of a list to show.
type pageFlags struct {
	Limit int  `default:"50" placeholder:"N" help:"At most this many; 50 if left out."`
	All   bool `help:"All of them, however many."`
}

// maxPage is the largest page that the services serve.
const maxPage = 1000

// fetch gets one page of a list: its items and the token of the next.
type fetch[T proto.Message] func(ctx context.Context, size int32, token string) (items []T, next string, err error)

// pages hands each page to show until the list ends or the limit is reached, and tells whether there is more. A page may
// be short, or empty, and not be the last.
func pages[T proto.Message](ctx context.Context, p pageFlags, get fetch[T], show func([]T) error) (more bool, err error) {
	if !p.All && p.Limit < 1 {
		return false, usage("--limit must be at least 1")
	}
	token := ""
	for left := p.Limit; p.All || left > 0; {
		size := maxPage
		if !p.All {
			size = min(left, maxPage)
		}
		items, next, err := get(ctx, int32(size), token)
		if err != nil {
			return false, err
		}
		left -= len(items)
		if err := show(items); err != nil {
			return false, err
		}
		if next == "" {
			return false, nil
		}
		token = next
	}
	return true, nil
}

// list is a list as a command shows it.
type list[T proto.Message] struct {
	what   string // "users": what it is a list of
	header []string
	row    func(T) []string
	get    fetch[T]
}

// show prints the list page by page: one JSON document a line, or a table. A table of several thousand rows is set page
// by page, so its columns may shift.
func (l list[T]) show(ctx context.Context, a *app, p pageFlags) error {
	var t *table
	more, err := pages(ctx, p, l.get, func(items []T) error {
		if a.out.json {
			for _, item := range items {
				if err := a.out.line(item); err != nil {
					return err
				}
			}
			return nil
		}
		if len(items) == 0 {
			return nil
		}
		if t == nil {
			t = a.out.table(l.header...)
		}
		for _, item := range items {
			t.row(l.row(item)...)
		}
		return t.flush()
	})
	switch {
	case err != nil:
		return err
	case more:
		a.note("there may be more %s: --limit N or --all shows them", l.what)
	case t == nil && !a.out.json:
		a.note("no %s", l.what)
	}
	return nil
}

// collect returns the whole list.
func collect[T proto.Message](ctx context.Context, get fetch[T]) ([]T, error) {
	var all []T
	_, err := pages(ctx, pageFlags{All: true}, get, func(items []T) error {
		all = append(all, items...)
		return nil
	})
	return all, err
}
