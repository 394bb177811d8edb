// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// AddMember adds a user to an active project and records app.member.added with it. A user who is a member already is
// AlreadyExists (MEMBER_EXISTS).
func (s *Service) AddMember(ctx context.Context, call Call, projectID, userID uuid.UUID, role store.Role) (store.Member, error) {
	var added store.Member
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		in, callerRole, err := store.LockProject(ctx, tx, projectID, call.UserID)
		if err != nil {
			return err
		}
		if err := mayChange(call, in, callerRole, store.Owner); err != nil {
			return err
		}
		now := s.now()
		added = store.Member{
			ID: newID(), Version: 1, ProjectID: projectID, UserID: userID, Role: role, CreateTime: now, UpdateTime: now,
		}

		var batch pgx.Batch
		call.Request.Queue(&batch, memberResult(added))
		store.QueueInsertMember(&batch, added)
		return outbox.AppendBatch(ctx, tx, &batch, memberAdded(call, in, added))
	})

	try := attempt{call, MemberRefused, auditv1.Operation_OPERATION_CREATE, project(projectID)}
	return answer(ctx, s, try, added, err, func(before idempotency.Result) (store.Member, error) {
		return s.memberByName(ctx, call, before.Name)
	})
}

// MemberUpdate says what to change in a member.
type MemberUpdate struct {
	ProjectID uuid.UUID
	ID        uuid.UUID
	Etag      int64 // the version as last read; 0: whatever it is
	Role      store.Role
}

// UpdateMember changes the role of a member of an active project and records app.member.updated with it. The last owner keeps
// theirs: FailedPrecondition (LAST_OWNER). A role that the member has already makes no new version and records nothing.
func (s *Service) UpdateMember(ctx context.Context, call Call, u MemberUpdate) (store.Member, error) {
	var after store.Member
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		locked, err := s.lockMember(ctx, tx, call, u.ProjectID, u.ID, u.Etag)
		if err != nil {
			return err
		}
		before := locked.Member
		if after = before; u.Role == before.Role {
			return call.Request.Insert(ctx, tx, memberResult(after))
		}
		if err := keepOwner(locked); err != nil {
			return err
		}
		after.Role, after.Version, after.UpdateTime = u.Role, before.Version+1, s.now()

		var batch pgx.Batch
		call.Request.Queue(&batch, memberResult(after))
		store.QueueUpdateMember(&batch, after)
		return outbox.AppendBatch(ctx, tx, &batch, memberUpdated(call, locked.Project, before, after))
	})

	try := attempt{call, MemberRefused, auditv1.Operation_OPERATION_UPDATE, member(u.ID)}
	return answer(ctx, s, try, after, err, func(idempotency.Result) (store.Member, error) {
		return s.GetMember(ctx, call, u.ProjectID, u.ID)
	})
}

// RemoveMember removes a member from an active project and records app.member.removed with it. The last owner stays:
// FailedPrecondition (LAST_OWNER). The user may be added again, as a new member.
func (s *Service) RemoveMember(ctx context.Context, call Call, projectID, memberID uuid.UUID, etag int64) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		locked, err := s.lockMember(ctx, tx, call, projectID, memberID, etag)
		if err != nil {
			return err
		}
		if err := keepOwner(locked); err != nil {
			return err
		}
		last := locked.Member

		var batch pgx.Batch
		call.Request.Queue(&batch, idempotency.Result{Name: MemberName(projectID, memberID), Version: last.Version + 1})
		store.QueueDeleteMember(&batch, last)
		return outbox.AppendBatch(ctx, tx, &batch, memberRemoved(call, locked.Project, last, s.now()))
	})

	try := attempt{call, MemberRefused, auditv1.Operation_OPERATION_DELETE, member(memberID)}
	_, err = answer(ctx, s, try, struct{}{}, err, func(idempotency.Result) (struct{}, error) {
		return struct{}{}, nil // gone, as the first call said
	})
	return err
}

// lockMember locks the project of a member and checks that the caller may change the member as it was last read.
func (s *Service) lockMember(ctx context.Context, tx pgx.Tx, call Call, projectID, memberID uuid.UUID, etag int64) (store.LockedMember, error) {
	locked, err := store.LockMember(ctx, tx, projectID, memberID, call.UserID)
	if err != nil {
		return store.LockedMember{}, err
	}
	if err := mayChange(call, locked.Project, locked.CallerRole, store.Owner); err != nil {
		return store.LockedMember{}, err
	}
	if !locked.Found {
		return store.LockedMember{}, store.ErrMemberNotFound()
	}
	return locked, matchEtag(etag, locked.Member.Version)
}

// keepOwner refuses to take its only owner from a project.
func keepOwner(l store.LockedMember) error {
	if l.Member.Role == store.Owner && l.Owners == 1 {
		return apperr.FailedPrecondition("LAST_OWNER", "the member is the project's only owner; make somebody else an owner first")
	}
	return nil
}
