// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/test/harness"
)

const (
	leastKills = 200 // in a run that counts
	holdTries  = 12  // how often a victim is frozen to see whether it holds something
)

// kill is one SIGKILL, and what the victim held at that moment: outbox claims or inbox leases that had not expired.
type kill struct {
	victim *harness.Service
	held   int
}

// campaign kills processes.
type campaign struct {
	*drill
	t      *testing.T
	random *rand.Rand
	host   string

	mu       sync.Mutex
	ready    []*harness.Service
	launched map[*harness.Service]time.Time // by the database's clock
	kills    []kill
	starts   sync.WaitGroup
}

// (U41, U71, U73, T13) Two replicas of each service under load; any process is killed at any moment, two hundred times and
// more. At least half of the kills hit a process that held a claim or a lease, which the log of the test lists. In the end
// nothing is lost, nothing doubled, nothing dead, and each resource's versions are numbered in order.
// It guards: acknowledging after takeover, tokens on every settle, effect and mark in one transaction, expiry of claims.
func TestKillCampaign(t *testing.T) {
	t.Parallel()
	kills, seed := leastKills, rand.Uint64()
	for name, set := range map[string]func(string) error{
		"KILLS":      func(v string) (err error) { kills, err = strconv.Atoi(v); return err },
		"DRILL_SEED": func(v string) (err error) { seed, err = strconv.ParseUint(v, 10, 64); return err },
	} {
		if v := os.Getenv(name); v != "" {
			if err := set(v); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if os.Getenv("CI") == "true" && kills < leastKills {
		t.Fatalf("KILLS=%d is less than the %d that count", kills, leastKills)
	}
	t.Logf("repeat the choices with DRILL_SEED=%d", seed)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	c := &campaign{
		drill: start(t, harness.Options{TimeScale: 10, Replicas: map[string]int{"auth": 2, "app": 2, "admin": 2}}),
		t:     t, random: rand.New(rand.NewPCG(seed, 0)), host: host, launched: map[*harness.Service]time.Time{},
	}
	for _, name := range harness.Services() {
		c.ready = append(c.ready, c.Replicas(name)...)
	}
	load := c.startLoad(t)
	begin := time.Now()
	for range kills {
		c.killOne()
	}
	t.Logf("%d kills in %v", kills, time.Since(begin))
	c.starts.Wait()
	calls := load.stop(t)

	hits := map[string]int{}
	total := map[string]int{}
	for _, k := range c.kills {
		total[k.victim.Name]++
		if k.held > 0 {
			hits[k.victim.Name]++
		}
	}
	t.Logf("kills %v, of which hit a claim or lease %v; %d calls succeeded", total, hits, calls)
	if hit := hits["auth"] + hits["app"] + hits["admin"]; len(c.kills) < kills || 2*hit < len(c.kills) {
		t.Errorf("%d kills, want %d; %d hit a held claim or lease, want at least half", len(c.kills), kills, hit)
	}
	report := c.allRecorded(t)
	if report.Events < 5*kills {
		t.Errorf("%d events in %d kills: that is no load", report.Events, kills)
	}
}

// killOne picks a replica that is ready, freezes it until it holds something or patience ends, notes what it holds, and
// kills it as it stands. It is started again at once, and the next kill does not wait for it.
func (c *campaign) killOne() {
	victim := c.pick()
	var held int
	var what string
	for try := range holdTries {
		if err := victim.Pause(); err != nil {
			c.t.Fatalf("%s: %v\n%s", victim, err, victim.LogTail(20))
		}
		if held, what = c.holds(victim); held > 0 || try == holdTries-1 {
			break
		}
		if err := victim.Resume(); err != nil {
			c.t.Fatalf("%s: %v", victim, err)
		}
		wait(c.t.Context(), time.Duration(1+c.random.IntN(20))*time.Millisecond)
	}
	victim.Kill()
	c.kills = append(c.kills, kill{victim: victim, held: held})
	c.t.Logf("kill %d: %s held %s", len(c.kills), victim, what)
	c.relaunch(victim)
}

// pick waits for a replica that is ready and takes it off the list.
func (c *campaign) pick() *harness.Service {
	var victim *harness.Service
	harness.Eventually(c.t, patience, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.ready) == 0 {
			return fmt.Errorf("no replica is ready")
		}
		i := c.random.IntN(len(c.ready))
		victim = c.ready[i]
		c.ready = append(c.ready[:i], c.ready[i+1:]...)
		return nil
	})
	return victim
}

