// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

type authServer struct {
	authv1.UnimplementedAuthServiceServer
	api
}

// Login implements AuthService.
func (s authServer) Login(ctx context.Context, r *authv1.LoginRequest) (*authv1.LoginResponse, error) {
	in, err := s.auth.Login(ctx, r.GetEmail(), r.GetPassword())
	if err != nil {
		return nil, err
	}
	return &authv1.LoginResponse{Tokens: tokensMessage(in.Tokens), User: userMessage(in.User), Session: sessionMessage(in.Session)}, nil
}

// Refresh implements AuthService.
func (s authServer) Refresh(ctx context.Context, r *authv1.RefreshRequest) (*authv1.RefreshResponse, error) {
	tokens, err := s.auth.Refresh(ctx, r.GetRefreshToken())
	if err != nil {
		return nil, err
	}
	return &authv1.RefreshResponse{Tokens: tokensMessage(tokens)}, nil
}

// Logout implements AuthService.
func (s authServer) Logout(ctx context.Context, _ *authv1.LogoutRequest) (*authv1.LogoutResponse, error) {
	if err := s.auth.Logout(ctx); err != nil {
		return nil, err
	}
	return &authv1.LogoutResponse{}, nil
}

// GetSelf implements AuthService.
func (s authServer) GetSelf(ctx context.Context, _ *authv1.GetSelfRequest) (*authv1.GetSelfResponse, error) {
	user, session, err := s.auth.GetSelf(ctx)
	if err != nil {
		return nil, err
	}
	return &authv1.GetSelfResponse{User: userMessage(user), Session: sessionMessage(session)}, nil
}

// ChangePassword implements AuthService.
func (s authServer) ChangePassword(ctx context.Context, r *authv1.ChangePasswordRequest) (*authv1.ChangePasswordResponse, error) {
	key, err := s.key(ctx, authv1.AuthService_ChangePassword_FullMethodName, r)
	if err != nil {
		return nil, err
	}
	user, err := s.auth.ChangePassword(ctx, key, r.GetCurrentPassword(), r.GetNewPassword())
	if err != nil {
		return nil, err
	}
	return &authv1.ChangePasswordResponse{User: userMessage(user)}, nil
}
