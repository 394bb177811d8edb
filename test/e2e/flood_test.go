// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// (BC-66) One user of App makes half of what the log can take: what happens at Auth is recorded soon all the same, and nothing
// is dropped. Not parallel: it measures.
func TestAFloodOfOneUserDelaysNobodyElse(t *testing.T) {
	o := newOperator(t, harness.Options{})
	const batch, peakBatches, span, limit = 500, 20, 8 * time.Second, 3 * time.Second
	project, err := o.createProject()
	if err != nil {
		t.Fatal(err)
	}
	flood := func(ctx context.Context) error {
		request := &appv1.ImportMembersRequest{Parent: project.GetName(), RequestId: uuid.NewString()}
		for range batch {
			request.Members = append(request.Members, &appv1.ImportedMember{User: uuid.NewString(), Role: appv1.MemberRole_MEMBER_ROLE_VIEWER})
		}
		_, err := o.projects.ImportMembers(ctx, request)
		return err
	}
	began := time.Now()
	for range peakBatches {
		if err := flood(o.ctx); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, 90*time.Second, func() error {
		var recorded int
		err := o.system.DB("admin").QueryRow(t.Context(), "SELECT count(*) FROM audit_logs WHERE action = 'app.member.added'").Scan(&recorded)
		if err == nil && recorded < peakBatches*batch {
			err = fmt.Errorf("%d of %d recorded", recorded, peakBatches*batch)
		}
		return err
	})
	peak := time.Since(began) / peakBatches // a batch at full capacity, from the call to the log

	ctx, cancel := context.WithCancel(o.ctx)
	batches, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(2 * peak)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := flood(o.ctx); err != nil {
				t.Errorf("the flood: %v", err)
			}
			batches++
		}
	}()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	var delays []time.Duration
	for begin := time.Now(); time.Since(begin) < span; {
		delays = append(delays, o.delay(t))
	}
	stop()
	slices.Sort(delays)
	t.Logf("%d events/s at most; %d batches in %v; %d changes of another owner recorded after %v, at most %v",
		int(batch/peak.Seconds()), batches, span, len(delays), delays[len(delays)/2], delays[len(delays)-1])
	if want := int(span / (2 * peak) * 3 / 4); batches < want || len(delays) < 3 {
		t.Errorf("%d batches and %d changes, want %d and 3: the test does not test", batches, len(delays), want)
	}
	if worst := delays[len(delays)-1]; worst > limit {
		t.Errorf("a change of another owner was recorded after %v, want at most %v", worst, limit)
	}
	report := o.quiet(t, 90*time.Second)
	if report.Recorded != report.Events {
		t.Errorf("%+v", report)
	}
}

// delay changes a user and returns how long it takes from then until the log has it.
func (o *operator) delay(t *testing.T) time.Duration {
	t.Helper()
	name := "Flooded " + uuid.NewString()
	begin := time.Now()
	_, err := o.users.UpdateUser(o.ctx, &authv1.UpdateUserRequest{User: &authv1.User{Name: o.self, DisplayName: name}, RequestId: uuid.NewString()})
	if err != nil {
		t.Fatal(err)
	}
	var id string
	if err := o.system.DB("auth").QueryRow(t.Context(), "SELECT event_id::text FROM audit_outbox ORDER BY append_no DESC LIMIT 1").Scan(&id); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, func() error {
		var found int
		if err := o.system.DB("admin").QueryRow(t.Context(), "SELECT count(*) FROM audit_logs WHERE event_id = $1::uuid", id).Scan(&found); err != nil {
			return err
		}
		if found == 0 {
			return fmt.Errorf("%s is not recorded", id)
		}
		return nil
	})
	return time.Since(begin)
}
