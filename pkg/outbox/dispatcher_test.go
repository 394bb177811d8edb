// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/memory"
	"github.com/counterfoil/counterfoil/pkg/outbox/noop"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// clock is a clock that a test moves.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time          { return c.now }
func (c *clock) advance(d time.Duration) { c.now = c.now.Add(d) }

// bench is a Dispatcher over a memory store, driven pass by pass on one clock.
type bench struct {
	t      *testing.T
	clock  *clock
	store  *memory.Store
	broker *outboxtest.Publisher
	d      *outbox.Dispatcher
}

func newBench(t *testing.T, change func(*outbox.DispatcherOptions)) *bench {
	t.Helper()
	b := &bench{t: t, clock: &clock{time.Now()}, broker: &outboxtest.Publisher{}}
	b.store = memory.New(memory.Options{Now: b.clock.Now})
	o := outbox.DispatcherOptions{Store: b.store, Publisher: b.broker, Now: b.clock.Now, Rand: func() float64 { return 0.999 }}
	if change != nil {
		change(&o)
	}
	d, err := outbox.NewDispatcher(o)
	if err != nil {
		t.Fatal(err)
	}
	b.d = d
	return b
}

func (b *bench) add(n int) []*auditv1.AuditEvent {
	b.t.Helper()
	events := outboxtest.Events(n)
	if err := b.store.Add(events...); err != nil {
		b.t.Fatal(err)
	}
	return events
}

func (b *bench) once(want int) {
	b.t.Helper()
	b.clock.advance(time.Microsecond)
	n, err := b.d.Once(b.t.Context())
	if err != nil || n != want {
		b.t.Fatalf("Once: %d, %v; want %d", n, err, want)
	}
}

func (b *bench) record(e *auditv1.AuditEvent) outbox.Record {
	b.t.Helper()
	r, _, err := b.store.Get(b.t.Context(), uuid.MustParse(e.GetAuditId()))
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// A12, A40, A41-A46, A50, T3: what a broker answers, and what becomes of the entry.
func TestResultsBecomeStates(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply    func(outbox.Message) outbox.Fault
		status   outbox.Status
		attempts int
		claims   int
		code     string
		due      time.Duration // at least
	}{
		"accepted":      {func(outbox.Message) outbox.Fault { return outbox.Fault{} }, outbox.StatusDelivered, 0, 0, "", 0},
		"broker":        {fault(outbox.FaultBroker, "broker.oom"), outbox.StatusDeferred, 0, 0, "broker.oom", 50 * time.Millisecond},
		"refused alone": {fault(outbox.FaultRefused, "broker.refused"), outbox.StatusDeferred, 0, 0, "broker.refused", 50 * time.Millisecond},
		"permanent":     {fault(outbox.FaultPermanent, outbox.CodeTooLarge), outbox.StatusFailed, 1, 0, outbox.CodeTooLarge, 0},
		"panic": {
			func(outbox.Message) outbox.Fault { panic("broken publisher") }, outbox.StatusDeferred, 0, 1,
			outbox.CodePublisherPanic, time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil)
			e := b.add(1)[0]
			b.broker.Reply(func(_ context.Context, msgs []outbox.Message) []outbox.Result {
				return []outbox.Result{{Fault: c.reply(msgs[0]), RecordID: "1-1"}}
			})
			b.once(1)
			r := b.record(e)
			if r.Status != c.status || r.Attempts != c.attempts || r.ClaimCount != c.claims || r.LastErrorCode != c.code || r.ClaimOwner != "" {
				t.Errorf("entry is %s with %d attempts, %d claims, code %q, claimed by %q", r.Status, r.Attempts, r.ClaimCount, r.LastErrorCode, r.ClaimOwner)
			}
			if left := r.NextAttemptTime.Sub(b.clock.now); c.due > 0 && left < c.due {
				t.Errorf("due in %v, want at least %v", left, c.due)
			}
		})
	}
}

func fault(kind outbox.FaultKind, code string) func(outbox.Message) outbox.Fault {
	return func(outbox.Message) outbox.Fault { return outbox.Fault{Kind: kind, Code: code} }
}

// U71: backoff doubles and is capped; A46, A51: attempts end in DEAD_LETTERED, and an operator's requeue starts over.
func TestOwnFailuresBackOffAndEnd(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	bad := b.add(1)[0]
	b.broker.Reply(outboxtest.RefuseOnly(outbox.FaultRefused, "broker.refused", uuid.MustParse(bad.GetAuditId())))
	var delays []time.Duration
	for n := 1; n < 10; n++ {
		b.add(1) // another entry of the page, which the broker accepts
		b.once(2)
		r := b.record(bad)
		if r.Status != outbox.StatusRetryableFailure || r.Attempts != n {
			t.Fatalf("after %d: %s, %d attempts", n, r.Status, r.Attempts)
		}
		delays = append(delays, r.NextAttemptTime.Sub(b.clock.now))
		b.clock.advance(6 * time.Minute)
	}
	for i, d := range delays {
		want := min(time.Duration(1<<(i+1))*time.Second, 5*time.Minute)
		if d < want-time.Second || d > want+time.Second {
			t.Errorf("delay %d is %v, want %v", i+1, d, want)
		}
	}
	b.add(1)
	b.once(2)
	if r := b.record(bad); r.Status != outbox.StatusDeadLettered || r.Attempts != 10 || r.DeadReason != outbox.CodeAttemptsExhausted {
		t.Errorf("after the last attempt: %s, %d, %q", r.Status, r.Attempts, r.DeadReason)
	}
	b.clock.advance(time.Hour)
	b.once(0)
}

