// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// CheckStanding refuses a token whose session is over or whose roles are no longer all held: at Auth a revocation works
// at once, and not when the token expires. Roles that were granted since take effect with the next token.
func (s *Service) CheckStanding(ctx context.Context, p authn.Principal) error {
	userID, sessionID, err := callerIDs(authn.WithPrincipal(ctx, p))
	if err != nil {
		return err
	}
	standing, err := store.New(s.db).Standing(ctx, userID, sessionID)
	switch {
	case apperr.KindOf(err) == apperr.KindNotFound:
		return sessionEnded()
	case err != nil:
		return err
	case standing.SessionState != store.SessionActive, !standing.SessionExpire.After(s.now()), standing.UserState != store.UserActive:
		return sessionEnded()
	case slices.ContainsFunc(p.Roles, func(role string) bool { return !slices.Contains(standing.Roles, role) }):
		return apperr.Unauthenticated("ROLES_CHANGED", "a role that the token names was revoked: refresh it")
	}
	return nil
}

func sessionEnded() error {
	return apperr.Unauthenticated("SESSION_ENDED", "the session is over: log in again")
}

// GetSelf returns the caller's account and session.
func (s *Service) GetSelf(ctx context.Context) (store.User, store.Session, error) {
	userID, sessionID, err := callerIDs(ctx)
	if err != nil {
		return store.User{}, store.Session{}, err
	}
	user, err := store.New(s.db).User(ctx, userID)
	if err != nil {
		return store.User{}, store.Session{}, err
	}
	session, err := store.New(s.db).Session(ctx, userID, sessionID)
	return user, session, err
}

// GetUser returns a user to itself or to an admin.
func (s *Service) GetUser(ctx context.Context, id uuid.UUID) (store.User, error) {
	if err := requireSelfOr(ctx, id, RoleAdmin); err != nil {
		return store.User{}, err
	}
	return store.New(s.db).User(ctx, id)
}

// GetSession returns a session to its user or to an admin.
func (s *Service) GetSession(ctx context.Context, userID, sessionID uuid.UUID) (store.Session, error) {
	if err := requireSelfOr(ctx, userID, RoleAdmin); err != nil {
		return store.Session{}, err
	}
	return store.New(s.db).Session(ctx, userID, sessionID)
}

// RequireReader refuses whoever may not list a user's sessions: anybody but the user and admins.
func (s *Service) RequireReader(ctx context.Context, userID uuid.UUID) error {
	return requireSelfOr(ctx, userID, RoleAdmin)
}

// Read returns the store's reads, for lists that need no decision beyond the method's role.
func (s *Service) Read() store.Queries { return store.New(s.db) }
