// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/test/harness"
)

// rule is one alert: a metric over a limit, or one that is absent.
type rule struct {
	name, metric string
	absent       bool
	limit        float64
}

// rules reads the file that is shipped. A rule of another shape fails the test: it could not be tried here.
func rules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile("../../deploy/alerts/counterfoil.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var found []rule
	for _, m := range regexp.MustCompile(`(?m)^ +- alert: (\w+)\n +expr: (?:(\w+) > (\d+)|absent\((\w+)\))$`).FindAllStringSubmatch(string(text), -1) {
		limit, _ := strconv.ParseFloat(m[3], 64) // 0 for absent
		found = append(found, rule{name: m[1], metric: m[2] + m[4], absent: m[4] != "", limit: limit})
	}
	if n := strings.Count(string(text), "alert:"); n != len(found) || n == 0 {
		t.Fatalf("%d of %d rules have a shape that this test can try", len(found), n)
	}
	return found
}

// scrape returns the values of every metric that a service shows, whatever their labels.
func (o *operator) scrape(t *testing.T, service string) map[string][]float64 {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+o.system.Service(service, 0).DebugAddr()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	sample := regexp.MustCompile(`^(\w+)(?:\{.*\})? (\S+)$`)
	values := map[string][]float64{}
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		if m := sample.FindStringSubmatch(lines.Text()); m != nil {
			value, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				t.Fatalf("%s: %v", lines.Text(), err)
			}
			values[m[1]] = append(values[m[1]], value)
		}
	}
	return values
}

// fires tells whether the rule holds for what a service shows. scale divides its limit.
func (r rule) fires(values map[string][]float64, scale float64) bool {
	if r.absent {
		return len(values[r.metric]) == 0
	}
	return slices.ContainsFunc(values[r.metric], func(v float64) bool { return v > r.limit/scale })
}

// trouble is a state that an alert is about.
type trouble struct {
	alert, service string
	make           func()
	consumed       bool    // meanwhile the streams are read to their end and acknowledged
	scale          float64 // divides the limit; 0 stands for 1
}

// (U88) Each alert rule that is shipped is silent while all is well and fires in the state that it is about: a handler that
// hangs or always fails, a consumer that is stopped and events that are given up, while the streams look consumed; poison, a
// broker that may drop streams or is away, a database that is away; and an owner's events that do not get out.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	o := newOperator(t, harness.Options{})
	if out := o.load(20, 2, time.Millisecond); len(out.failed) > 0 {
		t.Fatal(out.failed[0])
	}
	o.quiet(t, 60*time.Second)
	shipped := map[string]rule{}
	admin, owner := o.scrape(t, "admin"), o.scrape(t, "auth")
	for _, r := range rules(t) {
		shipped[r.name] = r
		values := admin
		if strings.HasPrefix(r.metric, "counterfoil_outbox_") {
			values = owner
		}
		if r.fires(values, 1) {
			t.Errorf("%s fires while all is well: %s is %v", r.name, r.metric, values[r.metric])
		}
	}
	for _, c := range o.troubles(t) {
		r, ok := shipped[c.alert]
		if !ok {
			t.Errorf("there is no rule %s, or two states for it", c.alert)
			continue
		}
		delete(shipped, c.alert)
		c.make()
		harness.Eventually(t, 30*time.Second, func() error {
			values := o.scrape(t, c.service)
			if !r.fires(values, max(c.scale, 1)) {
				return fmt.Errorf("%s is silent: %s is %v", r.name, r.metric, values[r.metric])
			}
			if lag, pending := values["inbox_stream_lag"], values["inbox_stream_pending"]; c.consumed && (len(lag) != 2 || slices.Max(lag) > 0 || slices.Max(pending) > 0) {
				return fmt.Errorf("%s: lag %v, pending %v, want a stream that looks consumed", r.name, lag, pending)
			}
			return nil
		})
	}
	for name := range shipped {
		t.Errorf("no state is tried for %s", name)
	}
}