// relaunch starts a killed replica and puts it back on the list once it is ready.
func (c *campaign) relaunch(victim *harness.Service) {
	c.launched[victim] = get[time.Time](c.t, c.drill, victim.Name, "SELECT clock_timestamp()")
	if err := victim.Launch(); err != nil {
		c.t.Fatal(err)
	}
	c.starts.Go(func() {
		if err := victim.WaitReady(c.t.Context()); err != nil {
			c.t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ready = append(c.ready, victim)
	})
}

// holds asks the databases what this run of a replica holds: entries that it claimed, or events under its lease.
func (c *campaign) holds(victim *harness.Service) (int, string) {
	if victim.Name == "admin" {
		// While a row is under a lease, next_retry_at is when it was taken: a former run of the replica has the same name.
		n := get[int](c.t, c.drill, "admin", `
			SELECT count(*) FROM consumer_inbox
			WHERE lease_owner = $1 AND lease_expires_at > clock_timestamp() AND next_retry_at >= $2 AND finished_at IS NULL`,
			victim.String(), c.launched[victim])
		return n, fmt.Sprintf("%d leases", n)
	}
	n := get[int](c.t, c.drill, victim.Name, `
		SELECT count(*) FROM audit_outbox
		WHERE status IN ('PENDING', 'DEFERRED', 'RETRYABLE_FAILURE') AND claim_owner = $1 AND claim_expires_at > clock_timestamp()`,
		fmt.Sprintf("%s:%d", c.host, victim.PID()))
	return n, fmt.Sprintf("%d claims", n)
}

// load is what users do meanwhile.
type load struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup
	mu      sync.Mutex
	calls   int
	failed  []error
}

// startLoad lets users change their names, projects come and change, and members be imported.
func (c *campaign) startLoad(t *testing.T) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	l := &load{cancel: cancel}
	var users, projects []string
	for range 3 {
		user, err := c.createUser(ctx)
		if err != nil {
			t.Fatal(err)
		}
		project, err := c.createProject(ctx)
		if err != nil {
			t.Fatal(err)
		}
		users, projects = append(users, user), append(projects, project)
	}
	for i := range users {
		l.repeat(ctx, 4*time.Millisecond, func() error { return c.updateUser(ctx, users[i]) })
		l.repeat(ctx, 4*time.Millisecond, func() error { return c.updateUser(ctx, users[0]) }) // one that all compete for
		l.repeat(ctx, 10*time.Millisecond, func() error { return c.updateProject(ctx, projects[i]) })
	}
	l.repeat(ctx, 10*time.Millisecond, func() error { _, err := c.createProject(ctx); return err })
	l.repeat(ctx, 250*time.Millisecond, func() error { return c.importMembers(ctx, projects[0], 100) })
	l.repeat(ctx, 2*time.Second, func() error { _, err := c.createUser(ctx); return err })
	return l
}

// repeat makes calls, with a pause after each, until the load ends.
func (l *load) repeat(ctx context.Context, pause time.Duration, call func() error) {
	l.workers.Go(func() {
		for ctx.Err() == nil {
			err := call()
			l.mu.Lock()
			if err == nil {
				l.calls++
			} else if ctx.Err() == nil {
				l.failed = append(l.failed, err)
			}
			l.mu.Unlock()
			wait(ctx, pause)
		}
	})
}

// stop ends the load and returns how many calls succeeded.
func (l *load) stop(t *testing.T) int {
	t.Helper()
	l.cancel()
	l.workers.Wait()
	for _, err := range l.failed {
		t.Errorf("a call never succeeded: %v", err)
	}
	return l.calls
}
