// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package drill holds no code. Its tests break the shipped binaries on purpose, on real servers: processes are killed,
// frozen and ended at failpoints, databases locked and made read-only, the broker refuses, entries are forged. After each
// the oracle of test/harness judges what the three databases hold.
//
// Times are scaled: a minute of a lease or a backoff is a minute divided by the scale of the drill.
package drill

import (
	"context"
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// patience bounds the wait for what a healthy system does at once. It is long, since other tests may share the machine.
const patience = 90 * time.Second

// TestMain lets more drills run side by side than there are processors: most of their time they wait for leases and
// backoffs.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// drill is a system to break, and an operator who uses it over gRPC.
type drill struct {
	*harness.System
	ctx   context.Context // carries the operator's token, and lives as long as the test
	scale float64

	users    authv1.UserServiceClient
	projects appv1.ProjectServiceClient
}

// start starts a system for the test, and logs in.
func start(t *testing.T, opts harness.Options) *drill {
	t.Helper()
	system := harness.New(t, opts)
	ctx, err := system.AsOperator(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conns := map[string]*grpc.ClientConn{}
	for _, name := range harness.Services() {
		if conns[name], err = system.Conn(name); err != nil {
			t.Fatal(err)
		}
	}
	return &drill{
		System: system, ctx: ctx, scale: max(opts.TimeScale, 1),
		users:    authv1.NewUserServiceClient(conns["auth"]),
		projects: appv1.NewProjectServiceClient(conns["app"]),
	}
}

// scaled returns how long a simulated time lasts.
func (d *drill) scaled(simulated time.Duration) time.Duration {
	return time.Duration(float64(simulated) / d.scale)
}

// insist makes a call until it succeeds, as a client does whose server may be killed at any moment: call carries a request
// id, so that a repeat changes nothing.
func insist(ctx context.Context, call func(context.Context) error) error {
	return harness.Poll(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return call(ctx)
	})
}

// createProject makes a project that no other call made.
func (d *drill) createProject(ctx context.Context) (string, error) {
	id := uuid.NewString()
	request := &appv1.CreateProjectRequest{
		Project:   &appv1.Project{Slug: "p-" + id, DisplayName: "Project " + id[:8]},
		RequestId: uuid.NewString(),
	}
	var answer *appv1.CreateProjectResponse
	err := insist(ctx, func(ctx context.Context) (err error) {
		answer, err = d.projects.CreateProject(ctx, request)
		return err
	})
	return answer.GetProject().GetName(), err
}

// updateProject gives the project its next version.
func (d *drill) updateProject(ctx context.Context, name string) error {
	request := &appv1.UpdateProjectRequest{
		Project: &appv1.Project{Name: name, Description: uuid.NewString()}, RequestId: uuid.NewString(),
	}
	return insist(ctx, func(ctx context.Context) error {
		_, err := d.projects.UpdateProject(ctx, request)
		return err
	})
}

// importMembers adds members in one transaction, with one event each.
func (d *drill) importMembers(ctx context.Context, project string, count int) error {
	request := &appv1.ImportMembersRequest{Parent: project, RequestId: uuid.NewString()}
	for range count {
		request.Members = append(request.Members, &appv1.ImportedMember{User: uuid.NewString(), Role: appv1.MemberRole_MEMBER_ROLE_VIEWER})
	}
	return insist(ctx, func(ctx context.Context) error {
		_, err := d.projects.ImportMembers(ctx, request)
		return err
	})
}

// createUser makes a user that no other call made.
func (d *drill) createUser(ctx context.Context) (string, error) {
	id := uuid.NewString()
	request := &authv1.CreateUserRequest{
		User:     &authv1.User{Email: id + "@example.com", DisplayName: "User " + id[:8]},
		Password: "a long enough password", RequestId: uuid.NewString(),
	}
	var answer *authv1.CreateUserResponse
	err := insist(ctx, func(ctx context.Context) (err error) {
		answer, err = d.users.CreateUser(ctx, request)
		return err
	})
	return answer.GetUser().GetName(), err
}

// updateUser gives the user its next version.
func (d *drill) updateUser(ctx context.Context, name string) error {
	request := &authv1.UpdateUserRequest{
		User: &authv1.User{Name: name, DisplayName: "User " + uuid.NewString()}, RequestId: uuid.NewString(),
	}
	return insist(ctx, func(ctx context.Context) error {
		_, err := d.users.UpdateUser(ctx, request)
		return err
	})
}

// exec runs a statement as the superuser.
func (d *drill) exec(t *testing.T, owner, sql string, args ...any) {
	t.Helper()
	if _, err := d.DB(owner).Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %s: %v", owner, sql, err)
	}
}

// get asks for one value as the superuser.
func get[T any](t *testing.T, d *drill, owner, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := d.DB(owner).QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %s: %v", owner, sql, err)
	}
	return v
}

// quiet waits until everything has arrived and lets the oracle judge.
func (d *drill) quiet(t *testing.T) harness.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.WaitQuiet(ctx); err != nil {
		t.Errorf("not quiet within %v: %v", patience, err)
	}
	report := d.Require(t)
	t.Logf("%d events: %d recorded, %d dead, %d parked, %d open", report.Events, report.Recorded, report.Dead, report.Parked, report.Open)
	return report
}

// allRecorded is quiet, and nothing may be dead or parked.
func (d *drill) allRecorded(t *testing.T) harness.Report {
	t.Helper()
	report := d.quiet(t)
	if report.Recorded != report.Events {
		t.Errorf("not everything is recorded: %+v", report)
	}
	d.inOrder(t)
	return report
}

// inOrder demands of the log alone that the versions of each resource, read in the order of their numbers, are 1, 2, 3, …
func (d *drill) inOrder(t *testing.T) {
	t.Helper()
	type resource struct {
		Owner, Type, ID string
		Versions        []int64
	}
	rows, err := d.DB("admin").Query(t.Context(), `
		SELECT owner, resource_type, resource_id, array_agg(resource_version ORDER BY ledger_seq)
		FROM audit_logs WHERE resource_version IS NOT NULL AND owner <> 'admin'
		GROUP BY owner, ledger_id, resource_type, resource_id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	deepest, resources := 0, 0
	for rows.Next() {
		var r resource
		if err := rows.Scan(&r.Owner, &r.Type, &r.ID, &r.Versions); err != nil {
			t.Fatal(err)
		}
		resources, deepest = resources+1, max(deepest, len(r.Versions))
		for i, version := range r.Versions {
			if version != int64(i+1) {
				t.Errorf("%s %s/%s: versions by number: %v", r.Owner, r.Type, r.ID, r.Versions)
				break
			}
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d resources in order, the longest history has %d versions", resources, deepest)
}

// wait returns after a time that is part of the drill. It is no wait for something to happen.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// owners are the services with an outbox.
func owners() []string {
	return slices.DeleteFunc(harness.Services(), func(name string) bool { return name == "admin" })
}
