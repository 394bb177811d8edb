// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
)

// method is one row of the table below: who may call it, and what to record if somebody else tries. A method that only
// reads has nothing to record.
type method struct {
	rule    authn.Rule
	attempt *auth.Attempt
}

// methods is who may do what. Where a rule is "anybody logged in", package auth looks at whose account it is.
func methods() map[string]method {
	admin, self := authn.AnyRole(auth.RoleAdmin), authn.Authenticated()
	return map[string]method{
		authv1.AuthService_Login_FullMethodName:          {authn.Public(), &auth.TryLogin},
		authv1.AuthService_Refresh_FullMethodName:        {authn.Public(), &auth.TryRefresh},
		authv1.AuthService_Logout_FullMethodName:         {self, &auth.TryLogout},
		authv1.AuthService_GetSelf_FullMethodName:        {self, nil},
		authv1.AuthService_ChangePassword_FullMethodName: {self, &auth.TryChangePassword},

		authv1.UserService_CreateUser_FullMethodName:     {admin, &auth.TryCreateUser},
		authv1.UserService_GetUser_FullMethodName:        {self, nil},
		authv1.UserService_ListUsers_FullMethodName:      {admin, nil},
		authv1.UserService_UpdateUser_FullMethodName:     {admin, &auth.TryUpdateUser},
		authv1.UserService_DisableUser_FullMethodName:    {admin, &auth.TryDisableUser},
		authv1.UserService_EnableUser_FullMethodName:     {admin, &auth.TryEnableUser},
		authv1.UserService_DeleteUser_FullMethodName:     {admin, &auth.TryDeleteUser},
		authv1.UserService_ResetPassword_FullMethodName:  {admin, &auth.TryResetPassword},
		authv1.UserService_UnlockUser_FullMethodName:     {admin, &auth.TryUnlockUser},
		authv1.UserService_GrantRole_FullMethodName:      {admin, &auth.TryGrantRole},
		authv1.UserService_RevokeRole_FullMethodName:     {admin, &auth.TryRevokeRole},
		authv1.UserService_ListRoleGrants_FullMethodName: {admin, nil},

		authv1.SessionService_GetSession_FullMethodName:         {self, nil},
		authv1.SessionService_ListSessions_FullMethodName:       {self, nil},
		authv1.SessionService_RevokeSession_FullMethodName:      {self, &auth.TryRevokeSession},
		authv1.SessionService_RevokeUserSessions_FullMethodName: {self, &auth.TryRevokeSessions},

		authv1.LoginPolicyService_GetLoginPolicy_FullMethodName:    {authn.AnyRole(auth.RoleAdmin, auth.RoleAuditor), nil},
		authv1.LoginPolicyService_UpdateLoginPolicy_FullMethodName: {admin, &auth.TryUpdateLoginPolicy},
	}
}

// Policy says who may call which method, those of the outbox's operators included.
func Policy() authn.Policy {
	policy := outboxrpc.Policy()
	for name, m := range methods() {
		policy[name] = m.rule
	}
	return policy
}

// Authenticator checks each call's token, its session and the method's rule. It records refused attempts to change
// something.
func Authenticator(v authn.TokenVerifier, s *auth.Service) (*authn.Authenticator, error) {
	table := methods()
	return authn.NewAuthenticator(authn.AuthenticatorConfig{
		Verifier: v, Policy: Policy(), Check: s.CheckStanding,
		Refused: func(ctx context.Context, r authn.Refusal) {
			tried := table[r.Method].attempt
			if r.Method == outboxv1.OutboxService_RequeueOutboxEvents_FullMethodName {
				tried = &auth.TryRequeue
			}
			if tried != nil {
				s.RecordRefusal(ctx, *tried, r)
			}
		},
	})
}
