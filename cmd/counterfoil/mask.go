// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "google.golang.org/protobuf/types/known/fieldmaskpb"

// maskBuilder collects the fields that were given on the command line.
type maskBuilder struct{ paths []string }

func (m *maskBuilder) add(path string) { m.paths = append(m.paths, path) }
func (m *maskBuilder) empty() bool     { return len(m.paths) == 0 }

// text takes over a text that was given; an empty one clears the field.
func (m *maskBuilder) text(path string, given, field *string) {
	if given != nil {
		*field = *given
		m.add(path)
	}
}

// number takes over a number that was given.
func (m *maskBuilder) number(path string, given, field *int32) {
	if given != nil {
		*field = *given
		m.add(path)
	}
}

func (m *maskBuilder) mask() *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: m.paths} }
