// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// NewProject describes a project to create.
type NewProject struct {
	Slug        string
	DisplayName string
	Description string
}

// CreateProject creates a project with the caller as its first owner, and records app.project.created and
// app.member.added with it. A slug that is taken is AlreadyExists (PROJECT_SLUG_TAKEN).
func (s *Service) CreateProject(ctx context.Context, call Call, n NewProject) (store.Project, error) {
	now := s.now()
	created := store.Project{
		ID: newID(), Version: 1, Slug: n.Slug, DisplayName: n.DisplayName, Description: n.Description,
		State: store.Active, CreatorID: call.UserID, CreateTime: now, UpdateTime: now,
	}
	first := store.Member{
		ID: newID(), Version: 1, ProjectID: created.ID, UserID: call.UserID, Role: store.Owner, CreateTime: now, UpdateTime: now,
	}

	err := s.inTx(ctx, func(tx pgx.Tx) error {
		var batch pgx.Batch
		call.Request.Queue(&batch, projectResult(created))
		store.QueueInsertProject(&batch, created)
		store.QueueInsertMember(&batch, first)
		return outbox.AppendBatch(ctx, tx, &batch, projectCreated(call, created), memberAdded(call, created, first))
	})

	wanted := &auditv1.Resource{Type: "project", DisplayName: audit.Plain(n.DisplayName)} // it has no id: it does not exist
	try := attempt{call, ProjectRefused, auditv1.Operation_OPERATION_CREATE, wanted}
	return answer(ctx, s, try, created, err, func(before idempotency.Result) (store.Project, error) {
		return s.projectByName(ctx, call, before.Name)
	})
}
