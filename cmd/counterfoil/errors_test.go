// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// TestExitCodes: scripts can tell why a command failed.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for code, want := range map[codes.Code]int{
		codes.InvalidArgument: exitUsage, codes.NotFound: exitNotFound, codes.PermissionDenied: exitDenied, codes.Unauthenticated: exitDenied,
		codes.AlreadyExists: exitConflict, codes.FailedPrecondition: exitConflict, codes.Aborted: exitConflict,
		codes.Unavailable: exitUnavailable, codes.DeadlineExceeded: exitUnavailable, codes.Internal: exitFailure,
		codes.Unimplemented: exitFailure, codes.ResourceExhausted: exitFailure,
	} {
		w.fails("AuthService/GetSelf", refusal(code, "SOME_REASON", "so it is"))
		o := w.run("whoami")
		if o.code != want || o.out != "" {
			t.Errorf("%v: exit code %d, want %d", code, o.code, want)
		}
		has(t, o.err, "counterfoil: auth: so it is (SOME_REASON)", "correlation id: ")
	}
	w.fails("AuthService/GetSelf", refusal(codes.ResourceExhausted, "PASSWORD_WORK_BUSY", "busy", &errdetails.RetryInfo{RetryDelay: durationpb.New(2 * time.Second)}))
	if o := w.run("whoami"); o.code != exitUnavailable || !strings.Contains(o.err, "try again in 2s") {
		t.Errorf("busy: exit code %d: %s", o.code, o.err)
	}
	for _, args := range [][]string{{"nonsense"}, {"audit"}, {"user", "get"}, {"whoami", "--nonsense"}, {"outbox", "list", "--service", "admin"}} {
		if o := w.run(args...); o.code != exitUsage || !strings.Contains(o.err, "--help") || o.out != "" {
			t.Errorf("%v: exit code %d: %s", args, o.code, o.err)
		}
	}
	if o := w.run(); o.code != exitUsage || !strings.Contains(o.out, "Exit codes:") {
		t.Errorf("no command: exit code %d: %s", o.code, o.out)
	}
}

// TestErrorText: an error says what was wrong, field by field, and what to do.
func TestErrorText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fails("UserService/UpdateUser", refusal(codes.InvalidArgument, "INVALID_REQUEST", "the request is not valid",
		&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: "user.email", Description: "must be an address"}, {Field: "user.display_name", Description: "no \x1b[31mcolours"},
		}}))
	args := []string{"user", "update", userID, "--email", "ada@example.org", "--correlation-id", "c-1"}
	same(t, w.run(args...).err, `
counterfoil: auth: the request is not valid (INVALID_REQUEST)
  user.email: must be an address
  user.display_name: no \x1b[31mcolours
  correlation id: c-1
`)
	var document struct{ Error report }
	o := w.run(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(o.err), &document); err != nil {
		t.Fatalf("%v: %s", err, o.err)
	}
	e := document.Error
	if e.Code != "INVALID_ARGUMENT" || e.ExitCode != exitUsage || e.Reason != "INVALID_REQUEST" || e.Service != "auth" ||
		e.CorrelationID != "c-1" || len(e.Violations) != 2 || e.Violations[1].Field != "user.display_name" {
		t.Errorf("got %+v", e)
	}
	for reason, want := range map[string]string{
		"ETAG_MISMATCH": "with the new etag", "LAST_ADMIN": "user grant USER admin", "REQUEST_ID_REUSED": "leave --request-id out",
	} {
		w.fails("UserService/UpdateUser", refusal(codes.Aborted, reason, "no"))
		if o := w.run(args...); o.code != exitConflict || !strings.Contains(o.err, want) {
			t.Errorf("%s: exit code %d: %s", reason, o.code, o.err)
		}
	}
}

// TestServiceIsDown: it is said which service, where it was looked for, and how to repeat the change safely.
func TestServiceIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	o := w.run("project", "archive", projectID, "--app", address, "--request-id", eventID)
	if o.code != exitUnavailable {
		t.Errorf("exit code %d", o.code)
	}
	has(t, o.err, "is app running at "+address+"? Another address: --app or $COUNTERFOIL_APP", "--request-id "+eventID+" changes nothing twice")
	w.fails("ProjectService/ArchiveProject", refusal(codes.Unavailable, "DATABASE_UNAVAILABLE", "try again"))
	if o := w.run("project", "archive", projectID); strings.Contains(o.err, "is app running") || !strings.Contains(o.err, "changes nothing twice") {
		t.Errorf("it is running, and says so: %s", o.err)
	}
	if strings.Contains(o.err, "certificate") {
		t.Errorf("plaintext has no certificate: %s", o.err)
	}
	w.on("AuthService/GetSelf", func(received) ([]proto.Message, error) {
		return nil, context.DeadlineExceeded
	})
	if o := w.run("whoami"); o.code == exitOK {
		t.Error("a call without an answer succeeded")
	}
}

// TestInterrupted: a cancelled command ends, and says so.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	w.on("AuthService/GetSelf", func(received) ([]proto.Message, error) {
		cancel()
		<-ctx.Done()
		return nil, refusal(codes.Unavailable, "SERVER_STOPPING", "stopping")
	})
	var stderr strings.Builder
	code := run(ctx, []string{"whoami"}, strings.NewReader(""), &strings.Builder{}, &stderr, func(name string) string { return w.env[name] })
	if code != exitFailure {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
}
