// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pgdb"
)

// ErrProjectNotFound is the answer for a project that does not exist or that the caller may not know of.
func ErrProjectNotFound() *apperr.Error {
	return apperr.NotFound("PROJECT_NOT_FOUND", "there is no such project; check its name")
}

// ErrMemberNotFound is the answer for a member that does not exist in its project.
func ErrMemberNotFound() *apperr.Error {
	return apperr.NotFound("MEMBER_NOT_FOUND", "there is no such member in the project; list its members")
}

// Translate turns a violated constraint into the error that people see, and returns any other error as it is. A batch
// reports the error of any of its statements, so whoever runs one passes its result through here.
func Translate(err error) error {
	switch {
	case err == nil:
		return nil
	case pgdb.IsUnique(err, "projects_slug_key"):
		return apperr.AlreadyExists("PROJECT_SLUG_TAKEN", "another project has this slug; choose another one").WithCause(err)
	case pgdb.IsUnique(err, "project_members_project_user_key"):
		return apperr.AlreadyExists("MEMBER_EXISTS", "the user is a member of the project already; change the member's role instead").WithCause(err)
	case pgdb.IsForeignKey(err, "project_members_project_fkey"):
		return ErrProjectNotFound().WithCause(err)
	default:
		return err
	}
}

// found turns "no rows" into missing and wraps any other error with what was being done.
func found(err error, doing string, missing *apperr.Error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrNoRows):
		return missing
	default:
		return fmt.Errorf("%s: %w", doing, err)
	}
}

// oneRow refuses the whole batch if a statement that must change one row changed another number of them. Under the
// project's lock it cannot happen; without this check a mistake there would record a change that was not made.
func oneRow(what string) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		if n := tag.RowsAffected(); n != 1 {
			return fmt.Errorf("%s: changed %d rows, not 1", what, n)
		}
		return nil
	}
}
