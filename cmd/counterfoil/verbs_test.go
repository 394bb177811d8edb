// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// verb is one command line, what the services answer, what is asked of them, and what a person then sees.
type verb struct {
	name    string
	args    string // separated by spaces
	stdin   string
	answers map[string]proto.Message
	method  string        // the one that matters
	asks    proto.Message // its request, without its request id; nil is not compared
	table   string
}

// check runs the command twice: for a person, and for a script.
func (v verb) check(t *testing.T) {
	t.Helper()
	w := newWorld(t)
	for method, message := range v.answers {
		w.says(method, message)
	}
	args := strings.Fields(v.args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "·", " ")
	}
	o := w.runWith(strings.NewReader(v.stdin), args...)
	if o.code != exitOK {
		t.Fatalf("exit code %d\n%s", o.code, o.err)
	}
	same(t, o.out, v.table)
	if v.asks != nil {
		got := w.asked(v.method)
		if len(got) == 0 {
			t.Fatalf("%s was not called", v.method)
		}
		if diff := cmp.Diff(v.asks, got[0].request, protocmp.Transform(), ignoreRequestID(got[0].request)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", v.method, diff)
		}
		if id, ok := got[0].request.(interface{ GetRequestId() string }); ok && id.GetRequestId() == "" {
			t.Errorf("%s has no request id: it cannot be repeated safely", v.method)
		}
	}
	o = w.runWith(strings.NewReader(v.stdin), append(args, "-o", "json")...)
	if o.code != exitOK {
		t.Fatalf("-o json: exit code %d\n%s", o.code, o.err)
	}
	checkJSON(t, o.out)
}

func ignoreRequestID(m proto.Message) cmp.Option {
	if m.ProtoReflect().Descriptor().Fields().ByName("request_id") == nil {
		return cmp.Options{}
	}
	return protocmp.IgnoreFields(m, "request_id")
}

// checkJSON demands one JSON document, or one a line.
func checkJSON(t *testing.T, text string) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	for n := 0; ; n++ {
		var document map[string]any
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) && n > 0 {
			return
		}
		if err != nil {
			t.Fatalf("not JSON: %v\n%s", err, text)
		}
	}
}

func ada() *authv1.User {
	return &authv1.User{
		Name: "users/" + userID, Email: "ada@example.com", DisplayName: "Ada Lovelace", State: authv1.User_STATE_ACTIVE,
		Roles: []authv1.Role{authv1.Role_ROLE_ADMIN, authv1.Role_ROLE_AUDITOR}, Etag: "3", CreateTime: at(9, 0), UpdateTime: at(9, 30),
	}
}

func session() *authv1.Session {
	return &authv1.Session{
		Name: "users/" + userID + "/sessions/" + sessionID, State: authv1.Session_STATE_ACTIVE, CreateTime: at(10, 0),
		LastSeenTime: at(11, 0), ExpireTime: at(22, 0), Etag: "1",
	}
}

func policy() *authv1.LoginPolicy {
	return &authv1.LoginPolicy{
		Name: "loginPolicy", MinPasswordLength: 12, MaxFailedAttempts: 5, LockoutDuration: durationpb.New(15 * time.Minute),
		SessionDuration: durationpb.New(12 * time.Hour), AllowedNetworks: []string{"10.0.0.0/8", "127.0.0.0/8"}, Etag: "2", UpdateTime: at(9, 0),
	}
}

func apollo() *appv1.Project {
	return &appv1.Project{
		Name: "projects/" + projectID, Slug: "apollo", DisplayName: "Apollo", Description: "To the moon", State: appv1.ProjectState_PROJECT_STATE_ACTIVE,
		Creator: userID, Etag: "1", CreateTime: at(9, 0), UpdateTime: at(9, 0),
	}
}

