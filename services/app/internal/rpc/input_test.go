// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

// TestBadInput: each malformed request has a defined answer that names the field, and changes and records nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, _ := b.as("Ada", "operator")
	p := b.project(ctx)
	id := strings.TrimPrefix(p.GetName(), "projects/")
	create := func(slug, name, text string) proto.Message {
		return &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: slug, DisplayName: name, Description: text}}
	}
	add := func(user string, role appv1.MemberRole) proto.Message {
		return &appv1.AddMemberRequest{Parent: p.GetName(), Member: &appv1.Member{User: user, Role: role}}
	}
	const service, outbox = "/counterfoil.app.v1.ProjectService/", "/counterfoil.outbox.v1.OutboxService/"
	user := uuid.NewString()

	for name, c := range map[string]struct {
		method string
		in     proto.Message
		field  string
	}{
		"no project":           {service + "CreateProject", &appv1.CreateProjectRequest{}, "project"},
		"no slug":              {service + "CreateProject", create("", "Orion", ""), "project"},
		"no display name":      {service + "CreateProject", create("orion", "", ""), "project"},
		"blank display name":   {service + "CreateProject", create("orion", " \u2003", ""), "project.display_name"},
		"bad slug":             {service + "CreateProject", create("Orion!", "Orion", ""), "project.slug"},
		"long slug":            {service + "CreateProject", create(strings.Repeat("a", 64), "Orion", ""), "project.slug"},
		"long display name":    {service + "CreateProject", create("orion", strings.Repeat("é", 201), ""), "project.display_name"},
		"NUL in display name":  {service + "CreateProject", create("orion", "Ori\x00on", ""), "project.display_name"},
		"line break in name":   {service + "CreateProject", create("orion", "Ori\non", ""), "project.display_name"},
		"NUL in description":   {service + "CreateProject", create("orion", "Orion", "a\x00b"), "project.description"},
		"long description":     {service + "CreateProject", create("orion", "Orion", strings.Repeat("x", 2001)), "project.description"},
		"bad request id":       {service + "CreateProject", &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: "orion", DisplayName: "O"}, RequestId: "1"}, "request_id"},
		"no name":              {service + "GetProject", &appv1.GetProjectRequest{}, "name"},
		"name of a user":       {service + "GetProject", &appv1.GetProjectRequest{Name: "users/" + id}, "name"},
		"name in upper case":   {service + "GetProject", &appv1.GetProjectRequest{Name: "projects/" + strings.ToUpper(id)}, "name"},
		"name with a line end": {service + "GetProject", &appv1.GetProjectRequest{Name: p.GetName() + "\n"}, "name"},
		"negative page size":   {service + "ListProjects", &appv1.ListProjectsRequest{PageSize: -1}, "page_size"},
		"made-up page token":   {service + "ListProjects", &appv1.ListProjectsRequest{PageToken: "bm8"}, "page_token"},
		"unknown mask path":    {service + "UpdateProject", &appv1.UpdateProjectRequest{Project: &appv1.Project{Name: p.GetName()}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"slug"}}}, "update_mask"},
		"update to no name":    {service + "UpdateProject", &appv1.UpdateProjectRequest{Project: &appv1.Project{Name: p.GetName()}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}}}, "project.display_name"},
		"update of nothing":    {service + "UpdateProject", &appv1.UpdateProjectRequest{Project: &appv1.Project{DisplayName: "x"}}, "project"},
		"etag that is none":    {service + "ArchiveProject", &appv1.ArchiveProjectRequest{Name: p.GetName(), Etag: "x"}, "etag"},
		"etag of no version":   {service + "ArchiveProject", &appv1.ArchiveProjectRequest{Name: p.GetName(), Etag: "0"}, "etag"},
		"no user":              {service + "AddMember", add("", appv1.MemberRole_MEMBER_ROLE_OWNER), "member"},
		"user not a UUID":      {service + "AddMember", add("ada", appv1.MemberRole_MEMBER_ROLE_OWNER), "member.user"},
		"no role":              {service + "AddMember", add(user, 0), "member"},
		"unknown role":         {service + "AddMember", add(user, 99), "member.role"},
		"update to no role":    {service + "UpdateMember", &appv1.UpdateMemberRequest{Member: &appv1.Member{Name: p.GetName() + "/members/" + user}}, "member"},
		"import of nobody":     {service + "ImportMembers", &appv1.ImportMembersRequest{Parent: p.GetName()}, "members"},
		"import, unknown role": {service + "ImportMembers", &appv1.ImportMembersRequest{Parent: p.GetName(), Members: []*appv1.ImportedMember{{User: user, Role: 1}, {User: user, Role: 7}}}, "members[1].role"},
		"import, bad user":     {service + "ImportMembers", &appv1.ImportMembersRequest{Parent: p.GetName(), Members: []*appv1.ImportedMember{{User: "x", Role: 1}}}, "members[0].user"},
		"requeue of nothing":   {outbox + "RequeueOutboxEvents", &outboxv1.RequeueOutboxEventsRequest{Reason: "x"}, "names"},
		"requeue, no reason":   {outbox + "RequeueOutboxEvents", &outboxv1.RequeueOutboxEventsRequest{Names: []string{"outboxEvents/" + user}}, "reason"},
		"requeue, blank":       {outbox + "RequeueOutboxEvents", &outboxv1.RequeueOutboxEventsRequest{Names: []string{"outboxEvents/" + user}, Reason: "  "}, "reason"},
		"requeue, twice":       {outbox + "RequeueOutboxEvents", &outboxv1.RequeueOutboxEventsRequest{Names: []string{"outboxEvents/" + user, "outboxEvents/" + user}, Reason: "x"}, "names"},
		"unknown status":       {outbox + "ListOutboxEvents", &outboxv1.ListOutboxEventsRequest{Statuses: []outboxv1.OutboxEventStatus{42}}, "statuses[0]"},
		"no event":             {outbox + "GetOutboxEvent", &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/x"}, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			err := b.conn.Invoke(ctx, c.method, c.in, &emptypb.Empty{})
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(violated(err), c.field) {
				t.Errorf("got %v, fields %q, want InvalidArgument that names %s", err, violated(err), c.field)
			}
		})
	}
	if types, _ := b.news(); types != "" {
		t.Errorf("malformed requests recorded %q", types)
	}
}

