// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

type userCmd struct {
	Create         userCreateCmd     `cmd:"" help:"Make an account."`
	Get            userGetCmd        `cmd:"" help:"Show an account."`
	List           userListCmd       `cmd:"" help:"List accounts, oldest first."`
	Update         userUpdateCmd     `cmd:"" help:"Change an account's address or name."`
	Disable        userDisableCmd    `cmd:"" help:"Keep an account from logging in and revoke its sessions."`
	Enable         userEnableCmd     `cmd:"" help:"Let a disabled account log in again."`
	Unlock         userUnlockCmd     `cmd:"" help:"Lift the lock-out after failed attempts."`
	Delete         userDeleteCmd     `cmd:"" help:"Delete an account with its sessions and roles, for good."`
	ResetPassword  resetPasswordCmd  `cmd:"" help:"Set somebody's password, lift the lock-out and revoke the sessions."`
	ChangePassword changePasswordCmd `cmd:"" help:"Set one's own password and revoke one's other sessions."`
	Grant          userGrantCmd      `cmd:"" help:"Give an account a role."`
	Revoke         userRevokeCmd     `cmd:"" help:"Take a role from an account."`
	Roles          userRolesCmd      `cmd:"" help:"List an account's roles and since when it has them."`
}

// requestFlags make a change safe to repeat.
type requestFlags struct {
	RequestID string `placeholder:"UUID" help:"Makes this change safe to repeat: the same id changes nothing twice within 24 hours. Made up if left out."`
}

func (r requestFlags) id(a *app) string { return or(r.RequestID, a.newID()) }

// etagFlags guard a change against somebody else's.
type etagFlags struct {
	Etag string `placeholder:"ETAG" help:"Change only this version; get shows it."`
}

// userArg names an account.
type userArg struct {
	User string `arg:"" help:"Id, users/ID, address, or me."`
}

// name returns "users/ID". An address is looked up at Auth, which needs the role admin.
func (u userArg) name(ctx context.Context, a *app) (string, error) { return a.userName(ctx, u.User) }

func (a *app) userName(ctx context.Context, text string) (string, error) {
	switch {
	case text == "me":
		login, err := a.saved()
		if err != nil {
			return "", err
		}
		if login == nil {
			return "", &failure{code: exitDenied, text: "nobody is logged in", hint: "counterfoil login EMAIL"}
		}
		return login.User, nil
	case strings.Contains(text, "@"):
		r, err := a.users().ListUsers(ctx, &authv1.ListUsersRequest{Email: text})
		if err != nil {
			return "", err
		}
		if len(r.GetUsers()) == 0 {
			return "", &failure{code: exitNotFound, text: "no account has the address " + text}
		}
		return r.GetUsers()[0].GetName(), nil
	default:
		id, err := lastID("a user", text)
		return "users/" + id, err
	}
}

func (a *app) users() authv1.UserServiceClient {
	return authv1.NewUserServiceClient(a.conn(serviceAuth))
}

// roles shows an account's roles: "admin, auditor".
func roles(u *authv1.User) string {
	var names []string
	for _, role := range u.GetRoles() {
		names = append(names, strings.ToLower(word(role, "ROLE_")))
	}
	return strings.Join(names, ", ")
}

func showUser(a *app, u *authv1.User) error {
	return a.out.result(u,
		[2]string{"user", u.GetName()},
		[2]string{"email", u.GetEmail()},
		[2]string{"name", u.GetDisplayName()},
		[2]string{"state", word(u.GetState(), "STATE_")},
		[2]string{"roles", or(roles(u), "none")},
		[2]string{"locked until", whenUTC(u.GetLockExpireTime())},
		[2]string{"etag", u.GetEtag()},
		[2]string{"created", whenUTC(u.GetCreateTime())},
		[2]string{"changed", whenUTC(u.GetUpdateTime())},
	)
}

type userCreateCmd struct {
	Email        string   `arg:"" help:"The address to log in with."`
	DisplayName  string   `required:"" placeholder:"NAME" help:"What people call the user."`
	PasswordFile string   `placeholder:"FILE" help:"File whose first line is the password; - is the standard input."`
	Role         []string `placeholder:"ROLE" help:"Roles to grant at once: admin, auditor, operator."`
	requestFlags
}

