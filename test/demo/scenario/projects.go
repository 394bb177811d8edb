// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

const (
	viewer = appv1.MemberRole_MEMBER_ROLE_VIEWER
	editor = appv1.MemberRole_MEMBER_ROLE_EDITOR
)

// work makes projects and changes them; some of it is refused.
func (d *day) work() {
	d.chapter("Projects and members")
	d.apollo = d.newProject(d.ada, "apollo", "Apollo")
	d.hermes = d.newProject(d.ada, "hermes", "Hermes")
	call(d.nobody(), appv1.ProjectService_CreateProject_FullMethodName, d.projects.CreateProject, &appv1.CreateProjectRequest{
		Project: &appv1.Project{Slug: "no-token" + d.suffix, DisplayName: "No token"}, RequestId: uuid.NewString(),
	}, refused(codes.Unauthenticated, "app.call.refused"))

	d.add(d.ada, d.apollo, d.grace, editor, ok("app.member.added"))
	d.add(d.ada, d.apollo, d.grace, viewer, refused(codes.AlreadyExists, "app.member.refused"))
	// Ada's client got no answer and asks again: the same request id, and nothing happens twice.
	request := &appv1.AddMemberRequest{Parent: d.apollo.GetName(), Member: &appv1.Member{User: d.alan.id(), Role: viewer}, RequestId: uuid.NewString()}
	alan := call(d.as(d.ada), appv1.ProjectService_AddMember_FullMethodName, d.projects.AddMember, request, ok("app.member.added")).GetMember()
	call(d.as(d.ada), appv1.ProjectService_AddMember_FullMethodName, d.projects.AddMember, request, ok())

	d.archive(d.alan, d.apollo, notAllowed("app.project.refused")) // a viewer
	described := d.describe(d.as(d.grace), d.apollo, "To the moon", "", ok("app.project.updated"))
	d.describe(d.as(d.barbara), d.apollo, "To Mars", "", refused(codes.NotFound, "app.project.refused")) // no member: told nothing
	d.describe(d.as(d.ada), d.apollo, "To Venus", d.apollo.GetEtag(), refused(codes.Aborted, "app.project.refused"))
	d.describe(d.as(d.ada), d.apollo, "To the moon and back", described.GetEtag(), ok("app.project.updated"))
	d.promote(d.ada, alan, editor, ok("app.member.updated"))
	d.leave()
}

// describe sets a project's description.
func (d *day) describe(by caller, p *appv1.Project, text, etag string, want outcome) *appv1.Project {
	return call(by, appv1.ProjectService_UpdateProject_FullMethodName, d.projects.UpdateProject, &appv1.UpdateProjectRequest{
		Project:    &appv1.Project{Name: p.GetName(), Description: text, Etag: etag},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"description"}}, RequestId: uuid.NewString(),
	}, want).GetProject()
}

// promote changes a member's role.
func (d *day) promote(by *Person, m *appv1.Member, role appv1.MemberRole, want outcome) {
	call(d.as(by), appv1.ProjectService_UpdateMember_FullMethodName, d.projects.UpdateMember, &appv1.UpdateMemberRequest{
		Member:     &appv1.Member{Name: m.GetName(), Role: role},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"role"}}, RequestId: uuid.NewString(),
	}, want)
}

// leave has Ada, the only owner, try to leave her project.
func (d *day) leave() {
	members := call(d.as(d.ada), appv1.ProjectService_ListMembers_FullMethodName, d.projects.ListMembers,
		&appv1.ListMembersRequest{Parent: d.apollo.GetName()}, ok()).GetMembers()
	for _, m := range members {
		if m.GetUser() == d.ada.id() {
			call(d.as(d.ada), appv1.ProjectService_RemoveMember_FullMethodName, d.projects.RemoveMember, &appv1.RemoveMemberRequest{
				Name: m.GetName(), RequestId: uuid.NewString(),
			}, refused(codes.FailedPrecondition, "app.member.refused"))
		}
	}
}

// importMembers adds many members in one transaction.
func (d *day) importMembers(count int) {
	request := &appv1.ImportMembersRequest{Parent: d.hermes.GetName(), RequestId: uuid.NewString()}
	for range count {
		request.Members = append(request.Members, &appv1.ImportedMember{User: uuid.NewString(), Role: viewer})
	}
	call(d.as(d.ada), appv1.ProjectService_ImportMembers_FullMethodName, d.projects.ImportMembers, request,
		ok().times(count, "app.member.added"))
}

// evening ends what the day began.
func (d *day) evening(policy *authv1.LoginPolicy) {
	d.chapter("The end of the day")
	d.archive(d.ada, d.hermes, ok("app.project.archived"))
	d.describe(d.as(d.ada), d.hermes, "Too late", "", refused(codes.FailedPrecondition, "app.project.refused"))
	call(d.as(d.ada), appv1.ProjectService_RestoreProject_FullMethodName, d.projects.RestoreProject,
		&appv1.RestoreProjectRequest{Name: d.hermes.GetName(), RequestId: uuid.NewString()}, ok("app.project.restored"))
	call(d.as(d.ada), appv1.ProjectService_DeleteProject_FullMethodName, d.projects.DeleteProject,
		&appv1.DeleteProjectRequest{Name: d.apollo.GetName(), RequestId: uuid.NewString()},
		ok("app.project.deleted").times(3, "app.member.removed")) // Ada, Grace, Alan

	call(d.as(d.alan), adminv1.AuditLogService_ListAuditLogs_FullMethodName, d.audit.ListAuditLogs,
		&adminv1.ListAuditLogsRequest{}, notAllowed("admin.call.refused")) // Alan is no auditor
	call(d.as(d.root), authv1.UserService_DisableUser_FullMethodName, d.users.DisableUser,
		&authv1.DisableUserRequest{Name: d.alan.Name, RequestId: uuid.NewString()},
		ok("auth.user.disabled").times(2, "auth.session.revoked")) // from the morning, and after the lock-out
	d.tryLogIn(d.alan, d.alan.Password, refused(codes.Unauthenticated, "auth.login.denied"))
	call(d.as(d.root), authv1.UserService_DeleteUser_FullMethodName, d.users.DeleteUser,
		&authv1.DeleteUserRequest{Name: d.alan.Name, RequestId: uuid.NewString()},
		ok("auth.user.deleted").times(2, "auth.session.deleted"))
	call(d.as(d.root), authv1.UserService_RevokeRole_FullMethodName, d.users.RevokeRole,
		&authv1.RevokeRoleRequest{Name: d.ada.Name + "/roleGrants/admin", RequestId: uuid.NewString()}, ok("auth.role.revoked"))
	d.setPolicy(d.root, &authv1.LoginPolicy{
		MinPasswordLength: policy.GetMinPasswordLength(), MaxFailedAttempts: policy.GetMaxFailedAttempts(),
		SessionDuration: policy.GetSessionDuration(),
	}, ok("auth.login_policy.updated"))
	call(d.as(d.grace), authv1.AuthService_Logout_FullMethodName, d.auth.Logout, &authv1.LogoutRequest{}, ok("auth.session.ended"))
}
