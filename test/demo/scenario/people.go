// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// Person is somebody with an account.
type Person struct {
	// Email and Password log them in.
	Email, Password string
	// Display is the name that others see.
	Display string
	// Name is the resource name, users/…

	Name    string
	access  string
	refresh string
}

// id is the user's id without the collection.
func (p *Person) id() string { return strings.TrimPrefix(p.Name, "users/") }

// day is the cast and the stage.
type day struct {
	*Script
	ctx      context.Context //nolint:containedctx // the run's
	users    authv1.UserServiceClient
	auth     authv1.AuthServiceClient
	sessions authv1.SessionServiceClient
	policies authv1.LoginPolicyServiceClient
	projects appv1.ProjectServiceClient
	audit    adminv1.AuditLogServiceClient

	suffix string // makes addresses and slugs unique on a system that is not new

	root, ada, grace, alan, barbara, edsger *Person

	apollo, hermes *appv1.Project
}

func newDay(ctx context.Context, s *Script, suffix string) *day {
	conns := s.system.Services
	d := &day{
		Script: s, ctx: ctx, suffix: suffix,
		users: authv1.NewUserServiceClient(conns["auth"]), auth: authv1.NewAuthServiceClient(conns["auth"]),
		sessions: authv1.NewSessionServiceClient(conns["auth"]), policies: authv1.NewLoginPolicyServiceClient(conns["auth"]),
		projects: appv1.NewProjectServiceClient(conns["app"]), audit: adminv1.NewAuditLogServiceClient(conns[Admin]),
		root: &Person{Email: s.system.Operator.Email, Password: s.system.Operator.Password, Display: "the first operator"},
	}
	for display, person := range map[string]**Person{
		"Ada": &d.ada, "Grace": &d.grace, "Alan": &d.alan, "Barbara": &d.barbara, "Edsger": &d.edsger,
	} {
		*person = &Person{Email: strings.ToLower(display) + suffix + "@example.com", Password: "a long phrase of " + display, Display: display}
	}
	return d
}

// as makes calls with a person's token.
func (d *day) as(p *Person) caller { return caller{Script: d.Script, ctx: d.ctx, token: p.access} }

// nobody makes calls without a token.
func (d *day) nobody() caller { return caller{Script: d.Script, ctx: d.ctx} }

// create makes an account.
func (d *day) create(by, p *Person) {
	answer := call(d.as(by), authv1.UserService_CreateUser_FullMethodName, d.users.CreateUser, &authv1.CreateUserRequest{
		User: &authv1.User{Email: p.Email, DisplayName: p.Display}, Password: p.Password, RequestId: uuid.NewString(),
	}, ok("auth.user.created"))
	p.Name = answer.GetUser().GetName()
}

// grant gives a role.
func (d *day) grant(by, to *Person, role authv1.Role) {
	call(d.as(by), authv1.UserService_GrantRole_FullMethodName, d.users.GrantRole, &authv1.GrantRoleRequest{
		Parent: to.Name, Role: role, RequestId: uuid.NewString(),
	}, ok("auth.role.granted"))
}

// logIn logs a person in and keeps the tokens.
func (d *day) logIn(p *Person) {
	answer := d.tryLogIn(p, p.Password, ok("auth.login.succeeded"))
	p.Name, p.access, p.refresh = answer.GetUser().GetName(), answer.GetTokens().GetAccessToken(), answer.GetTokens().GetRefreshToken()
}

// tryLogIn tries a password and keeps nothing.
func (d *day) tryLogIn(p *Person, password string, want outcome) *authv1.LoginResponse {
	return call(d.nobody(), authv1.AuthService_Login_FullMethodName, d.auth.Login,
		&authv1.LoginRequest{Email: p.Email, Password: password}, want)
}

// exchange uses a refresh token.
func (d *day) exchange(by caller, token string, want outcome) *authv1.RefreshResponse {
	by.token = ""
	return call(by, authv1.AuthService_Refresh_FullMethodName, d.auth.Refresh, &authv1.RefreshRequest{RefreshToken: token}, want)
}

// newProject makes one.
func (d *day) newProject(by *Person, slug, display string) *appv1.Project {
	return call(d.as(by), appv1.ProjectService_CreateProject_FullMethodName, d.projects.CreateProject, &appv1.CreateProjectRequest{
		Project: &appv1.Project{Slug: slug + d.suffix, DisplayName: display}, RequestId: uuid.NewString(),
	}, ok("app.project.created", "app.member.added")).GetProject()
}

// add adds a member.
func (d *day) add(by *Person, to *appv1.Project, who *Person, role appv1.MemberRole, want outcome) *appv1.Member {
	return call(d.as(by), appv1.ProjectService_AddMember_FullMethodName, d.projects.AddMember, &appv1.AddMemberRequest{
		Parent: to.GetName(), Member: &appv1.Member{User: who.id(), Role: role}, RequestId: uuid.NewString(),
	}, want).GetMember()
}

// archive tries to archive a project.
func (d *day) archive(by *Person, p *appv1.Project, want outcome) {
	call(d.as(by), appv1.ProjectService_ArchiveProject_FullMethodName, d.projects.ArchiveProject, &appv1.ArchiveProjectRequest{
		Name: p.GetName(), RequestId: uuid.NewString(),
	}, want)
}

// notAllowed is a call that is refused for want of a right.
func notAllowed(actions ...string) outcome { return refused(codes.PermissionDenied, actions...) }
