// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"
	"strings"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

type sessionCmd struct {
	List   sessionListCmd   `cmd:"" help:"List a user's sessions, newest first."`
	Revoke sessionRevokeCmd `cmd:"" help:"End one session, or all of a user."`
}

func (a *app) sessions() authv1.SessionServiceClient {
	return authv1.NewSessionServiceClient(a.conn(serviceAuth))
}

type sessionListCmd struct {
	User string `arg:"" default:"me" help:"Id, users/ID, address, or me."`
	pageFlags
}

// Help implements kong.HelpProvider.
func (sessionListCmd) Help() string {
	return examples("counterfoil session list", "counterfoil session list grace@example.com --all -o json")
}

// Run lists the sessions.
func (c *sessionListCmd) Run(ctx context.Context, a *app) error {
	parent, err := a.userName(ctx, c.User)
	if err != nil {
		return err
	}
	return list[*authv1.Session]{
		what:   "sessions",
		header: []string{"SESSION", "STATE", "LOGGED IN (UTC)", "LAST SEEN (UTC)", "ENDS (UTC)", "REASON"},
		row: func(s *authv1.Session) []string {
			ends := s.GetExpireTime()
			if s.GetEndTime() != nil {
				ends = s.GetEndTime()
			}
			return []string{
				s.GetName()[strings.LastIndexByte(s.GetName(), '/')+1:], word(s.GetState(), "STATE_"), when(s.GetCreateTime()),
				when(s.GetLastSeenTime()), when(ends), s.GetEndReason(),
			}
		},
		get: func(ctx context.Context, size int32, token string) ([]*authv1.Session, string, error) {
			r, err := a.sessions().ListSessions(ctx, &authv1.ListSessionsRequest{Parent: parent, PageSize: size, PageToken: token})
			return r.GetSessions(), r.GetNextPageToken(), err
		},
	}.show(ctx, a, c.pageFlags)
}

type sessionRevokeCmd struct {
	Session string `arg:"" optional:"" help:"Id, or users/ID/sessions/ID."`
	User    string `default:"me" placeholder:"USER" help:"Whose session: id, users/ID, address, or me."`
	All     bool   `help:"All active sessions of the user."`
	requestFlags
}

// Help implements kong.HelpProvider.
func (sessionRevokeCmd) Help() string {
	return "Access tokens that are out go on working at App and Admin until they expire, minutes later. --all asks first; without a terminal\nit needs --yes.\n\n" +
		examples("counterfoil session revoke 01980000-0000-7000-8000-000000000001",
			"counterfoil session revoke --user grace@example.com --all --yes")
}

// Run revokes one session or all.
func (c *sessionRevokeCmd) Run(ctx context.Context, a *app) error {
	if (c.Session == "") != c.All {
		return usage("give one session, or --all")
	}
	name := c.Session
	if !strings.HasPrefix(name, "users/") {
		parent, err := a.userName(ctx, c.User)
		if err != nil {
			return err
		}
		if c.All {
			return c.revokeAll(ctx, a, parent)
		}
		id, err := lastID("a session", name)
		if err != nil {
			return err
		}
		name = parent + "/sessions/" + id
	}
	r, err := a.sessions().RevokeSession(ctx, &authv1.RevokeSessionRequest{Name: name, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return a.out.result(r.GetSession(), [2]string{"revoked", r.GetSession().GetName()})
}

func (c *sessionRevokeCmd) revokeAll(ctx context.Context, a *app, parent string) error {
	if err := a.confirm("Revoke all sessions of %s (%s)?", c.User, parent); err != nil {
		return err
	}
	r, err := a.sessions().RevokeUserSessions(ctx, &authv1.RevokeUserSessionsRequest{Parent: parent, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return a.out.result(r, [2]string{"revoked sessions", strconv.Itoa(int(r.GetRevokedCount()))})
}
