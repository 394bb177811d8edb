// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package apperr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const secretText = `pq: relation "users" does not exist (SQLSTATE 42P01)`

func TestToStatusCode(t *testing.T) {
	t.Parallel()
	cause := errors.New(secretText)
	for name, tc := range map[string]struct {
		err    error
		code   codes.Code
		reason string
	}{
		"invalid argument":    {InvalidArgument("R", "m"), codes.InvalidArgument, "R"},
		"not found":           {NotFound("R", "m"), codes.NotFound, "R"},
		"already exists":      {AlreadyExists("R", "m"), codes.AlreadyExists, "R"},
		"permission denied":   {PermissionDenied("R", "m"), codes.PermissionDenied, "R"},
		"unauthenticated":     {Unauthenticated("R", "m"), codes.Unauthenticated, "R"},
		"failed precondition": {FailedPrecondition("R", "m"), codes.FailedPrecondition, "R"},
		"aborted":             {Aborted("ETAG_MISMATCH", "m"), codes.Aborted, "ETAG_MISMATCH"},
		"resource exhausted":  {ResourceExhausted("R", "m"), codes.ResourceExhausted, "R"},
		"unavailable":         {Unavailable("R", "m", 0), codes.Unavailable, "R"},
		"wrapped":             {fmt.Errorf("get user: %w", NotFound("R", "m").WithCause(cause)), codes.NotFound, "R"},
		"kind wins over its cause": {
			Unavailable("R", "m", 0).WithCause(context.Canceled), codes.Unavailable, "R",
		},
		"plain":               {cause, codes.Internal, "INTERNAL"},
		"wrapped plain":       {fmt.Errorf("insert: %w", cause), codes.Internal, "INTERNAL"},
		"zero kind":           {&Error{Reason: "R", Message: secretText}, codes.Internal, "INTERNAL"},
		"unknown kind":        {&Error{Kind: 99, Reason: "R", Message: "m"}, codes.Internal, "R"},
		"cancelled":           {fmt.Errorf("query: %w", context.Canceled), codes.Canceled, "CANCELLED"},
		"deadline":            {fmt.Errorf("query: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "DEADLINE_EXCEEDED"},
		"unimplemented":       {status.Error(codes.Unimplemented, secretText), codes.Unimplemented, "UNIMPLEMENTED"},
		"too large":           {status.Error(codes.ResourceExhausted, secretText), codes.ResourceExhausted, "MESSAGE_TOO_LARGE"},
		"somebody's status":   {status.Error(codes.NotFound, secretText), codes.Internal, "INTERNAL"},
		"joined with a plain": {errors.Join(cause, Aborted("R", "m")), codes.Aborted, "R"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := ToStatus(tc.err, Domain)
			if st.Code() != tc.code {
				t.Errorf("code %s, want %s", st.Code(), tc.code)
			}
			info := details[*errdetails.ErrorInfo](t, st)
			if len(info) != 1 {
				t.Fatalf("%d ErrorInfo, want exactly 1", len(info))
			}
			if info[0].GetReason() != tc.reason || info[0].GetDomain() != Domain {
				t.Errorf("ErrorInfo %v, want reason %s", info[0], tc.reason)
			}
			if wire := st.Proto().String(); strings.Contains(wire, "SQLSTATE") || strings.Contains(wire, "relation") {
				t.Errorf("driver text leaves the service: %s", wire)
			}
		})
	}
}

func TestToStatusNil(t *testing.T) {
	t.Parallel()
	if st := ToStatus(nil, Domain); st.Code() != codes.OK || st.Err() != nil {
		t.Errorf("got %v", st)
	}
}

func TestToStatusDetails(t *testing.T) {
	t.Parallel()
	base := InvalidArgument("BAD_MEMBER", "member 3 is listed twice", Violation{Field: "members[3].role", Description: "unknown", Reason: "ENUM"})
	err := base.With("index", "3").WithRetry(1500 * time.Millisecond)
	st := ToStatus(err, "example.org")
	info := details[*errdetails.ErrorInfo](t, st)[0]
	if diff := cmp.Diff(map[string]string{"index": "3"}, info.GetMetadata()); diff != "" || info.GetDomain() != "example.org" {
		t.Errorf("ErrorInfo %v: %s", info, diff)
	}
	bad := details[*errdetails.BadRequest](t, st)
	if len(bad) != 1 || len(bad[0].GetFieldViolations()) != 1 || bad[0].GetFieldViolations()[0].GetField() != "members[3].role" ||
		bad[0].GetFieldViolations()[0].GetReason() != "ENUM" {
		t.Errorf("BadRequest %v", bad)
	}
	retry := details[*errdetails.RetryInfo](t, st)
	if len(retry) != 1 || retry[0].GetRetryDelay().AsDuration() != 1500*time.Millisecond {
		t.Errorf("RetryInfo %v", retry)
	}
	if base.Metadata != nil || base.RetryAfter != 0 {
		t.Error("With changed the error it was called on")
	}
}

func TestToStatusBoundsAndCleans(t *testing.T) {
	t.Parallel()
	violations := make([]Violation, 10_000)
	for i := range violations {
		violations[i] = Violation{Field: "f\xff", Description: strings.Repeat("é", 5000)}
	}
	e := InvalidArgument("R", "bad \xff text "+strings.Repeat("x", 100_000), violations...).With("k\xff", "v\xff")
	st := ToStatus(e, Domain)
	wire, err := proto.Marshal(st.Proto())
	if err != nil {
		t.Fatalf("marshal: %v", err)
	}
	if len(wire) > 128<<10 {
		t.Errorf("status of %d bytes", len(wire))
	}
	if n := len(details[*errdetails.BadRequest](t, st)[0].GetFieldViolations()); n != maxViolations {
		t.Errorf("%d violations, want %d", n, maxViolations)
	}
}

func TestKindOfAndReasonOf(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("outer: %w", Aborted("ETAG_MISMATCH", "changed").WithCause(context.Canceled))
	if KindOf(err) != KindAborted || ReasonOf(err) != "ETAG_MISMATCH" || !errors.Is(err, context.Canceled) {
		t.Errorf("kind %s, reason %s", KindOf(err), ReasonOf(err))
	}
	if KindOf(errors.New("x")) != KindInternal || ReasonOf(errors.New("x")) != "" {
		t.Error("a plain error has a kind")
	}
	if want := "outer: aborted (ETAG_MISMATCH): changed: context canceled"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
}

func TestFromValidation(t *testing.T) {
	t.Parallel()
	rules := validate.FieldPath_builder{Elements: []*validate.FieldPathElement{
		validate.FieldPathElement_builder{FieldName: new("user")}.Build(),
		validate.FieldPathElement_builder{FieldName: new("email")}.Build(),
	}}.Build()
	err := FromValidation(fmt.Errorf("wrapped: %w", &protovalidate.ValidationError{Violations: []*protovalidate.Violation{
		{Proto: validate.Violation_builder{Field: rules, RuleId: new("string.min_len"), Message: new("too short")}.Build()},
		{Proto: validate.Violation_builder{RuleId: new("no_message")}.Build()},
	}}))
	var e *Error
	if !errors.As(err, &e) || e.Kind != KindInvalidArgument {
		t.Fatalf("got %v", err)
	}
	want := []Violation{
		{Field: "user.email", Description: "too short", Reason: "STRING_MIN_LEN"},
		{Description: "violates the rule no_message", Reason: "NO_MESSAGE"},
	}
	if diff := cmp.Diff(want, e.Violations); diff != "" {
		t.Error(diff)
	}
	if FromValidation(nil) != nil {
		t.Error("nil became an error")
	}
	if broken := FromValidation(&protovalidate.CompilationError{}); KindOf(broken) != KindInternal {
		t.Errorf("a broken rule is the caller's fault: %v", broken)
	}
}

// details returns the details of st that are of type T.
func details[T proto.Message](t *testing.T, st *status.Status) []T {
	t.Helper()
	var found []T
	for _, d := range st.Details() {
		if err, ok := d.(error); ok {
			t.Fatalf("detail: %v", err)
		}
		if m, ok := d.(T); ok {
			found = append(found, m)
		}
	}
	return found
}
