// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// examples is the end of a command's help.
func examples(lines ...string) string {
	return "Examples:\n\n    " + strings.Join(lines, "\n    ") + "\n"
}

type loginCmd struct {
	Email        string `arg:"" help:"The account's address."`
	PasswordFile string `placeholder:"FILE" help:"File whose first line is the password; - is the standard input."`
}

// Help implements kong.HelpProvider.
func (loginCmd) Help() string {
	return `The password is asked for without showing it, or read from the standard input if that is no terminal. The tokens are
kept in a file that only you can read and are refreshed when needed. Addresses and TLS settings are kept with them.

` + examples(
		"counterfoil login ada@example.com",
		"counterfoil login ada@example.com --password-file /run/secrets/ada",
		"counterfoil login ada@example.com --auth auth.example.com:443 --app app.example.com:443 --admin admin.example.com:443 --tls")
}

// Run logs in and keeps the tokens.
func (c *loginCmd) Run(ctx context.Context, a *app) error {
	speakTLS, caFile, err := a.security()
	if err != nil {
		return err
	}
	if caFile != "" {
		if caFile, err = filepath.Abs(caFile); err != nil {
			return usage("--ca-file: %v", err)
		}
	}
	remote := a.conn(serviceAuth)
	if err := remote.dial(); err != nil { // before the password is asked for
		return err
	}
	password, err := a.password("Password", c.PasswordFile)
	if err != nil {
		return err
	}
	r, err := authv1.NewAuthServiceClient(remote).Login(ctx, &authv1.LoginRequest{Email: c.Email, Password: password})
	if err != nil {
		return err
	}
	login := &loginFile{
		Auth: a.address(serviceAuth), App: a.address(serviceApp), Admin: a.address(serviceAdmin), TLS: speakTLS, CAFile: caFile,
		User: r.GetUser().GetName(), Email: r.GetUser().GetEmail(),
	}
	login.keep(r.GetTokens())
	if err := a.save(login); err != nil {
		return err
	}
	return showSelf(a, r.GetUser(), r.GetSession())
}

// showSelf prints who is logged in, and never a token.
func showSelf(a *app, u *authv1.User, s *authv1.Session) error {
	return a.out.result(&authv1.GetSelfResponse{User: u, Session: s},
		[2]string{"logged in as", u.GetDisplayName() + " <" + u.GetEmail() + ">"},
		[2]string{"roles", or(roles(u), "none")},
		[2]string{"user", u.GetName()},
		[2]string{"session", s.GetName()},
		[2]string{"until", whenUTC(s.GetExpireTime())},
		[2]string{"auth", a.address(serviceAuth)},
		[2]string{"app", a.address(serviceApp)},
		[2]string{"admin", a.address(serviceAdmin)},
	)
}

type logoutCmd struct {
	Forget bool `help:"Only forget the tokens here; the session lives on until it expires or is revoked."`
}

// Help implements kong.HelpProvider.
func (logoutCmd) Help() string { return examples("counterfoil logout", "counterfoil logout --forget") }

// Run ends the session, then forgets the tokens.
func (c *logoutCmd) Run(ctx context.Context, a *app) error {
	if c.Forget {
		return a.forget()
	}
	login, err := a.saved()
	switch {
	case err != nil:
		return err
	case login == nil:
		a.note("nobody is logged in")
		return nil
	}
	_, err = authv1.NewAuthServiceClient(a.conn(serviceAuth)).Logout(ctx, &authv1.LogoutRequest{})
	if s, answered := statusOf(err); err != nil && (!answered || s.Code() != codes.Unauthenticated) { // then the session is over already
		if _, own := errors.AsType[*failure](err); own {
			return err
		}
		a.note("the session goes on: try again, or use --forget to remove its tokens from this computer alone")
		return err
	}
	return a.forget()
}

type whoamiCmd struct{}

// Help implements kong.HelpProvider.
func (whoamiCmd) Help() string { return examples("counterfoil whoami", "counterfoil whoami -o json") }

// Run asks Auth who the caller is.
func (whoamiCmd) Run(ctx context.Context, a *app) error {
	r, err := authv1.NewAuthServiceClient(a.conn(serviceAuth)).GetSelf(ctx, &authv1.GetSelfRequest{})
	if err != nil {
		return err
	}
	return showSelf(a, r.GetUser(), r.GetSession())
}
