// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"strconv"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// errNotMember hides in the answer "no such project" to somebody who may not know that there is one: the caller cannot
// see it, and the record of the refusal can.
var errNotMember = errors.New("the caller is not a member of the project")

// mayAct says whether a caller with role in a project may do what needs the role need.
func mayAct(call Call, role, need store.Role) error {
	switch {
	case call.Admin:
		return nil
	case role == "":
		return store.ErrProjectNotFound().WithCause(errNotMember)
	case !role.Includes(need):
		return apperr.PermissionDenied("PROJECT_ROLE_REQUIRED", "the call needs the role "+string(need)+" in the project; ask one of its owners").
			With("role", string(need))
	default:
		return nil
	}
}

// mayChange is mayAct for changes that an archived project refuses.
func mayChange(call Call, p store.Project, role, need store.Role) error {
	if err := mayAct(call, role, need); err != nil {
		return err
	}
	if p.State != store.Active {
		return apperr.FailedPrecondition("PROJECT_ARCHIVED", "the project is archived; restore it first")
	}
	return nil
}

// matchEtag says whether etag, 0 for none, is that of the version at hand.
func matchEtag(etag, version int64) error {
	if etag == 0 || etag == version {
		return nil
	}
	return apperr.Aborted("ETAG_MISMATCH", "somebody else's change came first: read again, then try again with the etag "+strconv.FormatInt(version, 10)).
		With("etag", strconv.FormatInt(version, 10))
}
