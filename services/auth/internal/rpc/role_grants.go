// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"path"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// GrantRole implements UserService.
func (s userServer) GrantRole(ctx context.Context, r *authv1.GrantRoleRequest) (*authv1.GrantRoleResponse, error) {
	t, err := s.target(ctx, authv1.UserService_GrantRole_FullMethodName, r.GetParent(), "", r)
	if err != nil {
		return nil, err
	}
	grant, err := s.auth.GrantRole(ctx, t, roleName(r.GetRole()))
	if err != nil {
		return nil, err
	}
	return &authv1.GrantRoleResponse{RoleGrant: grantMessage(grant)}, nil
}

// RevokeRole implements UserService.
func (s userServer) RevokeRole(ctx context.Context, r *authv1.RevokeRoleRequest) (*authv1.RevokeRoleResponse, error) {
	t, err := s.target(ctx, authv1.UserService_RevokeRole_FullMethodName, r.GetName(), "", r)
	if err != nil {
		return nil, err
	}
	if err := s.auth.RevokeRole(ctx, t, path.Base(r.GetName())); err != nil {
		return nil, err
	}
	return &authv1.RevokeRoleResponse{}, nil
}

// ListRoleGrants implements UserService.
func (s userServer) ListRoleGrants(ctx context.Context, r *authv1.ListRoleGrantsRequest) (*authv1.ListRoleGrantsResponse, error) {
	user, err := userID(r.GetParent())
	if err != nil {
		return nil, err
	}
	size, err := pagetoken.PageSize(r.GetPageSize(), standardPage, maximumPage)
	if err != nil {
		return nil, err
	}
	question := pagetoken.Binding{Method: authv1.UserService_ListRoleGrants_FullMethodName, Parent: r.GetParent()}
	var after string
	if _, err := s.tokens.Open(question, r.GetPageToken(), &after); err != nil {
		return nil, err
	}
	grants, err := s.auth.Read().ListRoleGrants(ctx, user, after, size+1)
	if err != nil {
		return nil, err
	}
	grants, next, err := nextPage(s.tokens, question, grants, size, func(g store.RoleGrant) any { return g.Role })
	if err != nil {
		return nil, err
	}
	response := &authv1.ListRoleGrantsResponse{NextPageToken: next}
	for _, g := range grants {
		response.RoleGrants = append(response.RoleGrants, grantMessage(g))
	}
	return response, nil
}