// TestForeignBytes: what no well-behaved client sends is refused without harm, and unknown fields are ignored.
func TestForeignBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, _ := b.as("Ada")
	const method = "/counterfoil.app.v1.ProjectService/CreateProject"
	text := func(field protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), s)
	}
	raw := func(project []byte) *emptypb.Empty { // unknown fields of an empty message: sent as they are
		in := &emptypb.Empty{}
		in.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), project))
		return in
	}
	for name, project := range map[string][]byte{
		"invalid UTF-8":    append(text(2, "orion"), text(3, "Ori\xffon")...),
		"a lone surrogate": append(text(2, "orion"), text(3, "Ori\xed\xa0\x80on")...),
		"a truncated text": append(text(2, "orion"), 0x1a, 0x7f, 'O'),
	} {
		err := b.conn.Invoke(ctx, method, raw(project), &emptypb.Empty{})
		if c := status.Code(err); c != codes.InvalidArgument && c != codes.Internal {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if n, _ := b.news(); n != "" {
		t.Errorf("foreign bytes recorded %q", n)
	}
	known := append(text(2, "orion"), text(3, "Orion")...)
	b.must(b.conn.Invoke(ctx, method, raw(append(known, text(999, "of a later release")...)), &emptypb.Empty{}))
}

// TestLargestImport: what the contract admits also fits through the server.
func TestLargestImport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, _ := b.as("Ada")
	p := b.project(ctx)
	list := make([]*appv1.ImportedMember, 10_001)
	for i := range list {
		list[i] = &appv1.ImportedMember{User: uuid.NewString(), Role: appv1.MemberRole_MEMBER_ROLE_VIEWER}
	}
	request := &appv1.ImportMembersRequest{Parent: p.GetName(), Members: list, RequestId: uuid.NewString()}
	_, err := b.projects.ImportMembers(ctx, request)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("import of 10 001 members: %v", err)
	}
	request.Members = list[:10_000]
	for range 2 { // the second is a repeat
		r, err := b.projects.ImportMembers(ctx, request)
		b.must(err)
		if r.GetImportedCount() != 10_000 {
			t.Errorf("imported %d", r.GetImportedCount())
		}
	}
	if _, events := b.news(); len(events) != 10_000 {
		t.Errorf("recorded %d events", len(events))
	}
}

// TestUpdateMask: a mask decides what changes, even to nothing; without one, what has a value does.
func TestUpdateMask(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, _ := b.as("Ada")
	p := b.project(ctx)
	update := func(display, text string, paths ...string) *appv1.Project {
		r, err := b.projects.UpdateProject(ctx, &appv1.UpdateProjectRequest{
			Project: &appv1.Project{Name: p.GetName(), DisplayName: display, Description: text}, UpdateMask: &fieldmaskpb.FieldMask{Paths: paths},
		})
		b.must(err)
		return r.GetProject()
	}
	for _, step := range []struct {
		got              *appv1.Project
		name, text, etag string
	}{
		{update("A", "a"), "A", "a", "2"},
		{update("B", ""), "B", "a", "3"},
		{update("C", "c", "description"), "B", "c", "4"},
		{update("C", "", "description"), "B", "", "5"},
		{update("", ""), "B", "", "5"},
	} {
		if step.got.GetDisplayName() != step.name || step.got.GetDescription() != step.text || step.got.GetEtag() != step.etag {
			t.Errorf("got %v, want %+v", step.got, step)
		}
	}
}