func member() *appv1.Member {
	return &appv1.Member{
		Name: "projects/" + projectID + "/members/" + memberID, User: userID2, Role: appv1.MemberRole_MEMBER_ROLE_EDITOR,
		Etag: "1", CreateTime: at(9, 0), UpdateTime: at(9, 0),
	}
}

const adaTable = `
user     users/01980000-0000-7000-8000-0000000000a1
email    ada@example.com
name     Ada Lovelace
state    ACTIVE
roles    admin, auditor
etag     3
created  2026-11-30 09:00:00 UTC
changed  2026-11-30 09:30:00 UTC
`

const policyTable = `
minimum password length  12
attempts until lock-out  5
lock-out                 15m0s
session                  12h0m0s
allowed networks         10.0.0.0/8, 127.0.0.0/8
etag                     2
changed                  2026-11-30 09:00:00 UTC
`

const apolloTable = `
project      projects/01980000-0000-7000-8000-0000000000c1
slug         apollo
name         Apollo
description  To the moon
state        ACTIVE
creator      01980000-0000-7000-8000-0000000000a1
etag         1
created      2026-11-30 09:00:00 UTC
changed      2026-11-30 09:00:00 UTC
`

const memberTable = `
member   projects/01980000-0000-7000-8000-0000000000c1/members/01980000-0000-7000-8000-0000000000d1
user     01980000-0000-7000-8000-0000000000a2
role     EDITOR
etag     1
added    2026-11-30 09:00:00 UTC
changed  2026-11-30 09:00:00 UTC
`

func one(method string, m proto.Message) map[string]proto.Message {
	return map[string]proto.Message{method: m}
}

