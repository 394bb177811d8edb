// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// ProjectUpdate says what to change in a project; a nil field stays as it is.
type ProjectUpdate struct {
	ID          uuid.UUID
	Etag        int64 // the version as last read; 0: whatever it is
	DisplayName *string
	Description *string
}

// apply returns p with the changes made.
func (u ProjectUpdate) apply(p store.Project) store.Project {
	if u.DisplayName != nil {
		p.DisplayName = *u.DisplayName
	}
	if u.Description != nil {
		p.Description = *u.Description
	}
	return p
}

// UpdateProject changes fields of an active project and records app.project.updated with it. An update that leaves
// every field as it is makes no new version and records nothing.
func (s *Service) UpdateProject(ctx context.Context, call Call, u ProjectUpdate) (store.Project, error) {
	var after store.Project
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		before, role, err := store.LockProject(ctx, tx, u.ID, call.UserID)
		if err != nil {
			return err
		}
		if err := mayChange(call, before, role, store.Editor); err != nil {
			return err
		}
		if err := matchEtag(u.Etag, before.Version); err != nil {
			return err
		}
		if after = u.apply(before); after == before {
			return call.Request.Insert(ctx, tx, projectResult(after))
		}
		after.Version, after.UpdateTime = before.Version+1, s.now()

		var batch pgx.Batch
		call.Request.Queue(&batch, projectResult(after))
		store.QueueUpdateProject(&batch, after)
		return outbox.AppendBatch(ctx, tx, &batch, projectUpdated(call, before, after))
	})

	try := attempt{call, ProjectRefused, auditv1.Operation_OPERATION_UPDATE, project(u.ID)}
	return answer(ctx, s, try, after, err, func(idempotency.Result) (store.Project, error) {
		return s.GetProject(ctx, call, u.ID)
	})
}