// F27: an error is an entry's own only if the broker accepted another of the
// page, or any other since this entry's previous failure.
func TestWhoseErrorItIs(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	suspect := b.add(1)[0]
	b.broker.Reply(outboxtest.RefuseOnly(outbox.FaultRefused, "broker.refused", uuid.MustParse(suspect.GetAuditId())))
	for range 5 { // nothing else to compare with: the broker's, however often
		b.once(1)
		if r := b.record(suspect); r.Status != outbox.StatusDeferred || r.Attempts != 0 {
			t.Fatalf("alone: %s, %d attempts", r.Status, r.Attempts)
		}
		b.clock.advance(time.Minute)
	}
	b.add(1)
	b.once(1) // the probe leaves out what failed last, takes the other, and closes the circuit
	if s := b.d.Stats(); s.CircuitOpen || s.Delivered != 1 {
		t.Fatalf("after the other was accepted: %+v", s)
	}
	b.once(1)
	if r := b.record(suspect); r.Status != outbox.StatusRetryableFailure || r.Attempts != 1 {
		t.Errorf("after another was accepted: %s, %d attempts; want its own failure", r.Status, r.Attempts)
	}
	b.clock.advance(time.Minute)
	b.once(1)
	if r := b.record(suspect); r.Status != outbox.StatusDeferred || r.Attempts != 1 {
		t.Errorf("nothing accepted since: %s, %d attempts; want the broker's", r.Status, r.Attempts)
	}
}

// T3, F28, A43: an outage uses no attempt and no claim, probes with one entry at
// a growing pause, and ends with everything due at once.
func TestOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	b.add(500)
	b.broker.Reply(outboxtest.Refuse(outbox.FaultBroker, "broker.unavailable"))
	b.once(500)
	start := b.clock.now
	probes := 0
	for b.clock.now.Sub(start) < 30*time.Minute {
		b.clock.advance(100 * time.Millisecond)
		n, err := b.d.Once(t.Context())
		if err != nil || n > 1 {
			t.Fatalf("an open circuit claimed %d, %v", n, err)
		}
		probes += n
	}
	if probes < 55 || probes > 120 {
		t.Errorf("%d probes in 30 minutes, want about one in 30 s", probes)
	}
	s, err := b.store.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.Depth[outbox.StatusDeferred] != 500 {
		t.Errorf("depth %v, want 500 deferred", s.Depth)
	}
	records, _ := b.store.List(t.Context(), outbox.Filter{Limit: 1000})
	for _, r := range records {
		if r.Attempts != 0 || r.ClaimCount != 0 {
			t.Fatalf("entry %d used %d attempts, %d claims", r.LedgerSeq, r.Attempts, r.ClaimCount)
		}
	}
	b.broker.Reply(nil)
	b.clock.advance(time.Minute)
	b.once(1)   // the probe
	b.once(499) // and everything else, at once
}

// An open circuit probes with another entry than the one that failed last.
func TestProbesTakeTurns(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	events := b.add(2)
	b.broker.Reply(outboxtest.Refuse(outbox.FaultBroker, "broker.noperm"))
	b.once(2)
	for range 6 {
		b.clock.advance(time.Minute)
		b.once(1)
	}
	var probed []uuid.UUID
	for _, call := range b.broker.Calls()[1:] {
		probed = append(probed, call[0].EventID)
	}
	for i, id := range probed {
		if want := uuid.MustParse(events[i%2].GetAuditId()); id != want {
			t.Errorf("probe %d took %v, want %v", i, id, want)
		}
	}
}

// An accepted part of a page is delivered even if the broker ran out of memory in its middle.
func TestTroubleInMidPage(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	events := b.add(10)
	b.broker.Reply(func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		out := outboxtest.Accept(ctx, msgs)
		for i := 4; i < len(out); i++ {
			out[i] = outbox.Result{Fault: outbox.Fault{Kind: outbox.FaultBroker, Code: "broker.oom"}}
		}
		return out
	})
	b.once(10)
	for i, e := range events {
		want := outbox.StatusDelivered
		if i >= 4 {
			want = outbox.StatusDeferred
		}
		if r := b.record(e); r.Status != want {
			t.Errorf("entry %d is %s, want %s", i, r.Status, want)
		}
	}
	if !b.d.Stats().CircuitOpen {
		t.Error("the circuit is closed")
	}
}

