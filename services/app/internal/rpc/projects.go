// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// CreateProject implements ProjectService.
func (s *Server) CreateProject(ctx context.Context, req *appv1.CreateProjectRequest) (*appv1.CreateProjectResponse, error) {
	call, err := s.callWith(ctx, req)
	if err != nil {
		return nil, err
	}
	wanted := req.GetProject()
	p, err := s.app.CreateProject(ctx, call, app.NewProject{
		Slug: wanted.GetSlug(), DisplayName: wanted.GetDisplayName(), Description: wanted.GetDescription(),
	})
	if err != nil {
		return nil, err
	}
	return &appv1.CreateProjectResponse{Project: projectMessage(p)}, nil
}

// GetProject implements ProjectService.
func (s *Server) GetProject(ctx context.Context, req *appv1.GetProjectRequest) (*appv1.GetProjectResponse, error) {
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	id, err := projectID("name", req.GetName())
	if err != nil {
		return nil, err
	}
	p, err := s.app.GetProject(ctx, call, id)
	if err != nil {
		return nil, err
	}
	return &appv1.GetProjectResponse{Project: projectMessage(p)}, nil
}

// cursor is where a page of a list starts: after the id of the last one seen.
type cursor struct {
	After uuid.UUID `json:"a"`
}

// ListProjects implements ProjectService.
func (s *Server) ListProjects(ctx context.Context, req *appv1.ListProjectsRequest) (*appv1.ListProjectsResponse, error) {
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	size, err := pagetoken.PageSize(req.GetPageSize(), defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	binding := pagetoken.Binding{
		Method: appv1.ProjectService_ListProjects_FullMethodName,
		Filter: strconv.FormatBool(req.GetShowArchived()) + " " + req.GetSlug(),
	}
	var from cursor
	if _, err := s.tokens.Open(binding, req.GetPageToken(), &from); err != nil {
		return nil, err
	}
	projects, err := s.app.ListProjects(ctx, call, store.ProjectFilter{
		After: from.After, ShowArchived: req.GetShowArchived(), Slug: req.GetSlug(), Limit: size + 1,
	})
	if err != nil {
		return nil, err
	}
	response := &appv1.ListProjectsResponse{}
	if len(projects) > size {
		projects = projects[:size]
		if response.NextPageToken, err = s.tokens.Seal(binding, cursor{projects[size-1].ID}); err != nil {
			return nil, err
		}
	}
	for _, p := range projects {
		response.Projects = append(response.Projects, projectMessage(p))
	}
	return response, nil
}

// UpdateProject implements ProjectService.
func (s *Server) UpdateProject(ctx context.Context, req *appv1.UpdateProjectRequest) (*appv1.UpdateProjectResponse, error) {
	call, err := s.callWith(ctx, req)
	if err != nil {
		return nil, err
	}
	update, err := projectUpdate(req)
	if err != nil {
		return nil, err
	}
	p, err := s.app.UpdateProject(ctx, call, update)
	if err != nil {
		return nil, err
	}
	return &appv1.UpdateProjectResponse{Project: projectMessage(p)}, nil
}

func projectUpdate(req *appv1.UpdateProjectRequest) (app.ProjectUpdate, error) {
	var update app.ProjectUpdate
	var err error
	wanted := req.GetProject()
	if update.ID, err = projectID("project.name", wanted.GetName()); err != nil {
		return app.ProjectUpdate{}, err
	}
	if update.Etag, err = version("project.etag", wanted.GetEtag()); err != nil {
		return app.ProjectUpdate{}, err
	}
	// Without a mask, every field that has a value is meant (AIP-134).
	paths := req.GetUpdateMask().GetPaths()
	if slices.Contains(paths, "display_name") || len(paths) == 0 && wanted.GetDisplayName() != "" {
		update.DisplayName = &wanted.DisplayName
	}
	if slices.Contains(paths, "description") || len(paths) == 0 && wanted.GetDescription() != "" {
		update.Description = &wanted.Description
	}
	if update.DisplayName != nil && *update.DisplayName == "" {
		return app.ProjectUpdate{}, apperr.InvalidField("project.display_name", "must not be empty")
	}
	return update, nil
}

// ArchiveProject implements ProjectService.
func (s *Server) ArchiveProject(ctx context.Context, req *appv1.ArchiveProjectRequest) (*appv1.ArchiveProjectResponse, error) {
	call, id, etag, err := s.projectCall(ctx, req)
	if err != nil {
		return nil, err
	}
	p, err := s.app.ArchiveProject(ctx, call, id, etag)
	if err != nil {
		return nil, err
	}
	return &appv1.ArchiveProjectResponse{Project: projectMessage(p)}, nil
}

// RestoreProject implements ProjectService.
func (s *Server) RestoreProject(ctx context.Context, req *appv1.RestoreProjectRequest) (*appv1.RestoreProjectResponse, error) {
	call, id, etag, err := s.projectCall(ctx, req)
	if err != nil {
		return nil, err
	}
	p, err := s.app.RestoreProject(ctx, call, id, etag)
	if err != nil {
		return nil, err
	}
	return &appv1.RestoreProjectResponse{Project: projectMessage(p)}, nil
}

// DeleteProject implements ProjectService.
func (s *Server) DeleteProject(ctx context.Context, req *appv1.DeleteProjectRequest) (*appv1.DeleteProjectResponse, error) {
	call, id, etag, err := s.projectCall(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := s.app.DeleteProject(ctx, call, id, etag); err != nil {
		return nil, err
	}
	return &appv1.DeleteProjectResponse{}, nil
}

// named is a mutation of the resource that it names, as last read.
type named interface {
	mutation
	GetName() string
	GetEtag() string
}

// projectCall reads a mutation that names a project.
func (s *Server) projectCall(ctx context.Context, req named) (call app.Call, id uuid.UUID, etag int64, err error) {
	if call, err = s.callWith(ctx, req); err != nil {
		return call, id, etag, err
	}
	if id, err = projectID("name", req.GetName()); err != nil {
		return call, id, etag, err
	}
	etag, err = version("etag", req.GetEtag())
	return call, id, etag, err
}
