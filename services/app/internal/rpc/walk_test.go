// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/rpc"
)

// TestEveryMutationCommitsItsEvents walks every RPC that is not a read. A method that is added without a line here
// fails, and so does one that changes something without the events of its line (U18, U86).
func TestEveryMutationCommitsItsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, _ := b.as("Ada", "operator")
	user := func() string { return uuid.Must(uuid.NewV7()).String() }
	member := func(p *appv1.Project) *appv1.Member {
		r, err := b.projects.AddMember(ctx, &appv1.AddMemberRequest{
			Parent: p.GetName(), Member: &appv1.Member{User: user(), Role: appv1.MemberRole_MEMBER_ROLE_VIEWER},
		})
		b.must(err)
		return r.GetMember()
	}
	walk := map[string]struct {
		do   func(p *appv1.Project) error
		want string
	}{
		"ProjectService/CreateProject": {func(*appv1.Project) error {
			_, err := b.projects.CreateProject(ctx, &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: "walk", DisplayName: "Walk"}})
			return err
		}, "app.project.created app.member.added"},
		"ProjectService/UpdateProject": {func(p *appv1.Project) error {
			_, err := b.projects.UpdateProject(ctx, &appv1.UpdateProjectRequest{
				Project: &appv1.Project{Name: p.GetName(), DisplayName: "New", Etag: p.GetEtag()}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}},
			})
			return err
		}, "app.project.updated"},
		"ProjectService/ArchiveProject": {func(p *appv1.Project) error {
			_, err := b.projects.ArchiveProject(ctx, &appv1.ArchiveProjectRequest{Name: p.GetName(), Etag: "1"})
			return err
		}, "app.project.archived"},
		"ProjectService/RestoreProject": {func(p *appv1.Project) error {
			if _, err := b.projects.ArchiveProject(ctx, &appv1.ArchiveProjectRequest{Name: p.GetName()}); err != nil {
				return err
			}
			_, err := b.projects.RestoreProject(ctx, &appv1.RestoreProjectRequest{Name: p.GetName(), Etag: "2"})
			return err
		}, "app.project.archived app.project.restored"},
		"ProjectService/DeleteProject": {func(p *appv1.Project) error {
			_, err := b.projects.DeleteProject(ctx, &appv1.DeleteProjectRequest{Name: p.GetName()})
			return err
		}, "app.member.removed app.project.deleted"},
		"ProjectService/AddMember": {func(p *appv1.Project) error {
			member(p)
			return nil
		}, "app.member.added"},
		"ProjectService/UpdateMember": {func(p *appv1.Project) error {
			_, err := b.projects.UpdateMember(ctx, &appv1.UpdateMemberRequest{
				Member: &appv1.Member{Name: member(p).GetName(), Role: appv1.MemberRole_MEMBER_ROLE_OWNER, Etag: "1"},
			})
			return err
		}, "app.member.added app.member.updated"},
		"ProjectService/RemoveMember": {func(p *appv1.Project) error {
			_, err := b.projects.RemoveMember(ctx, &appv1.RemoveMemberRequest{Name: member(p).GetName(), Etag: "1"})
			return err
		}, "app.member.added app.member.removed"},
		"ProjectService/ImportMembers": {func(p *appv1.Project) error {
			_, err := b.projects.ImportMembers(ctx, &appv1.ImportMembersRequest{Parent: p.GetName(), Members: []*appv1.ImportedMember{
				{User: user(), Role: appv1.MemberRole_MEMBER_ROLE_VIEWER}, {User: user(), Role: appv1.MemberRole_MEMBER_ROLE_EDITOR},
			}})
			return err
		}, "app.member.added app.member.added"},
		"OutboxService/RequeueOutboxEvents": {func(*appv1.Project) error { return b.requeue(ctx, b.failedEvent()) }, "app.outbox.requeued"},
	}
	for service, info := range b.server.ServiceInfo() {
		for _, m := range info.Methods {
			short := service[strings.LastIndexByte(service, '.')+1:] + "/" + m.Name
			read := strings.HasPrefix(m.Name, "Get") || strings.HasPrefix(m.Name, "List")
			if _, ok := walk[short]; !ok && !read && !strings.HasPrefix(service, "grpc.") {
				t.Errorf("%s is not walked: write down which events it commits", short)
			}
		}
	}
	for name, step := range walk {
		p := b.project(ctx)
		b.must(step.do(p))
		types, events := b.news()
		if types != step.want {
			t.Errorf("%s committed %q, want %q", name, types, step.want)
		}
		for _, e := range events {
			if e.GetContext().GetCorrelationId() != "corr-Ada" || e.GetContext().GetClientAddress().GetPlain() != "127.0.0.1" || e.GetContext().GetClientAddressClaimed() {
				t.Errorf("%s: context is %v", name, e.GetContext())
			}
		}
	}
}

