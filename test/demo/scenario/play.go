// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
)

// Result is what a day came to, beside its script.
type Result struct {
	// Auditor may read the audit log, Operator may follow an event; both are logged in.
	Auditor, Operator *Person
	// Outage is the middle of the day.
	Outage Outage
}

// Token returns the person's access token.
func (p *Person) Token() string { return p.access }

// Play plays the day. Suffix makes addresses and slugs unique on a system that has seen such a day before. The script holds
// all calls, also when an error ends the day early.
func Play(ctx context.Context, script *Script, suffix string) (Result, error) {
	d := newDay(ctx, script, suffix)
	d.people()
	policy := d.policy()
	d.guesses()
	d.theft()
	d.work()
	if err := d.Err(); err != nil {
		return Result{}, err
	}
	outage, err := d.outage()
	result := Result{Auditor: d.barbara, Operator: d.edsger, Outage: outage}
	if err != nil {
		return result, fmt.Errorf("outage: %w", err)
	}
	d.evening(policy)
	return result, d.Err()
}

// Outside notes a call that another program makes with the correlation id given back; done notes how it went.
func (s *Script) Outside(method string, actions ...string) (correlation string, done func(error)) {
	step := s.begin(method, ok(actions...), false)
	if step == nil {
		return s.Run, func(error) {}
	}
	return step.Correlation, func(err error) { s.end(step, err) }
}
