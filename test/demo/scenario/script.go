// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Step is one call: what it is, what it must leave, and what came of it.
type Step struct {
	// Correlation is the id that the call carries and that its events must carry.
	Correlation string
	// Chapter is the number of the chapter in which it was made.
	Chapter int
	// Method is the called method without its package, such as UserService/CreateUser.
	Method string
	// Service is who was called: auth, app or admin.
	Service string
	// Background tells that it is part of the steady traffic.
	Background bool
	// Events are the actions that must be on record for it, with how often each.
	Events map[string]int
	// Begin and Took say when the call was made and how long it took.
	Begin time.Time
	Took  time.Duration
	// Want and Got are the status codes.
	Want, Got codes.Code
	// Err is the error of a call that did not end as it should have.
	Err error
}

// Script is the journal of a run. Its methods may be called from several goroutines.
type Script struct {
	// Run is the beginning of all correlation ids of this run.
	Run string

	system System
	log    func(format string, args ...any)

	mu      sync.Mutex
	titles  []string
	current int
	steps   []*Step
	failed  error // the first call that did not end as it should have
}

// NewScript begins a run. Run must be unique among all runs against the same system, and made of letters and digits.
func NewScript(system System, run string, log func(format string, args ...any)) *Script {
	return &Script{Run: run, system: system, log: log, titles: []string{"The first start"}}
}

// Chapters returns the titles; chapter 0 is what happened before the first call.
func (s *Script) Chapters() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.titles...)
}

// Steps returns all calls so far, in the order in which they were begun. None may be under way.
func (s *Script) Steps() []Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Step, len(s.steps))
	for i, step := range s.steps {
		all[i] = *step
	}
	return all
}

// Err returns the first call that did not end as it should have, or nil.
func (s *Script) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Chapter returns the chapter of a correlation id, and false for one of another run.
func (s *Script) Chapter(correlation string) (int, bool) {
	rest, ours := strings.CutPrefix(correlation, s.Run+".")
	var chapter int
	if _, err := fmt.Sscanf(rest, "%d.", &chapter); !ours || err != nil {
		return 0, false
	}
	return chapter, true
}

// chapter begins one.
func (s *Script) chapter(title string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.titles = append(s.titles, title)
	s.current = len(s.titles) - 1
	if s.failed == nil {
		s.log("%d. %s", s.current, title)
	}
}

// outcome is how a call must end and what it must leave.
type outcome struct {
	code   codes.Code
	events map[string]int
}

// ok is a call that succeeds and leaves these events.
func ok(actions ...string) outcome { return refused(codes.OK, actions...) }

// refused is a call that ends with this code and leaves these events.
func refused(code codes.Code, actions ...string) outcome {
	o := outcome{code, map[string]int{}}
	for _, action := range actions {
		o.events[action]++
	}
	return o
}

// times is the outcome with n events of one more action.
func (o outcome) times(n int, action string) outcome {
	o.events = maps.Clone(o.events)
	o.events[action] += n
	return o
}

// begin notes a call that is about to be made. It returns nil if the run has failed: then nothing more is called.
func (s *Script) begin(method string, want outcome, background bool) *Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return nil
	}
	parts := strings.Split(strings.Trim(method, "/"), "/")
	names := strings.Split(parts[0], ".")
	step := &Step{
		Correlation: fmt.Sprintf("%s.%d.%d", s.Run, s.current, len(s.steps)+1), Chapter: s.current,
		Method: names[len(names)-1] + "/" + parts[1], Service: names[1], Background: background,
		Events: want.events, Want: want.code, Begin: time.Now(),
	}
	s.steps = append(s.steps, step)
	return step
}

// end notes how it went.
func (s *Script) end(step *Step, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	step.Took, step.Got = time.Since(step.Begin), status.Code(err)
	if step.Got == step.Want {
		return
	}
	where := fmt.Sprintf("call %s in chapter %q, %s", step.Correlation, s.titles[step.Chapter], step.Method)
	step.Err = fmt.Errorf("%s ended with %v, want %v: %w", where, step.Got, step.Want, err)
	if err == nil {
		step.Err = fmt.Errorf("%s succeeded, want %v", where, step.Want)
	}
	if s.failed == nil {
		s.failed = step.Err
	}
}

// caller makes the calls of one person.
type caller struct {
	*Script
	ctx        context.Context //nolint:containedctx // the run's; each call derives its own
	token      string          // access token; "" for nobody
	background bool
}

// call makes one call and notes it. It returns the zero answer if the call did not end as wanted, or was not made because an
// earlier one had not: the rest of a chapter then does nothing, and Script.Err tells why.
func call[Request, Response any](c caller, method string,
	do func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request, want outcome,
) Response {
	var none Response
	step := c.begin(method, want, c.background)
	if step == nil {
		return none
	}
	ctx, cancel := context.WithTimeout(c.ctx, 20*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-correlation-id", step.Correlation)
	if c.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
	}
	answer, err := do(ctx, request)
	c.end(step, err)
	return answer
}
