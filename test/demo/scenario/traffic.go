// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
)

// pace is how often each person makes a call.
const pace = 80 * time.Millisecond

// traffic is people at work: each changes a project of their own at a steady pace, whatever the answer took.
type traffic struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
}

// startTraffic sets the people to work until the traffic is stopped or a call fails.
func (d *day) startTraffic(people ...*Person) *traffic {
	ctx, cancel := context.WithCancel(d.ctx)
	t := &traffic{cancel: cancel}
	for _, p := range people {
		own := d.newProject(p, "team-"+strings.ToLower(p.Display), "Team "+p.Display)
		me := *p // with tokens of their own: the person also makes calls outside the traffic
		t.all.Go(func() { d.busy(ctx, &me, own) })
	}
	return t
}

// stop lets everybody finish the call at hand.
func (t *traffic) stop() {
	t.cancel()
	t.all.Wait()
}

// busy makes call after call.
func (d *day) busy(ctx context.Context, p *Person, own *appv1.Project) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var member *appv1.Member
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if d.Err() != nil {
			return
		}
		me := d.as(p)
		me.background = true
		member = d.chore(me, p, own, member, i)
	}
}

// chore is the i-th call: a project's text, a member's coming, promotion and going, and now and then fresh tokens.
func (d *day) chore(me caller, p *Person, own *appv1.Project, member *appv1.Member, i int) *appv1.Member {
	switch i % 5 {
	case 0, 3:
		d.describe(me, own, fmt.Sprintf("Revision %d", i), "", ok("app.project.updated"))
	case 1:
		return call(me, appv1.ProjectService_AddMember_FullMethodName, d.projects.AddMember, &appv1.AddMemberRequest{
			Parent: own.GetName(), Member: &appv1.Member{User: uuid.NewString(), Role: viewer}, RequestId: uuid.NewString(),
		}, ok("app.member.added")).GetMember()
	case 2:
		call(me, appv1.ProjectService_RemoveMember_FullMethodName, d.projects.RemoveMember, &appv1.RemoveMemberRequest{
			Name: member.GetName(), RequestId: uuid.NewString(),
		}, ok("app.member.removed"))
	default:
		tokens := d.exchange(me, p.refresh, ok("auth.session.refreshed")).GetTokens()
		p.access, p.refresh = tokens.GetAccessToken(), tokens.GetRefreshToken()
	}
	return member
}
