// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// NewMember is one user to add to a project.
type NewMember struct {
	UserID uuid.UUID
	Role   store.Role
}

// ImportMembers adds users to an active project, up to MaxImport of them, and records app.member.added for each: all in
// one transaction, so all or none. An error names the first item that was refused: one that stands twice in the list is
// InvalidArgument (MEMBER_REPEATED), one who is a member already is AlreadyExists (MEMBER_EXISTS).
func (s *Service) ImportMembers(ctx context.Context, call Call, projectID uuid.UUID, list []NewMember) (int, error) {
	err := checkImport(list)
	if err == nil {
		err = s.inTx(ctx, func(tx pgx.Tx) error {
			in, role, err := store.LockProject(ctx, tx, projectID, call.UserID)
			if err != nil {
				return err
			}
			if err := mayChange(call, in, role, store.Owner); err != nil {
				return err
			}
			if err := call.Request.Insert(ctx, tx, projectResult(in)); err != nil {
				return err
			}
			members, events := importRows(call, in, list, s.now())
			refused, err := store.InsertMembers(ctx, tx, members)
			if err != nil {
				return err
			}
			if refused >= 0 {
				return badItem(apperr.AlreadyExists, "MEMBER_EXISTS", refused, "is a member of the project already")
			}
			failpoint.Hit(failpoint.OutboxAfterBusinessWrite)
			return outbox.Append(ctx, tx, events...)
		})
	}

	try := attempt{call, MemberRefused, auditv1.Operation_OPERATION_CREATE, project(projectID)}
	return answer(ctx, s, try, len(list), err, func(idempotency.Result) (int, error) {
		return len(list), nil // the same body, so the same number
	})
}

// checkImport refuses what no state of the project could make right.
func checkImport(list []NewMember) error {
	if len(list) == 0 || len(list) > MaxImport {
		return apperr.InvalidField("members", fmt.Sprintf("must have 1 to %d items", MaxImport))
	}
	first := make(map[uuid.UUID]int, len(list))
	for i, n := range list {
		if at, twice := first[n.UserID]; twice {
			return badItem(invalidItem, "MEMBER_REPEATED", i, fmt.Sprintf("is the same user as item %d", at))
		}
		first[n.UserID] = i
	}
	return nil
}

// importRows returns the rows to insert and the event of each, in the order of the list.
func importRows(call Call, in store.Project, list []NewMember, now time.Time) ([]store.Member, []*auditv1.AuditEvent) {
	members := make([]store.Member, len(list))
	events := make([]*auditv1.AuditEvent, len(list))
	for i, n := range list {
		members[i] = store.Member{
			ID: newID(), Version: 1, ProjectID: in.ID, UserID: n.UserID, Role: n.Role, CreateTime: now, UpdateTime: now,
		}
		events[i] = memberAdded(call, in, members[i])
	}
	return members, events
}

func invalidItem(reason, message string) *apperr.Error {
	return apperr.InvalidArgument(reason, message)
}

// badItem names the item of an import that was refused, as people and as programs read it.
func badItem(kind func(reason, message string) *apperr.Error, reason string, index int, what string) error {
	path := fmt.Sprintf("members[%d].user", index)
	err := kind(reason, path+" "+what+"; nobody was added").With("index", strconv.Itoa(index))
	err.Violations = []apperr.Violation{{Field: path, Description: what, Reason: reason}}
	return err
}
