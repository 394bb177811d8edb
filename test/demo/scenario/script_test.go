// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const method = "/counterfoil.auth.v1.UserService/CreateUser"

func newScript() *Script { return NewScript(System{}, "run", func(string, ...any) {}) }

// answering is a method that answers with code and keeps what it was sent.
func answering(code codes.Code, sent *metadata.MD) func(context.Context, string, ...grpc.CallOption) (string, error) {
	return func(ctx context.Context, request string, _ ...grpc.CallOption) (string, error) {
		*sent, _ = metadata.FromOutgoingContext(ctx)
		if code != codes.OK {
			return "", status.Error(code, "no")
		}
		return "answer to " + request, nil
	}
}

func TestACallIsNotedWithWhatItMustLeave(t *testing.T) {
	t.Parallel()
	s := newScript()
	s.chapter("First")
	var sent metadata.MD
	answer := call(caller{Script: s, ctx: t.Context(), token: "token"}, method, answering(codes.OK, &sent), "request",
		ok("auth.user.created").times(3, "auth.role.granted"))
	if answer != "answer to request" || s.Err() != nil {
		t.Errorf("%q, %v", answer, s.Err())
	}
	step := s.Steps()[0]
	if step.Correlation != "run.1.1" || step.Method != "UserService/CreateUser" || step.Service != "auth" || step.Chapter != 1 {
		t.Errorf("%+v", step)
	}
	if len(step.Events) != 2 || step.Events["auth.user.created"] != 1 || step.Events["auth.role.granted"] != 3 {
		t.Errorf("events %v", step.Events)
	}
	if got := sent.Get("x-correlation-id"); len(got) != 1 || got[0] != step.Correlation {
		t.Errorf("sent with %v", sent)
	}
	if got := sent.Get("authorization"); len(got) != 1 || got[0] != "Bearer token" {
		t.Errorf("sent with %v", sent)
	}
}

func TestARefusalThatIsWantedIsNoFailure(t *testing.T) {
	t.Parallel()
	s := newScript()
	var sent metadata.MD
	call(caller{Script: s, ctx: t.Context()}, method, answering(codes.PermissionDenied, &sent), "request", notAllowed("auth.user.create_refused"))
	if s.Err() != nil {
		t.Error(s.Err())
	}
	if len(sent.Get("authorization")) > 0 {
		t.Error("nobody sent a token")
	}
}

// After a call that did not end as it should have, nothing more is called: what follows would only hide it.
func TestTheFirstSurpriseEndsTheRun(t *testing.T) {
	t.Parallel()
	for want, got := range map[codes.Code]codes.Code{codes.OK: codes.Unavailable, codes.PermissionDenied: codes.OK, codes.Aborted: codes.NotFound} {
		s := newScript()
		var sent, after metadata.MD
		c := caller{Script: s, ctx: t.Context()}
		call(c, method, answering(got, &sent), "request", refused(want))
		if s.Err() == nil || !strings.Contains(s.Err().Error(), "UserService/CreateUser") {
			t.Errorf("%v instead of %v: %v", got, want, s.Err())
		}
		first := s.Err()
		if answer := call(c, method, answering(codes.OK, &after), "request", ok()); answer != "" || after != nil {
			t.Errorf("called on after %v", first)
		}
		if correlation, done := s.Outside(method); correlation != "run" {
			t.Errorf("noted %s", correlation)
		} else {
			done(nil)
		}
		if len(s.Steps()) != 1 || s.Err() != first { //nolint:errorlint // the same one
			t.Errorf("%d calls are noted", len(s.Steps()))
		}
	}
}

func TestChapterOfACorrelationID(t *testing.T) {
	t.Parallel()
	s := newScript()
	s.chapter("First")
	correlation, done := s.Outside("x.auth.v1.S/M", "auth.login.succeeded")
	done(nil)
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	for id, want := range map[string]int{correlation: 1, "run.12.345": 12} {
		if got, ours := s.Chapter(id); !ours || got != want {
			t.Errorf("%s: %d, %v", id, got, ours)
		}
	}
	for _, id := range []string{"", "run", "other.1.2", "run.x.1", "running.1.2"} {
		if _, ours := s.Chapter(id); ours {
			t.Errorf("%q is ours", id)
		}
	}
}

func TestOutcomesDoNotShareTheirEvents(t *testing.T) {
	t.Parallel()
	one := ok("a.b")
	many := one.times(500, "a.b")
	if one.events["a.b"] != 1 || many.events["a.b"] != 501 || one.code != codes.OK {
		t.Errorf("%v, %v", one, many)
	}
}

func TestQuiet(t *testing.T) {
	t.Parallel()
	if !(Sample{Appended: 5, Recorded: 5}).Quiet() {
		t.Error("recorded, and not quiet")
	}
	for _, s := range []Sample{{Waiting: 1}, {Flying: 1}, {Handling: 1}} {
		if s.Quiet() {
			t.Errorf("%+v is quiet", s)
		}
	}
}
