// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/test/harness"
)

// brokerKills is how often the broker and its readers are killed together.
const brokerKills = 20

// Under load, all of Admin and the broker are killed at once, most times while one replica has read entries that it
// has not acknowledged and the other has read on, every third time while the broker rewrites its log. What the broker had accepted is recorded all the same.
// It guards: takeover before the acknowledgement, and the right to replay what several entries were read with.
func TestBrokerIsKilledWithItsReaders(t *testing.T) {
	t.Parallel()
	c := &campaign{drill: start(t, harness.Options{TimeScale: 10, Replicas: map[string]int{"auth": 1, "app": 1, "admin": 2}}), t: t}
	load := c.startLightLoad(t)
	hits := 0
	for round := range brokerKills {
		if c.freezeWithPending() {
			hits++
		}
		if round%3 == 0 {
			if err := c.RedisClient.BgRewriteAOF(c.ctx).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for _, admin := range c.Replicas("admin") {
			admin.Kill()
		}
		c.Redis.Kill()
		if err := c.Redis.Start(c.ctx); err != nil {
			t.Fatal(err)
		}
		var ready sync.WaitGroup
		for _, admin := range c.Replicas("admin") {
			if err := admin.Launch(); err != nil {
				t.Fatal(err)
			}
			ready.Go(func() {
				if err := admin.WaitReady(c.ctx); err != nil {
					t.Error(err)
				}
			})
		}
		ready.Wait()
	}
	calls := load.stop(t)
	t.Logf("%d of %d kills hit a page of several entries that was not acknowledged; %d calls succeeded", hits, brokerKills, calls)
	if 2*hits < brokerKills {
		t.Errorf("%d of %d kills hit a page that was not acknowledged, want at least half", hits, brokerKills)
	}
	if report := c.allRecorded(t); report.Events < 10*brokerKills {
		t.Errorf("%d events: that is no load", report.Events)
	}
}

// startLightLoad imports members, which are read many at once, among changes that are mostly read alone.
func (c *campaign) startLightLoad(t *testing.T) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	l := &load{cancel: cancel}
	project, err := c.createProject(ctx)
	if err != nil {
		t.Fatal(err)
	}
	user, err := c.createUser(ctx)
	if err != nil {
		t.Fatal(err)
	}
	l.repeat(ctx, 100*time.Millisecond, func() error { return c.importMembers(ctx, project, 20) })
	l.repeat(ctx, 10*time.Millisecond, func() error { _, err := c.createProject(ctx); return err })
	l.repeat(ctx, 10*time.Millisecond, func() error { return c.updateUser(ctx, user) })
	return l
}

// freezeWithPending stops a replica of Admin at a moment at which it has several entries of one stream in hand, if there is
// one soon, and waits until the other has read on: what is above them in the stream must not hide them.
func (c *campaign) freezeWithPending() bool {
	admins := c.Replicas("admin")
	victim := admins[rand.IntN(len(admins))]
	for range 100 {
		if err := victim.Pause(); err != nil {
			c.t.Fatalf("%s: %v\n%s", victim, err, victim.LogTail(20))
		}
		for _, owner := range owners() {
			pending, err := c.RedisClient.XPending(c.ctx, envelope.StreamKey(owner), envelope.Group).Result()
			if err == nil && pending.Consumers[victim.String()] > 1 && c.readOn(owner) {
				return true
			}
		}
		if err := victim.Resume(); err != nil {
			c.t.Fatalf("%s: %v", victim, err)
		}
		wait(c.t.Context(), time.Duration(1+rand.IntN(15))*time.Millisecond)
	}
	return false
}

// readOn waits a moment for the group to be given more of an owner's stream.
func (c *campaign) readOn(owner string) bool {
	given := func() string {
		groups, err := c.RedisClient.XInfoGroups(c.ctx, envelope.StreamKey(owner)).Result()
		if err != nil || len(groups) != 1 {
			c.t.Fatalf("groups of %s: %v, %v", owner, groups, err)
		}
		return groups[0].LastDeliveredID
	}
	for begin, tries := given(), 0; tries < 100; tries++ {
		if given() != begin {
			return true
		}
		wait(c.t.Context(), 2*time.Millisecond)
	}
	return false
}
