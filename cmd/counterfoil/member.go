// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
)

// memberArg names a member of a project.
type memberArg struct {
	Member string `arg:"" help:"The user: id, users/ID, address, or me; or projects/ID/members/ID."`
}

// name returns "projects/ID/members/ID". A user is looked for among the project's members.
func (m memberArg) name(ctx context.Context, a *app, project string) (string, error) {
	if strings.Contains(m.Member, "/members/") {
		return m.Member, nil
	}
	user, err := a.userID(ctx, m.Member)
	if err != nil {
		return "", err
	}
	found := ""
	_, err = pages(ctx, pageFlags{All: true}, a.members(project), func(items []*appv1.Member) error {
		for _, item := range items {
			if item.GetUser() == user {
				found = item.GetName()
			}
		}
		return nil
	})
	if err == nil && found == "" {
		err = &failure{code: exitNotFound, text: m.Member + " is not a member of the project", hint: "counterfoil project members PROJECT"}
	}
	return found, err
}

// userID is the id of an account, as App knows it.
func (a *app) userID(ctx context.Context, text string) (string, error) {
	name, err := a.userName(ctx, text)
	return strings.TrimPrefix(name, "users/"), err
}

// members pages through a project's members.
func (a *app) members(project string) fetch[*appv1.Member] {
	return func(ctx context.Context, size int32, token string) ([]*appv1.Member, string, error) {
		r, err := a.projects().ListMembers(ctx, &appv1.ListMembersRequest{Parent: project, PageSize: size, PageToken: token})
		return r.GetMembers(), r.GetNextPageToken(), err
	}
}

// memberRole reads a role that a person typed.
func memberRole(flag, text string) (appv1.MemberRole, error) {
	role, err := enum(flag, text, "MEMBER_ROLE_", appv1.MemberRole_value)
	return appv1.MemberRole(role), err
}

func showMember(a *app, m *appv1.Member) error {
	return a.out.result(m,
		[2]string{"member", m.GetName()},
		[2]string{"user", m.GetUser()},
		[2]string{"role", word(m.GetRole(), "MEMBER_ROLE_")},
		[2]string{"etag", m.GetEtag()},
		[2]string{"added", whenUTC(m.GetCreateTime())},
		[2]string{"changed", whenUTC(m.GetUpdateTime())},
	)
}

type membersCmd struct {
	projectArg
	pageFlags
}

// Help implements kong.HelpProvider.
func (membersCmd) Help() string {
	return examples("counterfoil project members apollo", "counterfoil project members apollo --all -o json")
}

// Run lists the members.
func (c *membersCmd) Run(ctx context.Context, a *app) error {
	project, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	return list[*appv1.Member]{
		what:   "members",
		header: []string{"USER", "ROLE", "ADDED (UTC)", "MEMBER"},
		row: func(m *appv1.Member) []string {
			return []string{m.GetUser(), word(m.GetRole(), "MEMBER_ROLE_"), when(m.GetCreateTime()), m.GetName()}
		},
		get: a.members(project),
	}.show(ctx, a, c.pageFlags)
}

type addMemberCmd struct {
	projectArg
	User string `arg:"" help:"Id, users/ID, address, or me."`
	Role string `arg:"" help:"viewer, editor or owner."`
	requestFlags
}

// Help implements kong.HelpProvider.
func (addMemberCmd) Help() string {
	return examples("counterfoil project add-member apollo grace@example.com editor")
}

// Run adds the member.
func (c *addMemberCmd) Run(ctx context.Context, a *app) error {
	role, err := memberRole("ROLE", c.Role)
	if err != nil {
		return err
	}
	user, err := a.userID(ctx, c.User)
	if err != nil {
		return err
	}
	project, err := c.name(ctx, a)
	if err != nil {
		return err
	}
	r, err := a.projects().AddMember(ctx, &appv1.AddMemberRequest{
		Parent: project, Member: &appv1.Member{User: user, Role: role}, RequestId: c.id(a),
	})
	if err != nil {
		return err
	}
	return showMember(a, r.GetMember())
}

type setRoleCmd struct {
	projectArg
	memberArg
	Role string `arg:"" help:"viewer, editor or owner."`
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (setRoleCmd) Help() string {
	return examples("counterfoil project set-role apollo grace@example.com owner")
}

// Run changes the role.
func (c *setRoleCmd) Run(ctx context.Context, a *app) error {
	role, err := memberRole("ROLE", c.Role)
	if err != nil {
		return err
	}
	project, err := c.projectArg.name(ctx, a)
	if err != nil {
		return err
	}
	member, err := c.memberArg.name(ctx, a, project)
	if err != nil {
		return err
	}
	var mask maskBuilder
	mask.add("role")
	r, err := a.projects().UpdateMember(ctx, &appv1.UpdateMemberRequest{
		Member: &appv1.Member{Name: member, Role: role, Etag: c.Etag}, UpdateMask: mask.mask(), RequestId: c.id(a),
	})
	if err != nil {
		return err
	}
	return showMember(a, r.GetMember())
}

type removeMemberCmd struct {
	projectArg
	memberArg
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (removeMemberCmd) Help() string {
	return examples("counterfoil project remove-member apollo grace@example.com")
}

// Run removes the member.
func (c *removeMemberCmd) Run(ctx context.Context, a *app) error {
	project, err := c.projectArg.name(ctx, a)
	if err != nil {
		return err
	}
	member, err := c.memberArg.name(ctx, a, project)
	if err != nil {
		return err
	}
	r, err := a.projects().RemoveMember(ctx, &appv1.RemoveMemberRequest{Name: member, Etag: c.Etag, RequestId: c.id(a)})
	if err != nil {
		return err
	}
	return a.out.result(r, [2]string{"removed", member})
}
