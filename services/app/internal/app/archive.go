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

// ArchiveProject makes an active project read-only and records app.project.archived with it. One that is archived
// already is FailedPrecondition (PROJECT_ARCHIVED).
func (s *Service) ArchiveProject(ctx context.Context, call Call, id uuid.UUID, etag int64) (store.Project, error) {
	var after store.Project
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		before, role, err := store.LockProject(ctx, tx, id, call.UserID)
		if err != nil {
			return err
		}
		if err := mayChange(call, before, role, store.Owner); err != nil {
			return err
		}
		if err := matchEtag(etag, before.Version); err != nil {
			return err
		}
		after = before
		after.State, after.Version, after.UpdateTime = store.Archived, before.Version+1, s.now()

		var batch pgx.Batch
		call.Request.Queue(&batch, projectResult(after))
		store.QueueUpdateProject(&batch, after)
		return outbox.AppendBatch(ctx, tx, &batch, projectArchived(call, before, after))
	})

	try := attempt{call, ProjectRefused, auditv1.Operation_OPERATION_UPDATE, project(id)}
	return answer(ctx, s, try, after, err, func(idempotency.Result) (store.Project, error) {
		return s.GetProject(ctx, call, id)
	})
}

// RestoreProject makes an archived project active again and records app.project.restored with it. One that is active
// is FailedPrecondition (PROJECT_ACTIVE).
func (s *Service) RestoreProject(ctx context.Context, call Call, id uuid.UUID, etag int64) (store.Project, error) {
	var after store.Project
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		before, role, err := store.LockProject(ctx, tx, id, call.UserID)
		if err != nil {
			return err
		}
		if err := mayAct(call, role, store.Owner); err != nil {
			return err
		}
		if before.State != store.Archived {
			return apperr.FailedPrecondition("PROJECT_ACTIVE", "the project is active; only an archived one can be restored")
		}
		if err := matchEtag(etag, before.Version); err != nil {
			return err
		}
		after = before
		after.State, after.Version, after.UpdateTime = store.Active, before.Version+1, s.now()

		var batch pgx.Batch
		call.Request.Queue(&batch, projectResult(after))
		store.QueueUpdateProject(&batch, after)
		return outbox.AppendBatch(ctx, tx, &batch, projectRestored(call, before, after))
	})

	try := attempt{call, ProjectRefused, auditv1.Operation_OPERATION_UPDATE, project(id)}
	return answer(ctx, s, try, after, err, func(idempotency.Result) (store.Project, error) {
		return s.GetProject(ctx, call, id)
	})
}