// Help implements kong.HelpProvider.
func (userCreateCmd) Help() string {
	return examples(
		`counterfoil user create grace@example.com --display-name "Grace Hopper"`,
		`counterfoil user create olga@example.com --display-name Olga --role operator --password-file olga.txt -o json`)
}

// Run makes the account, then grants the roles one by one.
func (c *userCreateCmd) Run(ctx context.Context, a *app) error {
	var wanted []authv1.Role
	for _, text := range c.Role {
		role, err := enum("--role", text, "ROLE_", authv1.Role_value)
		if err != nil {
			return err
		}
		wanted = append(wanted, authv1.Role(role))
	}
	password, err := a.newPassword(c.PasswordFile)
	if err != nil {
		return err
	}
	r, err := a.users().CreateUser(ctx, &authv1.CreateUserRequest{
		User: &authv1.User{Email: c.Email, DisplayName: c.DisplayName}, Password: password, RequestId: c.id(a),
	})
	if err != nil {
		return err
	}
	user := r.GetUser()
	for _, role := range wanted {
		if _, err := a.users().GrantRole(ctx, &authv1.GrantRoleRequest{Parent: user.GetName(), Role: role, RequestId: a.newID()}); err != nil {
			a.note("the account %s was made, but not all of its roles were granted", user.GetName())
			return err
		}
		user.Roles = append(user.Roles, role)
	}
	return showUser(a, user)
}

type userGetCmd struct{ userArg }

// Help implements kong.HelpProvider.
func (userGetCmd) Help() string {
	return examples("counterfoil user get me", "counterfoil user get grace@example.com -o json")
}

// Run shows the account.
func (c *userGetCmd) Run(ctx context.Context, a *app) error {
	name, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.users().GetUser(ctx, &authv1.GetUserRequest{Name: name})
	if err != nil {
		return err
	}
	return showUser(a, r.GetUser())
}

type userListCmd struct {
	Email string `placeholder:"ADDRESS" help:"Only the account with this address."`
	pageFlags
}

// Help implements kong.HelpProvider.
func (userListCmd) Help() string {
	return examples("counterfoil user list", "counterfoil user list --all -o json | jq -r .email")
}

// Run lists the accounts.
func (c *userListCmd) Run(ctx context.Context, a *app) error {
	return list[*authv1.User]{
		what:   "accounts",
		header: []string{"USER", "EMAIL", "NAME", "STATE", "ROLES", "CREATED (UTC)"},
		row: func(u *authv1.User) []string {
			state := word(u.GetState(), "STATE_")
			if u.GetLockExpireTime() != nil {
				state += ", LOCKED"
			}
			return []string{u.GetName(), u.GetEmail(), u.GetDisplayName(), state, roles(u), when(u.GetCreateTime())}
		},
		get: func(ctx context.Context, size int32, token string) ([]*authv1.User, string, error) {
			r, err := a.users().ListUsers(ctx, &authv1.ListUsersRequest{PageSize: size, PageToken: token, Email: c.Email})
			return r.GetUsers(), r.GetNextPageToken(), err
		},
	}.show(ctx, a, c.pageFlags)
}

type userUpdateCmd struct {
	userArg
	Email       *string `placeholder:"ADDRESS" help:"The new address."`
	DisplayName *string `placeholder:"NAME" help:"The new name."`
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (userUpdateCmd) Help() string {
	return examples(`counterfoil user update grace@example.com --display-name "Rear Admiral Hopper"`)
}

// Run changes what was given.
func (c *userUpdateCmd) Run(ctx context.Context, a *app) error {
	change := &authv1.User{Etag: c.Etag}
	var mask maskBuilder
	mask.text("email", c.Email, &change.Email)
	mask.text("display_name", c.DisplayName, &change.DisplayName)
	if mask.empty() {
		return usage("nothing to change: give --email or --display-name")
	}
	var err error
	if change.Name, err = c.name(ctx, a); err != nil {
		return err
	}
	r, err := a.users().UpdateUser(ctx, &authv1.UpdateUserRequest{User: change, UpdateMask: mask.mask(), RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return showUser(a, r.GetUser())
}
