// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// people makes accounts and gives roles; some of it is refused.
func (d *day) people() {
	d.chapter("People and roles")
	d.logIn(d.root)
	for _, p := range []*Person{d.ada, d.grace, d.alan, d.barbara, d.edsger} {
		d.create(d.root, p)
	}
	d.grant(d.root, d.ada, authv1.Role_ROLE_ADMIN)
	d.grant(d.root, d.barbara, authv1.Role_ROLE_AUDITOR)
	d.grant(d.root, d.edsger, authv1.Role_ROLE_OPERATOR)

	again := &authv1.CreateUserRequest{
		User: &authv1.User{Email: d.ada.Email, DisplayName: "Another Ada"}, Password: d.ada.Password, RequestId: uuid.NewString(),
	}
	call(d.as(d.root), authv1.UserService_CreateUser_FullMethodName, d.users.CreateUser, again,
		refused(codes.AlreadyExists, "auth.user.create_refused"))
	short := &authv1.CreateUserRequest{
		User: &authv1.User{Email: "short" + d.suffix + "@example.com", DisplayName: "Too Short"}, Password: "short", RequestId: uuid.NewString(),
	}
	call(d.as(d.root), authv1.UserService_CreateUser_FullMethodName, d.users.CreateUser, short,
		refused(codes.InvalidArgument, "auth.user.create_refused"))

	for _, p := range []*Person{d.ada, d.grace, d.alan, d.barbara, d.edsger} {
		d.logIn(p)
	}
	friend := &authv1.CreateUserRequest{
		User: &authv1.User{Email: "friend" + d.suffix + "@example.com", DisplayName: "A Friend"}, Password: "a long phrase of a friend",
		RequestId: uuid.NewString(),
	}
	call(d.as(d.grace), authv1.UserService_CreateUser_FullMethodName, d.users.CreateUser, friend, notAllowed("auth.user.create_refused"))
	call(d.as(d.ada), authv1.UserService_UpdateUser_FullMethodName, d.users.UpdateUser, &authv1.UpdateUserRequest{
		User:       &authv1.User{Name: d.barbara.Name, DisplayName: "Barbara (audit)"},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}}, RequestId: uuid.NewString(),
	}, ok("auth.user.updated"))
}

// policyPaths are the fields of the login policy that the day changes.
func policyPaths() []string {
	return []string{"min_password_length", "max_failed_attempts", "session_duration"}
}

// policy changes the login policy and returns it as it was.
func (d *day) policy() *authv1.LoginPolicy {
	d.chapter("The login policy")
	before := call(d.as(d.root), authv1.LoginPolicyService_GetLoginPolicy_FullMethodName, d.policies.GetLoginPolicy,
		&authv1.GetLoginPolicyRequest{Name: "loginPolicy"}, ok()).GetLoginPolicy()

	strict := d.setPolicy(d.ada, &authv1.LoginPolicy{
		MinPasswordLength: before.GetMinPasswordLength() + 1, MaxFailedAttempts: 3, Etag: before.GetEtag(),
		SessionDuration: before.GetSessionDuration(),
	}, ok("auth.login_policy.updated"))
	late := &authv1.LoginPolicy{
		MinPasswordLength: 20, MaxFailedAttempts: 3, SessionDuration: before.GetSessionDuration(),
		Etag: before.GetEtag(), // read before Ada's change
	}
	d.setPolicy(d.root, late, refused(codes.Aborted, "auth.login_policy.update_refused"))
	d.setPolicy(d.grace, late, notAllowed("auth.login_policy.update_refused"))
	d.setPolicy(d.ada, &authv1.LoginPolicy{
		MinPasswordLength: strict.GetMinPasswordLength(), MaxFailedAttempts: 3, Etag: strict.GetEtag(),
		SessionDuration: durationpb.New(before.GetSessionDuration().AsDuration() + 12*time.Hour),
	}, ok("auth.login_policy.updated"))
	return before
}

// setPolicy writes the fields of policyPaths.
func (d *day) setPolicy(by *Person, p *authv1.LoginPolicy, want outcome) *authv1.LoginPolicy {
	p.Name = "loginPolicy"
	return call(d.as(by), authv1.LoginPolicyService_UpdateLoginPolicy_FullMethodName, d.policies.UpdateLoginPolicy,
		&authv1.UpdateLoginPolicyRequest{
			LoginPolicy: p, UpdateMask: &fieldmaskpb.FieldMask{Paths: policyPaths()}, RequestId: uuid.NewString(),
		}, want).GetLoginPolicy()
}

// guesses tries passwords until the account is locked.
func (d *day) guesses() {
	d.chapter("Somebody guesses a password")
	d.tryLogIn(&Person{Email: "nobody" + d.suffix + "@example.com"}, "letmein", refused(codes.Unauthenticated, "auth.login.failed"))
	for _, guess := range []string{"password", "alan1234"} {
		d.tryLogIn(d.alan, guess, refused(codes.Unauthenticated, "auth.login.failed"))
	}
	d.tryLogIn(d.alan, "qwertyuiop", refused(codes.Unauthenticated, "auth.login.failed", "auth.user.locked"))
	d.tryLogIn(d.alan, "iloveyou", refused(codes.Unauthenticated, "auth.login.denied"))
	d.tryLogIn(d.alan, d.alan.Password, refused(codes.Unauthenticated, "auth.login.denied")) // locked for Alan, too
	call(d.as(d.ada), authv1.UserService_UnlockUser_FullMethodName, d.users.UnlockUser,
		&authv1.UnlockUserRequest{Name: d.alan.Name, RequestId: uuid.NewString()}, ok("auth.user.unlocked"))
	d.logIn(d.alan)
}

// theft uses a refresh token twice: two parties hold it, so the session is revoked.
func (d *day) theft() {
	d.chapter("A stolen refresh token")
	stolen := d.grace.refresh
	fresh := d.exchange(d.nobody(), stolen, ok("auth.session.refreshed")).GetTokens()
	d.exchange(d.nobody(), stolen, refused(codes.Unauthenticated, "auth.session.refresh_refused", "auth.session.revoked"))
	d.exchange(d.nobody(), fresh.GetRefreshToken(), refused(codes.Unauthenticated, "auth.session.refresh_refused"))
	d.logIn(d.grace)
	next := "another long phrase of Grace"
	call(d.as(d.grace), authv1.AuthService_ChangePassword_FullMethodName, d.auth.ChangePassword, &authv1.ChangePasswordRequest{
		CurrentPassword: d.grace.Password, NewPassword: next, RequestId: uuid.NewString(),
	}, ok("auth.user.password_changed"))
	d.grace.Password = next
}
