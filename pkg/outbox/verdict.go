// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
)

// verdict is what a page's results mean.
type verdict struct {
	outcomes []Outcome
	unknown  []uuid.UUID // interrupted by the stop: to be released
	accepted int
	trouble  bool   // the broker's own
	code     string // of the first trouble
}

// judge turns results into outcomes. An error reply is the entry's own only if
// the broker accepted another entry of the page, or any entry since this one's
// previous failure; everything else is the broker's, and nobody's attempt.
func (d *Dispatcher) judge(t taken, results []Result, panicked, stopping bool) verdict {
	msgs := t.page.Messages
	if panicked {
		return d.judgePanic(msgs)
	}
	var v verdict
	for _, r := range results {
		if r.Accepted() {
			v.accepted++
		}
	}
	d.mu.Lock()
	lastAccepted := d.lastAccepted
	d.mu.Unlock()

	var troubled []int
	for i, m := range msgs {
		switch r := results[i]; {
		case r.Accepted():
			v.outcomes = append(v.outcomes, Outcome{
				EventID: m.EventID, From: m.Status, To: StatusDelivered, Provider: d.o.Publisher.Name(), RecordID: r.RecordID,
			})
		case r.Fault.Kind == FaultPermanent:
			v.outcomes = append(v.outcomes, Outcome{EventID: m.EventID, From: m.Status, To: StatusFailed, UsesAttempt: true, Code: r.Fault.Code})
		case r.Fault.Kind == FaultRefused && (v.accepted > 0 || !m.LastErrorAt.IsZero() && lastAccepted.After(m.LastErrorAt)):
			v.outcomes = append(v.outcomes, d.ownFailure(m, r.Fault.Code))
		case stopping:
			v.unknown = append(v.unknown, m.EventID)
		default:
			troubled = append(troubled, i)
		}
	}
	if len(troubled) == 0 {
		return v
	}
	v.trouble, v.code = true, results[troubled[0]].Fault.Code
	if v.accepted > 0 {
		d.circuit.close() // it did take something: begin with a short pause again
	}
	pause := d.circuit.trip(d.o.Now())
	for _, i := range troubled {
		v.outcomes = append(v.outcomes, Outcome{
			EventID: msgs[i].EventID, From: msgs[i].Status, To: StatusDeferred, Delay: pause, Code: results[i].Fault.Code,
		})
	}
	return v
}

// ownFailure is a refusal that this entry alone met.
func (d *Dispatcher) ownFailure(m Message, code string) Outcome {
	used := m.Attempts + 1
	if used >= m.MaxAttempts {
		o := deadFor(m, CodeAttemptsExhausted)
		o.UsesAttempt, o.Code = true, code
		return o
	}
	return Outcome{
		EventID: m.EventID, From: m.Status, To: StatusRetryableFailure, UsesAttempt: true, Code: code, Delay: d.retryDelay(used),
	}
}

// judgePanic treats a panic as the end of a worker: it may be any entry's doing,
// so the claim stays counted, and the one that repeats it will soon go alone.
func (d *Dispatcher) judgePanic(msgs []Message) verdict {
	var v verdict
	for _, m := range msgs {
		v.outcomes = append(v.outcomes, Outcome{
			EventID: m.EventID, From: m.Status, To: StatusDeferred, KeepClaimCount: true, Code: CodePublisherPanic,
			Delay: d.retryDelay(m.ClaimCount),
		})
	}
	return v
}

// retryDelay is 2ⁿ units, capped.
func (d *Dispatcher) retryDelay(n int) time.Duration { return doubled(d.o.RetryUnit, d.o.RetryMax, n) }

func deadFor(m Message, reason string) Outcome {
	return Outcome{EventID: m.EventID, From: m.Status, To: StatusDeadLettered, Code: reason, Reason: reason}
}

// refused reports whether the store answered, and would answer the same again:
// its trouble (SQLSTATE classes 08, 40, 53, 57 and 58, 55P03, 25006, 25P03) and
// a broken connection pass.
func refused(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) || len(e.Code) != 5 {
		return false
	}
	switch e.Code[:2] {
	case "08", "40", "53", "57", "58":
		return false
	}
	switch e.Code {
	case "55P03", "25006", "25P03", "0A000": // 0A000: a cached plan that a migration broke (BC-12)
		return false
	}
	return true
}
