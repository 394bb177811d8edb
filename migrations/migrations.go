// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package migrations holds the schema of the three databases and applies it.
//
// Each owner has a folder of numbered files, applied in order and once each, as the owner's own role: the services
// connect as another role that may not change the schema. Beside them, roles.sql makes the roles of a server and
// <owner>/grants.sql says, whole, what the service's role may do; both can be applied again at any time.
//
// Rules for a new file: four digits without a gap, never edited once released, forward only (the Down part is for
// tests), and expand, migrate, contract over separate releases, so that the code of any release runs with the schema
// before and after. A statement that cannot run inside a transaction gets a file of its own:
//
//	-- +goose NO TRANSACTION
//	-- +goose Up
//	DROP INDEX CONCURRENTLY IF EXISTS audit_outbox_example_idx;
//	CREATE INDEX CONCURRENTLY audit_outbox_example_idx ON audit_outbox (event_type);
//
// The DROP comes first because a build that was cut off leaves an index that is never used and still maintained; the
// next run then replaces it.
//
// The package does not promise that a migration can be taken back on data that matters, and it does not protect from
// the owner role or a superuser.
package migrations

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
)

//go:generate go run ./schemadump

//go:embed roles.sql */[0-9]*.sql */grants.sql
var files embed.FS

// ErrUnknownOwner is returned for an owner that is not one of Owners.
var ErrUnknownOwner = errors.New("unknown owner")

// Owners returns the names of the services that own a database, in the order in which documents name them.
func Owners() []string {
	return []string{"auth", "app", "admin"}
}

// OwnerRole returns the role that owns and migrates the database of owner.
func OwnerRole(owner string) string { return owner + "_owner" }

// ServiceRole returns the role that the service connects as.
func ServiceRole(owner string) string { return owner + "_service" }

// Files returns the folder of one owner.
func Files(owner string) (fs.FS, error) {
	if !slices.Contains(Owners(), owner) {
		return nil, fmt.Errorf("%w: %q", ErrUnknownOwner, owner)
	}
	dir, err := fs.Sub(files, owner)
	if err != nil {
		return nil, fmt.Errorf("open migrations of %s: %w", owner, err)
	}
	return dir, nil
}
