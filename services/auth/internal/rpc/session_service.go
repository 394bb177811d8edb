// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

type sessionServer struct {
	authv1.UnimplementedSessionServiceServer
	api
}

// GetSession implements SessionService.
func (s sessionServer) GetSession(ctx context.Context, r *authv1.GetSessionRequest) (*authv1.GetSessionResponse, error) {
	user, id, err := sessionIDs(r.GetName())
	if err != nil {
		return nil, err
	}
	session, err := s.auth.GetSession(ctx, user, id)
	if err != nil {
		return nil, err
	}
	return &authv1.GetSessionResponse{Session: sessionMessage(session)}, nil
}

// sessionCursor is the last session of a page.
type sessionCursor struct {
	Time time.Time
	ID   uuid.UUID
}

// ListSessions implements SessionService.
func (s sessionServer) ListSessions(ctx context.Context, r *authv1.ListSessionsRequest) (*authv1.ListSessionsResponse, error) {
	user, err := userID(r.GetParent())
	if err != nil {
		return nil, err
	}
	if err := s.auth.RequireReader(ctx, user); err != nil {
		return nil, err
	}
	size, err := pagetoken.PageSize(r.GetPageSize(), standardPage, maximumPage)
	if err != nil {
		return nil, err
	}
	question := pagetoken.Binding{Method: authv1.SessionService_ListSessions_FullMethodName, Parent: r.GetParent()}
	var from sessionCursor
	if _, err := s.tokens.Open(question, r.GetPageToken(), &from); err != nil {
		return nil, err
	}
	sessions, err := s.auth.Read().ListSessions(ctx, user, from.Time, from.ID, size+1)
	if err != nil {
		return nil, err
	}
	sessions, next, err := nextPage(s.tokens, question, sessions, size, func(se store.Session) any {
		return sessionCursor{Time: se.CreateTime, ID: se.ID}
	})
	if err != nil {
		return nil, err
	}
	response := &authv1.ListSessionsResponse{NextPageToken: next}
	for _, se := range sessions {
		response.Sessions = append(response.Sessions, sessionMessage(se))
	}
	return response, nil
}

// RevokeSession implements SessionService.
func (s sessionServer) RevokeSession(ctx context.Context, r *authv1.RevokeSessionRequest) (*authv1.RevokeSessionResponse, error) {
	user, id, err := sessionIDs(r.GetName())
	if err != nil {
		return nil, err
	}
	key, err := s.key(ctx, authv1.SessionService_RevokeSession_FullMethodName, r)
	if err != nil {
		return nil, err
	}
	session, err := s.auth.RevokeSession(ctx, key, user, id)
	if err != nil {
		return nil, err
	}
	return &authv1.RevokeSessionResponse{Session: sessionMessage(session)}, nil
}

// RevokeUserSessions implements SessionService.
func (s sessionServer) RevokeUserSessions(ctx context.Context, r *authv1.RevokeUserSessionsRequest) (*authv1.RevokeUserSessionsResponse, error) {
	t, err := s.target(ctx, authv1.SessionService_RevokeUserSessions_FullMethodName, r.GetParent(), "", r)
	if err != nil {
		return nil, err
	}
	count, err := s.auth.RevokeUserSessions(ctx, t.Key, t.ID)
	if err != nil {
		return nil, err
	}
	return &authv1.RevokeUserSessionsResponse{RevokedCount: int32(count)}, nil //nolint:gosec // a user does not have two billion sessions
}
