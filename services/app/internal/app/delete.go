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

// DeleteProject deletes a project, active or archived, with its members, and records app.member.removed for each of
// them and app.project.deleted last: whoever reads the events in order never meets a member of a deleted project.
func (s *Service) DeleteProject(ctx context.Context, call Call, id uuid.UUID, etag int64) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		last, role, err := store.LockProject(ctx, tx, id, call.UserID)
		if err != nil {
			return err
		}
		if err := mayAct(call, role, store.Owner); err != nil {
			return err
		}
		if err := matchEtag(etag, last.Version); err != nil {
			return err
		}
		if err := call.Request.Insert(ctx, tx, idempotency.Result{Name: ProjectName(id), Version: last.Version + 1}); err != nil {
			return err
		}
		members, err := store.DeleteMembers(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := store.DeleteProject(ctx, tx, last); err != nil {
			return err
		}

		now := s.now()
		events := make([]*auditv1.AuditEvent, 0, len(members)+1)
		for _, m := range members {
			events = append(events, memberRemoved(call, last, m, now))
		}
		return outbox.Append(ctx, tx, append(events, projectDeleted(call, last, now))...)
	})

	try := attempt{call, ProjectRefused, auditv1.Operation_OPERATION_DELETE, project(id)}
	_, err = answer(ctx, s, try, struct{}{}, err, func(idempotency.Result) (struct{}, error) {
		return struct{}{}, nil // gone, as the first call said
	})
	return err
}
