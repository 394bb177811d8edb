// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package drill

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/test/harness"
)

// refusal is how long, in simulated time, the broker refuses.
const refusal = 10 * time.Minute

// (A67, BC-24) The broker answers and refuses everything that matters, for ten simulated minutes each: rights are taken away,
// its memory is full, it has become a replica. No event is dead, none has used an attempt, neither logs nor the broker are
// flooded, and afterwards everything is recorded.
// It guards: broker trouble is never an entry's own, and an open circuit probes with one entry and a growing pause.
func TestBrokerThatRefuses(t *testing.T) {
	t.Parallel()
	d := start(t, harness.Options{TimeScale: 30})
	project, err := d.createProject(d.ctx)
	if err != nil {
		t.Fatal(err)
	}
	deadHost := unusedAddr(t)
	for _, refused := range []struct {
		code        string
		begin, over [][]any
	}{
		{
			"NOPERM",
			[][]any{{"ACL", "SETUSER", "auth", "-xadd"}, {"ACL", "SETUSER", "app", "-xadd"}, {"ACL", "SETUSER", "admin", "-xreadgroup", "-xautoclaim"}},
			[][]any{{"ACL", "SETUSER", "auth", "+xadd"}, {"ACL", "SETUSER", "app", "+xadd"}, {"ACL", "SETUSER", "admin", "+xreadgroup", "+xautoclaim"}},
		},
		{"OOM", [][]any{{"CONFIG", "SET", "maxmemory", "1"}}, [][]any{{"CONFIG", "SET", "maxmemory", "0"}}},
		{"READONLY", [][]any{{"REPLICAOF", deadHost.IP.String(), deadHost.Port}}, [][]any{{"REPLICAOF", "NO", "ONE"}}},
	} {
		t.Run(refused.code, func(t *testing.T) {
			before, since := d.refusals(t), time.Now()
			d.redis(t, refused.begin)
			d.brokerLoad(t, project)
			wait(t.Context(), d.scaled(refusal/2))
			d.brokerLoad(t, project)
			wait(t.Context(), d.scaled(refusal)-time.Since(since))
			simulated := d.scale * time.Since(since).Seconds()
			if n := d.refusals(t) - before; n == 0 || float64(n) > simulated {
				t.Errorf("the broker refused %d commands in %.0f simulated seconds, want at most one a second and not none", n, simulated)
			} else {
				t.Logf("the broker refused %d commands in %.0f simulated seconds", n, simulated)
			}
			for _, owner := range owners() {
				if open := get[int](t, d, owner, "SELECT count(*) FROM audit_outbox WHERE status <> 'DELIVERED'"); open == 0 {
					t.Errorf("nothing of %s waits: the test does not test", owner)
				}
				d.noAttemptUsed(t, owner)
			}
			d.noFlood(t, since)
			d.redis(t, refused.over)
			over := time.Now()
			d.brokerLoad(t, project)
			d.allRecorded(t)
			t.Logf("caught up after %v", time.Since(over))
			for _, owner := range owners() {
				d.noAttemptUsed(t, owner)
			}
		})
	}
}

// brokerLoad makes events of both owners; business does not notice the broker.
func (d *drill) brokerLoad(t *testing.T, project string) {
	t.Helper()
	if err := d.importMembers(d.ctx, project, 50); err != nil {
		t.Fatal(err)
	}
	if _, err := d.createUser(d.ctx); err != nil {
		t.Fatal(err)
	}
}

// noAttemptUsed demands that no entry has used an attempt, nor ended otherwise than delivered.
func (d *drill) noAttemptUsed(t *testing.T, owner string) {
	t.Helper()
	const used = "FROM audit_outbox WHERE attempts > 0 OR status NOT IN ('PENDING', 'DEFERRED', 'DELIVERED')"
	if n := get[int](t, d, owner, "SELECT count(*) "+used); n > 0 {
		t.Errorf("%d entries of %s have used attempts, such as %s", n, owner, get[string](t, d, owner,
			"SELECT format('%s with %s, last error %s', status, attempts, last_error_code) "+used+" LIMIT 1"))
	}
}

// redis sends commands with all rights.
func (d *drill) redis(t *testing.T, commands [][]any) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, command := range commands {
		if err := d.RedisClient.Do(ctx, command...).Err(); err != nil {
			t.Fatalf("%v: %v", command, err)
		}
	}
}

// refusals counts the commands that the broker refused or failed so far.
func (d *drill) refusals(t *testing.T) int {
	t.Helper()
	text, err := d.RedisClient.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(",:\r\n", r) }) {
		name, value, _ := strings.Cut(field, "=")
		if name == "rejected_calls" || name == "failed_calls" {
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatal(fmt.Errorf("read %s: %w", field, err))
			}
			sum += n
		}
	}
	return sum
}

// unusedAddr is an address where nobody listens.
func unusedAddr(t *testing.T) *net.TCPAddr {
	t.Helper()
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
}
