// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
)

// AddMember implements ProjectService.
func (s *Server) AddMember(ctx context.Context, req *appv1.AddMemberRequest) (*appv1.AddMemberResponse, error) {
	call, err := s.callWith(ctx, req)
	if err != nil {
		return nil, err
	}
	project, err := projectID("parent", req.GetParent())
	if err != nil {
		return nil, err
	}
	user, err := userID("member.user", req.GetMember().GetUser())
	if err != nil {
		return nil, err
	}
	m, err := s.app.AddMember(ctx, call, project, user, role(req.GetMember().GetRole()))
	if err != nil {
		return nil, err
	}
	return &appv1.AddMemberResponse{Member: memberMessage(m)}, nil
}

// GetMember implements ProjectService.
func (s *Server) GetMember(ctx context.Context, req *appv1.GetMemberRequest) (*appv1.GetMemberResponse, error) {
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	project, member, err := memberID("name", req.GetName())
	if err != nil {
		return nil, err
	}
	m, err := s.app.GetMember(ctx, call, project, member)
	if err != nil {
		return nil, err
	}
	return &appv1.GetMemberResponse{Member: memberMessage(m)}, nil
}

// ListMembers implements ProjectService.
func (s *Server) ListMembers(ctx context.Context, req *appv1.ListMembersRequest) (*appv1.ListMembersResponse, error) {
	call, err := callOf(ctx)
	if err != nil {
		return nil, err
	}
	project, err := projectID("parent", req.GetParent())
	if err != nil {
		return nil, err
	}
	size, err := pagetoken.PageSize(req.GetPageSize(), defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	binding := pagetoken.Binding{Method: appv1.ProjectService_ListMembers_FullMethodName, Parent: req.GetParent()}
	var from cursor
	if _, err := s.tokens.Open(binding, req.GetPageToken(), &from); err != nil {
		return nil, err
	}
	members, err := s.app.ListMembers(ctx, call, project, from.After, size+1)
	if err != nil {
		return nil, err
	}
	response := &appv1.ListMembersResponse{}
	if len(members) > size {
		members = members[:size]
		if response.NextPageToken, err = s.tokens.Seal(binding, cursor{members[size-1].ID}); err != nil {
			return nil, err
		}
	}
	for _, m := range members {
		response.Members = append(response.Members, memberMessage(m))
	}
	return response, nil
}

// UpdateMember implements ProjectService. The role is the only field that can change, so the mask says nothing more.
func (s *Server) UpdateMember(ctx context.Context, req *appv1.UpdateMemberRequest) (*appv1.UpdateMemberResponse, error) {
	call, err := s.callWith(ctx, req)
	if err != nil {
		return nil, err
	}
	update := app.MemberUpdate{Role: role(req.GetMember().GetRole())}
	if update.ProjectID, update.ID, err = memberID("member.name", req.GetMember().GetName()); err != nil {
		return nil, err
	}
	if update.Etag, err = version("member.etag", req.GetMember().GetEtag()); err != nil {
		return nil, err
	}
	m, err := s.app.UpdateMember(ctx, call, update)
	if err != nil {
		return nil, err
	}
	return &appv1.UpdateMemberResponse{Member: memberMessage(m)}, nil
}

// RemoveMember implements ProjectService.
func (s *Server) RemoveMember(ctx context.Context, req *appv1.RemoveMemberRequest) (*appv1.RemoveMemberResponse, error) {
	call, err := s.callWith(ctx, req)
	if err != nil {
		return nil, err
	}
	project, member, err := memberID("name", req.GetName())
	if err != nil {
		return nil, err
	}
	etag, err := version("etag", req.GetEtag())
	if err != nil {
		return nil, err
	}
	if err := s.app.RemoveMember(ctx, call, project, member, etag); err != nil {
		return nil, err
	}
	return &appv1.RemoveMemberResponse{}, nil
}

// ImportMembers implements ProjectService.
func (s *Server) ImportMembers(ctx context.Context, req *appv1.ImportMembersRequest) (*appv1.ImportMembersResponse, error) {
	call, err := s.callWith(ctx, req)
	if err != nil {
		return nil, err
	}
	project, err := projectID("parent", req.GetParent())
	if err != nil {
		return nil, err
	}
	list := make([]app.NewMember, len(req.GetMembers()))
	for i, m := range req.GetMembers() {
		list[i].Role = role(m.GetRole())
		if list[i].UserID, err = userID(fmt.Sprintf("members[%d].user", i), m.GetUser()); err != nil {
			return nil, err
		}
	}
	n, err := s.app.ImportMembers(ctx, call, project, list)
	if err != nil {
		return nil, err
	}
	return &appv1.ImportMembersResponse{ImportedCount: int32(n)}, nil //nolint:gosec // at most app.MaxImport
}