// F6, T10: the one that kills its worker reaches the limit, its neighbours do not.
func TestRepeatStarterEndsAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	events := b.add(100)
	killer := uuid.MustParse(events[50].GetAuditId())
	b.broker.Reply(func(ctx context.Context, msgs []outbox.Message) []outbox.Result {
		for i := range msgs {
			if msgs[i].EventID == killer {
				panic("the worker ends here")
			}
		}
		return outboxtest.Accept(ctx, msgs)
	})
	for range 150 {
		if _, err := b.d.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.clock.advance(6 * time.Minute)
	}
	for i, e := range events {
		r := b.record(e)
		switch {
		case i == 50 && (r.Status != outbox.StatusDeadLettered || r.DeadReason != outbox.CodeMaxClaims):
			t.Errorf("the killer is %s, %q", r.Status, r.DeadReason)
		case i != 50 && r.Status != outbox.StatusDelivered:
			t.Errorf("neighbour %d is %s", i, r.Status)
		}
	}
	if n := b.broker.Published()[killer]; n != 23 {
		t.Errorf("the killer was started %d times, want 3 in company and 20 alone", n)
	}
}

// A13, A37: the smoke path without a broker.
func TestNoopDelivers(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(o *outbox.DispatcherOptions) { o.Publisher = noop.Publisher{} })
	e := b.add(1)[0]
	if r := b.record(e); r.Status != outbox.StatusPending {
		t.Fatalf("before: %s", r.Status)
	}
	b.once(1)
	if r := b.record(e); r.Status != outbox.StatusDelivered || r.Provider != noop.Name || r.RecordID != e.GetAuditId() {
		t.Errorf("after: %+v", r)
	}
}

// T7: options that cannot work are refused at start.
func TestOptionsAreValidated(t *testing.T) {
	t.Parallel()
	good := outbox.DispatcherOptions{Store: memory.New(memory.Options{}), Publisher: noop.Publisher{}}
	if _, err := outbox.NewDispatcher(good); err != nil {
		t.Fatalf("the zero value: %v", err)
	}
	for name, change := range map[string]func(*outbox.DispatcherOptions){
		"no store":          func(o *outbox.DispatcherOptions) { o.Store = nil },
		"no publisher":      func(o *outbox.DispatcherOptions) { o.Publisher = nil },
		"negative page":     func(o *outbox.DispatcherOptions) { o.PageRows = -1 },
		"lease below renew": func(o *outbox.DispatcherOptions) { o.Lease = 15 * time.Second },
		"negative poll":     func(o *outbox.DispatcherOptions) { o.Poll = -1 },
		"negative limit":    func(o *outbox.DispatcherOptions) { o.MaxClaims = -1 },
		"retry":             func(o *outbox.DispatcherOptions) { o.RetryUnit = time.Hour },
		"circuit":           func(o *outbox.DispatcherOptions) { o.CircuitMin = time.Hour },
	} {
		o := good
		change(&o)
		if _, err := outbox.NewDispatcher(o); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	scaled := good.Scaled(60)
	if scaled.Lease != 500*time.Millisecond || scaled.RetryMax != 5*time.Second {
		t.Errorf("scaled by 60: lease %v, retry cap %v", scaled.Lease, scaled.RetryMax)
	}
	if _, err := outbox.NewDispatcher(scaled); err != nil {
		t.Errorf("scaled options: %v", err)
	}
	for _, factor := range []float64{-1, 0, 0.5, 1} {
		if o := good.Scaled(factor); o.Lease != 30*time.Second {
			t.Errorf("scaled by %v: lease %v, want the default", factor, o.Lease)
		}
	}
}

// The table of the package comment, over all pairs (U67).
func TestStatusTable(t *testing.T) {
	t.Parallel()
	p, d, f, r, x := outbox.StatusPending, outbox.StatusDeferred, outbox.StatusFailed, outbox.StatusRetryableFailure, outbox.StatusDeadLettered
	ok := outbox.StatusDelivered
	legal := map[[2]outbox.Status]bool{{f, p}: true, {x, p}: true}
	for _, from := range []outbox.Status{p, d, r} {
		for _, to := range []outbox.Status{ok, d, f, r, x} {
			legal[[2]outbox.Status{from, to}] = true
		}
	}
	all := append(outbox.Statuses(), "", "CLAIMED")
	for _, from := range all {
		for _, to := range all {
			if got := from.CanBecome(to); got != legal[[2]outbox.Status{from, to}] {
				t.Errorf("%q to %q: %v", from, to, got)
			}
		}
	}
	if len(outbox.Statuses()) != 6 {
		t.Errorf("%d statuses, want six", len(outbox.Statuses()))
	}
}