// accountVerbs are the commands about accounts, sessions and the policy.
func accountVerbs() []verb {
	name := "users/" + userID
	grant := &authv1.RoleGrant{Name: name + "/roleGrants/operator", Role: authv1.Role_ROLE_OPERATOR, CreateTime: at(9, 0)}
	return []verb{
		{
			name: "create", args: "user create ada@example.com --display-name Ada·Lovelace", stdin: "correct horse\n",
			answers: one("UserService/CreateUser", &authv1.CreateUserResponse{User: ada()}), method: "UserService/CreateUser",
			asks:  &authv1.CreateUserRequest{User: &authv1.User{Email: "ada@example.com", DisplayName: "Ada Lovelace"}, Password: "correct horse"},
			table: adaTable,
		},
		{
			name: "get by id", args: "user get " + userID, answers: one("UserService/GetUser", &authv1.GetUserResponse{User: ada()}),
			method: "UserService/GetUser", asks: &authv1.GetUserRequest{Name: name}, table: adaTable,
		},
		{
			name: "get by address", args: "user get ada@example.com", method: "UserService/GetUser", asks: &authv1.GetUserRequest{Name: name},
			answers: map[string]proto.Message{
				"UserService/ListUsers": &authv1.ListUsersResponse{Users: []*authv1.User{ada()}},
				"UserService/GetUser":   &authv1.GetUserResponse{User: ada()},
			},
			table: adaTable,
		},
		{
			name: "list", args: "user list", answers: one("UserService/ListUsers", &authv1.ListUsersResponse{Users: []*authv1.User{ada()}}),
			method: "UserService/ListUsers", asks: &authv1.ListUsersRequest{PageSize: 50},
			table: `
USER                                        EMAIL            NAME          STATE   ROLES           CREATED (UTC)
users/01980000-0000-7000-8000-0000000000a1  ada@example.com  Ada Lovelace  ACTIVE  admin, auditor  2026-11-30 09:00:00
`,
		},
		{
			name: "update", args: "user update me --display-name Ada --etag 3", answers: one("UserService/UpdateUser", &authv1.UpdateUserResponse{User: ada()}),
			method: "UserService/UpdateUser",
			asks: &authv1.UpdateUserRequest{
				User: &authv1.User{Name: name, DisplayName: "Ada", Etag: "3"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}},
			},
			table: adaTable,
		},
		{
			name: "disable", args: "user disable " + userID + " --etag 3", answers: one("UserService/DisableUser", &authv1.DisableUserResponse{User: ada()}),
			method: "UserService/DisableUser", asks: &authv1.DisableUserRequest{Name: name, Etag: "3"}, table: adaTable,
		},
		{
			name: "enable", args: "user enable " + name, answers: one("UserService/EnableUser", &authv1.EnableUserResponse{User: ada()}),
			method: "UserService/EnableUser", asks: &authv1.EnableUserRequest{Name: name}, table: adaTable,
		},
		{
			name: "unlock", args: "user unlock " + name, answers: one("UserService/UnlockUser", &authv1.UnlockUserResponse{User: ada()}),
			method: "UserService/UnlockUser", asks: &authv1.UnlockUserRequest{Name: name}, table: adaTable,
		},
		{
			name: "delete", args: "user delete --yes " + name, answers: one("UserService/DeleteUser", &authv1.DeleteUserResponse{}),
			method: "UserService/DeleteUser", asks: &authv1.DeleteUserRequest{Name: name}, table: "deleted  " + name + "\n",
		},
		{
			name: "reset-password", args: "user reset-password " + name + " --password-file -", stdin: "battery staple",
			answers: one("UserService/ResetPassword", &authv1.ResetPasswordResponse{User: ada()}), method: "UserService/ResetPassword",
			asks: &authv1.ResetPasswordRequest{Name: name, NewPassword: "battery staple"}, table: adaTable,
		},
		{
			name: "change-password", args: "user change-password", stdin: "old secret\nnew secret\n",
			answers: one("AuthService/ChangePassword", &authv1.ChangePasswordResponse{User: ada()}), method: "AuthService/ChangePassword",
			asks: &authv1.ChangePasswordRequest{CurrentPassword: "old secret", NewPassword: "new secret"}, table: adaTable,
		},
		{
			name: "grant", args: "user grant " + name + " operator", answers: one("UserService/GrantRole", &authv1.GrantRoleResponse{RoleGrant: grant}),
			method: "UserService/GrantRole", asks: &authv1.GrantRoleRequest{Parent: name, Role: authv1.Role_ROLE_OPERATOR},
			table: "granted  " + grant.GetName() + "\n",
		},
		{
			name: "revoke", args: "user revoke " + name + " OPERATOR", answers: one("UserService/RevokeRole", &authv1.RevokeRoleResponse{}),
			method: "UserService/RevokeRole", asks: &authv1.RevokeRoleRequest{Name: name + "/roleGrants/operator"},
			table: "revoked  " + grant.GetName() + "\n",
		},
		{
			name: "roles", args: "user roles me", answers: one("UserService/ListRoleGrants", &authv1.ListRoleGrantsResponse{RoleGrants: []*authv1.RoleGrant{grant}}),
			method: "UserService/ListRoleGrants", asks: &authv1.ListRoleGrantsRequest{Parent: name, PageSize: 50},
			table: "ROLE      SINCE (UTC)\noperator  2026-11-30 09:00:00\n",
		},
		{
			name: "policy get", args: "policy get", answers: one("LoginPolicyService/GetLoginPolicy", &authv1.GetLoginPolicyResponse{LoginPolicy: policy()}),
			method: "LoginPolicyService/GetLoginPolicy", asks: &authv1.GetLoginPolicyRequest{Name: "loginPolicy"}, table: policyTable,
		},
		{
			name: "policy set", args: "policy set --min-password-length 12 --lockout 15m --etag 1",
			answers: one("LoginPolicyService/UpdateLoginPolicy", &authv1.UpdateLoginPolicyResponse{LoginPolicy: policy()}),
			method:  "LoginPolicyService/UpdateLoginPolicy",
			asks: &authv1.UpdateLoginPolicyRequest{
				LoginPolicy: &authv1.LoginPolicy{Name: "loginPolicy", MinPasswordLength: 12, LockoutDuration: durationpb.New(15 * time.Minute), Etag: "1"},
				UpdateMask:  &fieldmaskpb.FieldMask{Paths: []string{"min_password_length", "lockout_duration"}},
			},
			table: policyTable,
		},
		{
			name: "policy set, networks cleared", args: "policy set --allow-any-network",
			answers: one("LoginPolicyService/UpdateLoginPolicy", &authv1.UpdateLoginPolicyResponse{LoginPolicy: policy()}),
			method:  "LoginPolicyService/UpdateLoginPolicy",
			asks: &authv1.UpdateLoginPolicyRequest{
				LoginPolicy: &authv1.LoginPolicy{Name: "loginPolicy"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"allowed_networks"}},
			},
			table: policyTable,
		},
		{
			name: "session list", args: "session list", answers: one("SessionService/ListSessions", &authv1.ListSessionsResponse{Sessions: []*authv1.Session{session()}}),
			method: "SessionService/ListSessions", asks: &authv1.ListSessionsRequest{Parent: name, PageSize: 50},
			table: `
SESSION                               STATE   LOGGED IN (UTC)      LAST SEEN (UTC)      ENDS (UTC)           REASON
01980000-0000-7000-8000-0000000000b1  ACTIVE  2026-11-30 10:00:00  2026-11-30 11:00:00  2026-11-30 22:00:00  -
`,
		},
		{
			name: "session revoke", args: "session revoke " + sessionID, answers: one("SessionService/RevokeSession", &authv1.RevokeSessionResponse{Session: session()}),
			method: "SessionService/RevokeSession", asks: &authv1.RevokeSessionRequest{Name: session().GetName()},
			table: "revoked  " + session().GetName() + "\n",
		},
		{
			name: "session revoke all", args: "session revoke --all --user " + userID2 + " -y",
			answers: one("SessionService/RevokeUserSessions", &authv1.RevokeUserSessionsResponse{RevokedCount: 3}),
			method:  "SessionService/RevokeUserSessions", asks: &authv1.RevokeUserSessionsRequest{Parent: "users/" + userID2},
			table: "revoked sessions  3\n",
		},
	}
}