// TestPolicyNamesEveryMethod: a method without a rule is refused, and this test says so before a caller does.
func TestPolicyNamesEveryMethod(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if missing := rpc.Policy().Missing(b.server.ServiceInfo()); len(missing) != 0 {
		t.Errorf("no rule for %v", missing)
	}
}

// TestStrangers: without a good token nothing is done, and that it was tried is recorded.
func TestStrangers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	request := &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: "orion", DisplayName: "Orion"}}
	_, err := b.projects.CreateProject(t.Context(), request)
	b.wantError(err, codes.Unauthenticated, "TOKEN_MISSING")
	_, err = b.projects.CreateProject(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer canary-9a1c"), request)
	b.wantError(err, codes.Unauthenticated, "TOKEN_INVALID")
	types, events := b.news()
	if types != "app.call.refused app.call.refused" {
		t.Fatalf("recorded %q", types)
	}
	for _, e := range events {
		if e.GetActor().GetType() != "anonymous" || e.GetResource().GetId() != "CreateProject" || strings.Contains(e.String(), "canary") {
			t.Errorf("event is %v", e)
		}
	}
}

// TestTraceReachesTheOutbox: the trace context of the call lies beside the event, and its id in it.
func TestTraceReachesTheOutbox(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, _ := b.as("Ada")
	const trace = "0af7651916cd43dd8448eb211c80319c"
	// This server has no tracer, so the caller's own context is what is stored.
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	b.project(ctx)
	var parent string
	b.must(b.db.Super.QueryRow(t.Context(), `SELECT traceparent FROM audit_outbox LIMIT 1`).Scan(&parent))
	if !strings.Contains(parent, trace) {
		t.Errorf("traceparent is %q", parent)
	}
}

// TestPages: lists are walked to their end by their tokens, and a token is good for its own list only.
func TestPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, _ := b.as("Ada")
	var want []string
	for range 5 {
		want = append(want, b.project(ctx).GetName())
	}
	var got []string
	request := &appv1.ListProjectsRequest{PageSize: 2}
	for pages := 0; ; pages++ {
		r, err := b.projects.ListProjects(ctx, request)
		b.must(err)
		for _, p := range r.GetProjects() {
			got = append(got, p.GetName())
		}
		if request.PageToken = r.GetNextPageToken(); request.GetPageToken() == "" {
			if pages != 2 {
				t.Errorf("%d pages more than the first", pages)
			}
			break
		}
		_, err = b.projects.ListProjects(ctx, &appv1.ListProjectsRequest{PageToken: request.GetPageToken(), ShowArchived: true})
		b.wantError(err, codes.InvalidArgument, "PAGE_TOKEN_INVALID")
		_, err = b.projects.ListMembers(ctx, &appv1.ListMembersRequest{Parent: want[0], PageToken: request.GetPageToken()})
		b.wantError(err, codes.InvalidArgument, "PAGE_TOKEN_INVALID")
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("listed %v, want %v", got, want)
	}

	list := make([]*appv1.ImportedMember, 4)
	for i := range list {
		list[i] = &appv1.ImportedMember{User: uuid.NewString(), Role: appv1.MemberRole_MEMBER_ROLE_VIEWER}
	}
	_, err := b.projects.ImportMembers(ctx, &appv1.ImportMembersRequest{Parent: want[0], Members: list})
	b.must(err)
	members := map[string]bool{}
	for token := ""; ; {
		r, err := b.projects.ListMembers(ctx, &appv1.ListMembersRequest{Parent: want[0], PageSize: 2, PageToken: token})
		b.must(err)
		for _, m := range r.GetMembers() {
			members[m.GetUser()] = true
			if got, err := b.projects.GetMember(ctx, &appv1.GetMemberRequest{Name: m.GetName()}); err != nil || got.GetMember().GetUser() != m.GetUser() {
				t.Errorf("member %s: %v, %v", m.GetName(), got, err)
			}
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(members) != 5 {
		t.Errorf("listed %d members, want 5", len(members))
	}
}
