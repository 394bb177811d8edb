// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

type userServer struct {
	authv1.UnimplementedUserServiceServer
	api
}

// CreateUser implements UserService.
func (s userServer) CreateUser(ctx context.Context, r *authv1.CreateUserRequest) (*authv1.CreateUserResponse, error) {
	key, err := s.key(ctx, authv1.UserService_CreateUser_FullMethodName, r)
	if err != nil {
		return nil, err
	}
	user, err := s.auth.CreateUser(ctx, key, auth.NewUser{
		Email: r.GetUser().GetEmail(), DisplayName: r.GetUser().GetDisplayName(), Password: r.GetPassword(),
	})
	if err != nil {
		return nil, err
	}
	return &authv1.CreateUserResponse{User: userMessage(user)}, nil
}

// GetUser implements UserService.
func (s userServer) GetUser(ctx context.Context, r *authv1.GetUserRequest) (*authv1.GetUserResponse, error) {
	id, err := userID(r.GetName())
	if err != nil {
		return nil, err
	}
	user, err := s.auth.GetUser(ctx, id)
	if err != nil {
		return nil, err
	}
	return &authv1.GetUserResponse{User: userMessage(user)}, nil
}

// ListUsers implements UserService.
func (s userServer) ListUsers(ctx context.Context, r *authv1.ListUsersRequest) (*authv1.ListUsersResponse, error) {
	size, err := pagetoken.PageSize(r.GetPageSize(), standardPage, maximumPage)
	if err != nil {
		return nil, err
	}
	email := strings.ToLower(r.GetEmail())
	question := pagetoken.Binding{Method: authv1.UserService_ListUsers_FullMethodName, Filter: email}
	var after uuid.UUID
	if _, err := s.tokens.Open(question, r.GetPageToken(), &after); err != nil {
		return nil, err
	}
	users, err := s.auth.Read().ListUsers(ctx, after, email, size+1)
	if err != nil {
		return nil, err
	}
	users, next, err := nextPage(s.tokens, question, users, size, func(u store.User) any { return u.ID })
	if err != nil {
		return nil, err
	}
	response := &authv1.ListUsersResponse{NextPageToken: next}
	for _, u := range users {
		response.Users = append(response.Users, userMessage(u))
	}
	return response, nil
}

// UpdateUser implements UserService.
func (s userServer) UpdateUser(ctx context.Context, r *authv1.UpdateUserRequest) (*authv1.UpdateUserResponse, error) {
	t, err := s.target(ctx, authv1.UserService_UpdateUser_FullMethodName, r.GetUser().GetName(), r.GetUser().GetEtag(), r)
	if err != nil {
		return nil, err
	}
	change, err := userChange(r.GetUser(), r.GetUpdateMask().GetPaths())
	if err != nil {
		return nil, err
	}
	user, err := s.auth.UpdateUser(ctx, t, change)
	if err != nil {
		return nil, err
	}
	return &authv1.UpdateUserResponse{User: userMessage(user)}, nil
}

// userChange reads the fields that a mask names (AIP-134): none means those that are not empty.
func userChange(u *authv1.User, mask []string) (auth.UserChange, error) {
	var c auth.UserChange
	if named(mask, "email", u.GetEmail() != "") {
		c.Email = &u.Email
	}
	if named(mask, "display_name", u.GetDisplayName() != "") {
		c.DisplayName = &u.DisplayName
	}
	switch {
	case c.Email != nil && *c.Email == "":
		return c, apperr.InvalidField("user.email", "must not be empty")
	case c.DisplayName != nil && *c.DisplayName == "":
		return c, apperr.InvalidField("user.display_name", "must not be empty")
	}
	return c, nil
}

func named(mask []string, field string, filled bool) bool {
	if len(mask) == 0 {
		return filled
	}
	return slices.Contains(mask, field) || slices.Contains(mask, "*")
}

// DisableUser implements UserService.
func (s userServer) DisableUser(ctx context.Context, r *authv1.DisableUserRequest) (*authv1.DisableUserResponse, error) {
	t, err := s.target(ctx, authv1.UserService_DisableUser_FullMethodName, r.GetName(), r.GetEtag(), r)
	if err != nil {
		return nil, err
	}
	user, err := s.auth.DisableUser(ctx, t)
	if err != nil {
		return nil, err
	}
	return &authv1.DisableUserResponse{User: userMessage(user)}, nil
}

// EnableUser implements UserService.
func (s userServer) EnableUser(ctx context.Context, r *authv1.EnableUserRequest) (*authv1.EnableUserResponse, error) {
	t, err := s.target(ctx, authv1.UserService_EnableUser_FullMethodName, r.GetName(), r.GetEtag(), r)
	if err != nil {
		return nil, err
	}
	user, err := s.auth.EnableUser(ctx, t)
	if err != nil {
		return nil, err
	}
	return &authv1.EnableUserResponse{User: userMessage(user)}, nil
}

// DeleteUser implements UserService.
func (s userServer) DeleteUser(ctx context.Context, r *authv1.DeleteUserRequest) (*authv1.DeleteUserResponse, error) {
	t, err := s.target(ctx, authv1.UserService_DeleteUser_FullMethodName, r.GetName(), r.GetEtag(), r)
	if err != nil {
		return nil, err
	}
	if err := s.auth.DeleteUser(ctx, t); err != nil {
		return nil, err
	}
	return &authv1.DeleteUserResponse{}, nil
}

// ResetPassword implements UserService.
func (s userServer) ResetPassword(ctx context.Context, r *authv1.ResetPasswordRequest) (*authv1.ResetPasswordResponse, error) {
	t, err := s.target(ctx, authv1.UserService_ResetPassword_FullMethodName, r.GetName(), r.GetEtag(), r)
	if err != nil {
		return nil, err
	}
	user, err := s.auth.ResetPassword(ctx, t, r.GetNewPassword())
	if err != nil {
		return nil, err
	}
	return &authv1.ResetPasswordResponse{User: userMessage(user)}, nil
}

// UnlockUser implements UserService.
func (s userServer) UnlockUser(ctx context.Context, r *authv1.UnlockUserRequest) (*authv1.UnlockUserResponse, error) {
	t, err := s.target(ctx, authv1.UserService_UnlockUser_FullMethodName, r.GetName(), "", r)
	if err != nil {
		return nil, err
	}
	user, err := s.auth.UnlockUser(ctx, t)
	if err != nil {
		return nil, err
	}
	return &authv1.UnlockUserResponse{User: userMessage(user)}, nil
}