func TestAccountVerbs(t *testing.T) {
	t.Parallel()
	for _, v := range accountVerbs() {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			v.check(t)
		})
	}
}

// projectVerbs are the commands about projects and members.
func projectVerbs(importFile string) []verb {
	name := "projects/" + projectID
	found := &appv1.ListProjectsResponse{Projects: []*appv1.Project{apollo()}}
	members := &appv1.ListMembersResponse{Members: []*appv1.Member{member()}}
	with := func(method string, m proto.Message) map[string]proto.Message {
		return map[string]proto.Message{"ProjectService/ListProjects": found, "ProjectService/ListMembers": members, method: m}
	}
	return []verb{
		{
			name: "create", args: "project create apollo --display-name Apollo --description To·the·moon",
			answers: one("ProjectService/CreateProject", &appv1.CreateProjectResponse{Project: apollo()}), method: "ProjectService/CreateProject",
			asks:  &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: "apollo", DisplayName: "Apollo", Description: "To the moon"}},
			table: apolloTable,
		},
		{
			name: "get by slug", args: "project get apollo", answers: with("ProjectService/GetProject", &appv1.GetProjectResponse{Project: apollo()}),
			method: "ProjectService/GetProject", asks: &appv1.GetProjectRequest{Name: name}, table: apolloTable,
		},
		{
			name: "list", args: "project list --archived --limit 7", answers: one("ProjectService/ListProjects", found),
			method: "ProjectService/ListProjects", asks: &appv1.ListProjectsRequest{PageSize: 7, ShowArchived: true},
			table: `
SLUG    NAME    STATE   CREATED (UTC)        PROJECT
apollo  Apollo  ACTIVE  2026-11-30 09:00:00  projects/01980000-0000-7000-8000-0000000000c1
`,
		},
		{
			name: "update", args: "project update " + name + " --description=", answers: one("ProjectService/UpdateProject", &appv1.UpdateProjectResponse{Project: apollo()}),
			method: "ProjectService/UpdateProject",
			asks:   &appv1.UpdateProjectRequest{Project: &appv1.Project{Name: name}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"description"}}},
			table:  apolloTable,
		},
		{
			name: "archive", args: "project archive apollo", answers: with("ProjectService/ArchiveProject", &appv1.ArchiveProjectResponse{Project: apollo()}),
			method: "ProjectService/ArchiveProject", asks: &appv1.ArchiveProjectRequest{Name: name}, table: apolloTable,
		},
		{
			name: "restore", args: "project restore apollo", answers: with("ProjectService/RestoreProject", &appv1.RestoreProjectResponse{Project: apollo()}),
			method: "ProjectService/RestoreProject", asks: &appv1.RestoreProjectRequest{Name: name}, table: apolloTable,
		},
		{
			name: "delete", args: "project delete apollo -y --etag 4", answers: with("ProjectService/DeleteProject", &appv1.DeleteProjectResponse{}),
			method: "ProjectService/DeleteProject", asks: &appv1.DeleteProjectRequest{Name: name, Etag: "4"}, table: "deleted  " + name + "\n",
		},
		{
			name: "members", args: "project members apollo", answers: with("ProjectService/ListMembers", members),
			method: "ProjectService/ListMembers", asks: &appv1.ListMembersRequest{Parent: name, PageSize: 50},
			table: "USER                                  ROLE    ADDED (UTC)          MEMBER\n" +
				userID2 + "  EDITOR  2026-11-30 09:00:00  " + member().GetName() + "\n",
		},
		{
			name: "add-member", args: "project add-member apollo " + userID2 + " editor", answers: with("ProjectService/AddMember", &appv1.AddMemberResponse{Member: member()}),
			method: "ProjectService/AddMember", table: memberTable,
			asks: &appv1.AddMemberRequest{Parent: name, Member: &appv1.Member{User: userID2, Role: appv1.MemberRole_MEMBER_ROLE_EDITOR}},
		},
		{
			name: "set-role", args: "project set-role apollo " + userID2 + " owner --etag 1", answers: with("ProjectService/UpdateMember", &appv1.UpdateMemberResponse{Member: member()}),
			method: "ProjectService/UpdateMember", table: memberTable,
			asks: &appv1.UpdateMemberRequest{
				Member:     &appv1.Member{Name: member().GetName(), Role: appv1.MemberRole_MEMBER_ROLE_OWNER, Etag: "1"},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"role"}},
			},
		},
		{
			name: "remove-member", args: "project remove-member apollo " + member().GetName(), answers: with("ProjectService/RemoveMember", &appv1.RemoveMemberResponse{}),
			method: "ProjectService/RemoveMember", asks: &appv1.RemoveMemberRequest{Name: member().GetName()}, table: "removed  " + member().GetName() + "\n",
		},
		{
			name: "import", args: "project import apollo " + importFile, answers: with("ProjectService/ImportMembers", &appv1.ImportMembersResponse{ImportedCount: 2}),
			method: "ProjectService/ImportMembers", table: "imported members  2\n",
			asks: &appv1.ImportMembersRequest{Parent: name, Members: []*appv1.ImportedMember{
				{User: userID, Role: appv1.MemberRole_MEMBER_ROLE_OWNER}, {User: userID2, Role: appv1.MemberRole_MEMBER_ROLE_VIEWER},
			}},
		},
	}
}

func TestProjectVerbs(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/members.csv"
	if err := os.WriteFile(file, []byte("user,role\n"+userID+",owner\n"+userID2+",VIEWER\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, v := range projectVerbs(file) {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			v.check(t)
		})
	}
}
