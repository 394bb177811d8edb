// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// (U3) What Auth and App do is in Admin's log a moment later: who, did what, to what, from which value to which.
func TestPolicyChangeAndProjectAreRecorded(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{})
	self := strings.TrimPrefix(o.self, "users/")

	before, err := o.policies.GetLoginPolicy(o.ctx, &authv1.GetLoginPolicyRequest{Name: "loginPolicy"})
	if err != nil {
		t.Fatal(err)
	}
	if got := before.GetLoginPolicy().GetMaxFailedAttempts(); got != 5 {
		t.Fatalf("the first policy allows %d failures, want 5", got)
	}
	_, err = o.policies.UpdateLoginPolicy(o.ctx, &authv1.UpdateLoginPolicyRequest{
		LoginPolicy: &authv1.LoginPolicy{Name: "loginPolicy", MaxFailedAttempts: 3, Etag: before.GetLoginPolicy().GetEtag()},
		UpdateMask:  &fieldmaskpb.FieldMask{Paths: []string{"max_failed_attempts"}},
		RequestId:   uuid.NewString(),
	})
	if err != nil {
		t.Fatal(err)
	}
	policy := o.arrive(t, `action = "auth.login_policy.updated"`).GetEvent()
	if policy.GetOwner() != "auth" || policy.GetActor().GetId() != self || policy.GetOutcome() != auditv1.Outcome_OUTCOME_SUCCEEDED {
		t.Errorf("recorded as %v", policy)
	}
	if policy.GetResource().GetType() != "login_policy" || policy.GetResource().GetVersion() != 2 {
		t.Errorf("resource: %v", policy.GetResource())
	}
	if c := policy.GetChanges(); len(c) != 1 || c[0].GetField() != "max_failed_attempts" ||
		c[0].GetOldValue().GetPlain() != "5" || c[0].GetNewValue().GetPlain() != "3" {
		t.Errorf("changes: %v", c)
	}

	project, err := o.createProject()
	if err != nil {
		t.Fatal(err)
	}
	created := o.arrive(t, `action = "app.project.created"`).GetEvent()
	if created.GetOwner() != "app" || created.GetActor().GetId() != self || "projects/"+created.GetResource().GetId() != project.GetName() ||
		created.GetResource().GetVersion() != 1 {
		t.Errorf("recorded as %v", created)
	}
	if created.GetActor().GetDisplayName().GetPlain() != "First Operator" {
		t.Errorf("actor: %v", created.GetActor())
	}

	report := o.quiet(t, 20*time.Second)
	if report.Own == 0 {
		t.Error("reading the log left no record")
	}
}

// An import is one transaction with one event a member: all of them arrive, once.
func TestImportOfManyMembersIsRecorded(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{})
	project, err := o.createProject()
	if err != nil {
		t.Fatal(err)
	}
	const count = 2000
	request := &appv1.ImportMembersRequest{Parent: project.GetName(), RequestId: uuid.NewString()}
	for range count {
		request.Members = append(request.Members, &appv1.ImportedMember{User: uuid.NewString(), Role: appv1.MemberRole_MEMBER_ROLE_VIEWER})
	}
	for range 2 { // the second call is a repeat: it changes and records nothing
		answer, err := o.projects.ImportMembers(o.ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetImportedCount() != count {
			t.Fatalf("imported %d", answer.GetImportedCount())
		}
	}
	report := o.quiet(t, 60*time.Second)
	if report.Recorded != report.Events || report.Events < count {
		t.Errorf("%+v", report)
	}
	var members int
	err = o.system.DB("admin").QueryRow(t.Context(), "SELECT count(*) FROM audit_logs WHERE resource_type = 'project_member' AND operation = 'CREATE'").Scan(&members)
	if err != nil {
		t.Fatal(err)
	}
	if members < count || members > count+1 { // the creator may be a member, too
		t.Errorf("%d members recorded, want %d", members, count)
	}
}
