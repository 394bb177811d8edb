// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

type userDisableCmd struct {
	userArg
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (userDisableCmd) Help() string {
	return `The account's sessions are revoked. Access tokens that are out go on working at App and Admin until they expire,
minutes later.

` + examples("counterfoil user disable grace@example.com")
}

// Run disables the account.
func (c *userDisableCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.users().DisableUser(ctx, &authv1.DisableUserRequest{Name: name, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showUser(a, r.GetUser())
}

type userEnableCmd struct {
	userArg
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (userEnableCmd) Help() string { return examples("counterfoil user enable grace@example.com") }

// Run enables the account.
func (c *userEnableCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.users().EnableUser(ctx, &authv1.EnableUserRequest{Name: name, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showUser(a, r.GetUser())
}

type userUnlockCmd struct {
	userArg
	requestFlags
}

// Help implements kong.HelpProvider.
func (userUnlockCmd) Help() string { return examples("counterfoil user unlock grace@example.com") }

// Run lifts the lock-out.
func (c *userUnlockCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.users().UnlockUser(ctx, &authv1.UnlockUserRequest{Name: name, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showUser(a, r.GetUser())
}

type userDeleteCmd struct {
	userArg
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (userDeleteCmd) Help() string {
	return "It asks first; without a terminal it needs --yes.\n\n" +
		examples("counterfoil user delete grace@example.com", "counterfoil user delete users/01980000-0000-7000-8000-000000000001 --yes")
}

// Run deletes the account.
func (c *userDeleteCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	if err := a.confirm("Delete the account %s (%s) for good?", c.User, name); err != nil {
		return err
	}
	r, err := a.users().DeleteUser(ctx, &authv1.DeleteUserRequest{Name: name, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return a.out.result(r, [2]string{"deleted", name})
}

type resetPasswordCmd struct {
	userArg
	PasswordFile string `placeholder:"FILE" help:"File whose first line is the new password; - is the standard input."`
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (resetPasswordCmd) Help() string {
	return examples("counterfoil user reset-password grace@example.com",
		"counterfoil user reset-password grace@example.com --password-file new.txt")
}

// Run sets the password.
func (c *resetPasswordCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	password, err := a.newPassword(c.PasswordFile)
	if err != nil {
		return err
	}
	r, err := a.users().ResetPassword(ctx, &authv1.ResetPasswordRequest{Name: name, NewPassword: password, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showUser(a, r.GetUser())
}

type changePasswordCmd struct {
	CurrentPasswordFile string `placeholder:"FILE" help:"File whose first line is the password until now; - is the standard input."`
	PasswordFile        string `placeholder:"FILE" help:"File whose first line is the new password; - is the standard input."`
	requestFlags
}

// Help implements kong.HelpProvider.
func (changePasswordCmd) Help() string {
	return "From the standard input, the current password is the first line and the new one the second.\n\n" +
		examples("counterfoil user change-password")
}

// Run changes the caller's own password.
func (c *changePasswordCmd) Run(ctx context.Context, a *app) error {
	current, err := a.password("Current password", c.CurrentPasswordFile)
	if err != nil {
		return err
	}
	password, err := a.newPassword(c.PasswordFile)
	if err != nil {
		return err
	}
	r, err := authv1.NewAuthServiceClient(a.conn(serviceAuth)).ChangePassword(ctx, &authv1.ChangePasswordRequest{
		CurrentPassword: current, NewPassword: password, RequestId: c.id(a),
	})
	if err != nil {
		return err
	}
	return showUser(a, r.GetUser())
}

// roleArg names a role.
type roleArg struct {
	Role string `arg:"" help:"admin, auditor or operator."`
}

func (r roleArg) value() (authv1.Role, error) {
	role, err := enum("ROLE", r.Role, "ROLE_", authv1.Role_value)
	return authv1.Role(role), err
}

type userGrantCmd struct {
	userArg
	roleArg
	requestFlags
}

// Help implements kong.HelpProvider.
func (userGrantCmd) Help() string {
	return "It takes effect with the account's next access token, minutes later at most.\n\n" +
		examples("counterfoil user grant grace@example.com auditor")
}

// Run grants the role.
func (c *userGrantCmd) Run(ctx context.Context, a *app) error {
	role, err := c.value()
	if err != nil {
		return err
	}
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.users().GrantRole(ctx, &authv1.GrantRoleRequest{Parent: name, Role: role, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return a.out.result(r.GetRoleGrant(), [2]string{"granted", r.GetRoleGrant().GetName()})
}

type userRevokeCmd struct {
	userArg
	roleArg
	requestFlags
}

// Help implements kong.HelpProvider.
func (userRevokeCmd) Help() string {
	return "Auth refuses the account's tokens with that role at once; App and Admin until they expire, minutes later, do not.\n\n" +
		examples("counterfoil user revoke grace@example.com auditor")
}

// Run takes the role away.
func (c *userRevokeCmd) Run(ctx context.Context, a *app) error {
	role, err := c.value()
	if err != nil {
		return err
	}
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	grant := name + "/roleGrants/" + strings.ToLower(word(role, "ROLE_"))
	r, err := a.users().RevokeRole(ctx, &authv1.RevokeRoleRequest{Name: grant, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return a.out.result(r, [2]string{"revoked", grant})
}

type userRolesCmd struct {
	userArg
	pageFlags
}

// Help implements kong.HelpProvider.
func (userRolesCmd) Help() string { return examples("counterfoil user roles grace@example.com") }

// Run lists the roles.
func (c *userRolesCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	return list[*authv1.RoleGrant]{
		what:   "roles",
		header: []string{"ROLE", "SINCE (UTC)"},
		row: func(g *authv1.RoleGrant) []string {
			return []string{strings.ToLower(word(g.GetRole(), "ROLE_")), when(g.GetCreateTime())}
		},
		get: func(ctx context.Context, size int32, token string) ([]*authv1.RoleGrant, string, error) {
			r, err := a.users().ListRoleGrants(ctx, &authv1.ListRoleGrantsRequest{Parent: name, PageSize: size, PageToken: token})
			return r.GetRoleGrants(), r.GetNextPageToken(), err
		},
	}.show(ctx, a, c.pageFlags)
}