// troubles are the states, in an order in which none hides a later one.
func (o *operator) troubles(t *testing.T) []trouble {
	t.Helper()
	exec := func(owner, sql string) func() {
		return func() {
			t.Helper()
			tag, err := o.system.DB(owner).Exec(t.Context(), sql)
			if err != nil || tag.Update() && tag.RowsAffected() != 1 {
				t.Fatalf("%s: %v, %v", sql, tag, err)
			}
		}
	}
	// One row is put into a state that nobody takes it out of.
	inbox := func(set string) func() {
		return exec("admin", `UPDATE consumer_inbox SET finished_at = NULL, received_at = now() - interval '1 hour', `+set+`
			WHERE consumer = 'audit-log' AND event_id = (
				SELECT event_id FROM consumer_inbox WHERE state = 'PROCESSED' AND consumer = 'audit-log' LIMIT 1)`)
	}
	outbox := func(set string) func() {
		return exec("app", `UPDATE audit_outbox SET `+set+`
			WHERE event_id = (SELECT event_id FROM audit_outbox WHERE status = 'DELIVERED' LIMIT 1)`)
	}
	junk := func() {
		t.Helper()
		values := []any{"junk", uuid.NewString()}
		if err := o.system.RedisClient.XAdd(t.Context(), &redis.XAddArgs{Stream: "audit:{app}", Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	return []trouble{
		{alert: "InboxStopped", service: "admin", consumed: true, make: inbox(`state = 'PENDING', attempts = 0, next_retry_at = now() + interval '1 hour'`)},
		{alert: "InboxRetryEndless", service: "admin", consumed: true, make: inbox(`state = 'PENDING', attempts = 3, next_retry_at = now() + interval '1 hour'`)},
		{alert: "InboxLeaseStuck", service: "admin", consumed: true, make: inbox(`state = 'PROCESSING', attempts = 1, lease_owner = 'x',
			lease_token = gen_random_uuid(), lease_expires_at = now() + interval '1 hour', next_retry_at = now() - interval '2 minutes'`)},
		{alert: "InboxDead", service: "admin", consumed: true, make: exec("admin", `UPDATE consumer_inbox SET state = 'DEAD', dead_at = now(), last_error_code = 'test.dead'
			WHERE event_id = (SELECT event_id FROM consumer_inbox WHERE state = 'PROCESSED' AND consumer = 'audit-log' LIMIT 1) AND consumer = 'audit-log'`)},
		{alert: "InboxPoison", service: "admin", consumed: true, make: junk},
		{alert: "BrokerEvicts", service: "admin", consumed: true, make: func() {
			t.Helper()
			if err := o.system.RedisClient.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
				t.Fatal(err)
			}
		}},
		// The bridge stands still with what it read, and what comes after stays unread.
		{alert: "StreamUnread", service: "admin", scale: 2000, make: func() {
			t.Helper()
			lock, err := o.system.DB("admin").Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = lock.Rollback(context.WithoutCancel(t.Context())) })
			if _, err := lock.Exec(t.Context(), "LOCK TABLE ledger_positions IN EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			junk()
			harness.Eventually(t, 10*time.Second, func() error {
				if pending := o.scrape(t, "admin")["inbox_stream_pending"]; slices.Max(pending) == 0 {
					return errors.New("the bridge has read nothing")
				}
				return nil
			})
			junk()
		}},
		{alert: "InboxUnreadable", service: "admin", make: func() {
			t.Helper()
			exec("auth", "ALTER DATABASE admin ALLOW_CONNECTIONS false")()
			exec("auth", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'admin'")()
		}},
		{alert: "OutboxDead", service: "app", make: outbox(`status = 'FAILED', last_error_code = 'test.dead', last_error_at = now()`)},
		{alert: "OutboxOld", service: "app", make: outbox(`status = 'DEFERRED', created_at = now() - interval '1 hour', next_attempt_at = now() + interval '1 hour'`)},
		{alert: "StreamUnreadable", service: "admin", make: func() { o.system.Redis.Kill() }},
		{alert: "OutboxCircuitOpen", service: "app", make: func() {
			t.Helper()
			if _, err := o.createProject(); err != nil {
				t.Fatal(err)
			}
		}},
	}
}
