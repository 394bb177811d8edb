// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

func userMessage(u store.User) *authv1.User {
	m := &authv1.User{
		Name: u.Name(), Email: u.Email, DisplayName: u.DisplayName, Etag: auth.ETag(u.Version),
		CreateTime: timestamppb.New(u.CreateTime), UpdateTime: timestamppb.New(u.UpdateTime),
	}
	switch u.State {
	case store.UserActive:
		m.State = authv1.User_STATE_ACTIVE
	case store.UserDisabled:
		m.State = authv1.User_STATE_DISABLED
	}
	for _, role := range u.Roles {
		m.Roles = append(m.Roles, roleMessage(role))
	}
	if u.LockedUntil != nil && u.LockedUntil.After(time.Now()) {
		m.LockExpireTime = timestamppb.New(*u.LockedUntil)
	}
	return m
}

func roleMessage(role string) authv1.Role {
	switch role {
	case auth.RoleAdmin:
		return authv1.Role_ROLE_ADMIN
	case auth.RoleAuditor:
		return authv1.Role_ROLE_AUDITOR
	case auth.RoleOperator:
		return authv1.Role_ROLE_OPERATOR
	}
	return authv1.Role_ROLE_UNSPECIFIED
}

// roleName is the inverse; the contract refuses roles that are not defined.
func roleName(role authv1.Role) string {
	switch role {
	case authv1.Role_ROLE_ADMIN:
		return auth.RoleAdmin
	case authv1.Role_ROLE_AUDITOR:
		return auth.RoleAuditor
	case authv1.Role_ROLE_OPERATOR:
		return auth.RoleOperator
	}
	return ""
}

func grantMessage(g store.RoleGrant) *authv1.RoleGrant {
	return &authv1.RoleGrant{Name: g.Name(), Role: roleMessage(g.Role), CreateTime: timestamppb.New(g.CreateTime)}
}

func sessionMessage(s store.Session) *authv1.Session {
	m := &authv1.Session{
		Name: s.Name(), State: sessionState(s), CreateTime: timestamppb.New(s.CreateTime), ExpireTime: timestamppb.New(s.ExpireTime),
		EndReason: s.EndReason, Etag: auth.ETag(s.Version),
	}
	if s.LastSeen != nil {
		m.LastSeenTime = timestamppb.New(*s.LastSeen)
	}
	if s.EndTime != nil {
		m.EndTime = timestamppb.New(*s.EndTime)
	}
	return m
}

func sessionState(s store.Session) authv1.Session_State {
	switch {
	case s.State == store.SessionEnded:
		return authv1.Session_STATE_ENDED
	case s.State == store.SessionRevoked:
		return authv1.Session_STATE_REVOKED
	case s.State == store.SessionExpired, !s.ExpireTime.After(time.Now()):
		return authv1.Session_STATE_EXPIRED
	}
	return authv1.Session_STATE_ACTIVE
}

func tokensMessage(t auth.Tokens) *authv1.Tokens {
	return &authv1.Tokens{
		AccessToken: t.Access, AccessTokenExpireTime: timestamppb.New(t.AccessExpire),
		RefreshToken: t.Refresh, RefreshTokenExpireTime: timestamppb.New(t.RefreshExpire),
	}
}

func policyMessage(p store.LoginPolicy) *authv1.LoginPolicy {
	m := &authv1.LoginPolicy{
		Name: p.Name(), MinPasswordLength: int32(p.MinPasswordLength), MaxFailedAttempts: int32(p.MaxFailedAttempts), //nolint:gosec // the table bounds both to 128
		LockoutDuration: durationpb.New(p.Lockout), SessionDuration: durationpb.New(p.SessionLifetime),
		Etag: auth.ETag(p.Version), UpdateTime: timestamppb.New(p.UpdateTime),
	}
	for _, n := range p.AllowedNetworks {
		m.AllowedNetworks = append(m.AllowedNetworks, n.String())
	}
	return m
}
