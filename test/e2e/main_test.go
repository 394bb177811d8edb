// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package e2e holds no code. Its tests run the shipped binaries as processes, on real servers, and speak to them over gRPC
// as clients do.
package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// operator is the first operator, logged in, and the clients of all three services.
type operator struct {
	ctx    context.Context // carries the token, and lives as long as the test
	self   string          // the user's resource name
	system *harness.System

	users    authv1.UserServiceClient
	policies authv1.LoginPolicyServiceClient
	projects appv1.ProjectServiceClient
	audit    adminv1.AuditLogServiceClient
}

// newOperator starts a system for the test and logs in.
func newOperator(t *testing.T, opts harness.Options) *operator {
	t.Helper()
	opts.Log = t.Logf
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
	o := &operator{
		ctx: ctx, system: system,
		users:    authv1.NewUserServiceClient(conns["auth"]),
		policies: authv1.NewLoginPolicyServiceClient(conns["auth"]),
		projects: appv1.NewProjectServiceClient(conns["app"]),
		audit:    adminv1.NewAuditLogServiceClient(conns["admin"]),
	}
	self, err := authv1.NewAuthServiceClient(conns["auth"]).GetSelf(ctx, &authv1.GetSelfRequest{})
	if err != nil {
		t.Fatal(err)
	}
	o.self = self.GetUser().GetName()
	return o
}

// createProject makes a project that no other call made.
func (o *operator) createProject() (*appv1.Project, error) {
	id := uuid.NewString()
	answer, err := o.projects.CreateProject(o.ctx, &appv1.CreateProjectRequest{
		Project:   &appv1.Project{Slug: "p-" + id, DisplayName: "Project " + id[:8]},
		RequestId: uuid.NewString(),
	})
	return answer.GetProject(), err
}

// outcome is what a number of calls came to.
type outcome struct {
	failed []error
	p99    time.Duration
}

// load makes calls from several workers at a steady pace, and times each.
func (o *operator) load(calls, workers int, pace time.Duration) outcome {
	var (
		mu    sync.Mutex
		out   outcome
		times []time.Duration
		all   sync.WaitGroup
	)
	for range workers {
		all.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for range calls / workers {
				<-tick.C
				begin := time.Now()
				_, err := o.createProject()
				took := time.Since(begin)
				mu.Lock()
				times = append(times, took)
				if err != nil {
					out.failed = append(out.failed, err)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(times)
	out.p99 = times[len(times)*99/100]
	return out
}

// records lists audit logs that match the filter.
func (o *operator) records(filter string) ([]*adminv1.AuditLog, error) {
	answer, err := o.audit.ListAuditLogs(o.ctx, &adminv1.ListAuditLogsRequest{Filter: filter, PageSize: 1000})
	return answer.GetAuditLogs(), err
}

// arrive waits for the first record that matches the filter.
func (o *operator) arrive(t *testing.T, filter string) *adminv1.AuditLog {
	t.Helper()
	var found []*adminv1.AuditLog
	harness.Eventually(t, 20*time.Second, func() (err error) {
		found, err = o.records(filter)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("no record for %s", filter)
		}
		return err
	})
	if len(found) != 1 {
		t.Errorf("%s: %d records, want 1", filter, len(found))
	}
	return found[0]
}

// quiet waits until everything has arrived and lets the oracle judge.
func (o *operator) quiet(t *testing.T, deadline time.Duration) harness.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := o.system.WaitQuiet(ctx); err != nil {
		t.Errorf("not quiet within %v: %v", deadline, err)
	}
	return o.system.Require(t)
}
