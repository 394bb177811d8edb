// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// GetProject returns a project. To a caller who is no member it does not exist.
func (s *Service) GetProject(ctx context.Context, call Call, id uuid.UUID) (store.Project, error) {
	p, role, err := store.GetProject(ctx, s.db, id, call.UserID)
	if err == nil {
		err = mayAct(call, role, store.Viewer)
	}
	if err != nil {
		return store.Project{}, s.refuse(ctx, attempt{call, ProjectRefused, auditv1.Operation_OPERATION_READ, project(id)}, err)
	}
	return p, nil
}

// projectByName is GetProject for a name that the service made.
func (s *Service) projectByName(ctx context.Context, call Call, name string) (store.Project, error) {
	id, err := ParseProjectName(name)
	if err != nil {
		return store.Project{}, fmt.Errorf("read result of an earlier call: %w", err)
	}
	return s.GetProject(ctx, call, id)
}

// ListProjects returns the projects that f selects, of those that the caller is a member of; an admin sees all.
func (s *Service) ListProjects(ctx context.Context, call Call, f store.ProjectFilter) ([]store.Project, error) {
	f.MemberID = nil
	if !call.Admin {
		f.MemberID = &call.UserID
	}
	return store.ListProjects(ctx, s.db, f)
}

// GetMember returns a member of a project that the caller may read.
func (s *Service) GetMember(ctx context.Context, call Call, projectID, memberID uuid.UUID) (store.Member, error) {
	if _, err := s.GetProject(ctx, call, projectID); err != nil {
		return store.Member{}, err
	}
	return store.GetMember(ctx, s.db, projectID, memberID)
}

// memberByName is GetMember for a name that the service made.
func (s *Service) memberByName(ctx context.Context, call Call, name string) (store.Member, error) {
	projectID, memberID, err := ParseMemberName(name)
	if err != nil {
		return store.Member{}, fmt.Errorf("read result of an earlier call: %w", err)
	}
	return s.GetMember(ctx, call, projectID, memberID)
}

// ListMembers returns up to limit members of a project that the caller may read, in the order they were added, that
// come after the id after.
func (s *Service) ListMembers(ctx context.Context, call Call, projectID, after uuid.UUID, limit int) ([]store.Member, error) {
	if _, err := s.GetProject(ctx, call, projectID); err != nil {
		return nil, err
	}
	return store.ListMembers(ctx, s.db, projectID, after, limit)
}
