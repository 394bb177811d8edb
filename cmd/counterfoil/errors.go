// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The exit codes; `counterfoil --help` tells what they mean.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitDenied      = 4
	exitConflict    = 5
	exitUnavailable = 6
)

// failure is an error of this program's own: what happened, what to do about it, and the exit code.
type failure struct {
	code       int
	text, hint string
	cause      error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.cause }

// usage is a failure that another command line avoids.
func usage(format string, args ...any) error {
	return &failure{code: exitUsage, text: fmt.Sprintf(format, args...)}
}

// callError is a call that a service refused or did not answer.
type callError struct {
	service, address, method string
	requestID                string // of the call, if it can be repeated safely
	tls                      bool
	err                      error
}

func (e *callError) Error() string { return e.service + " at " + e.address + ": " + e.err.Error() }
func (e *callError) Unwrap() error { return e.err }

// statusOf returns the status that a service answered with, if err holds one.
func statusOf(err error) (*status.Status, bool) {
	var answered interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &answered) {
		return nil, false
	}
	return answered.GRPCStatus(), true
}

// reasonOf returns the reason code of the service's answer, or nothing.
func reasonOf(err error) string {
	s, ok := statusOf(err)
	if !ok {
		return ""
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

// report is an error as people and scripts get to see it.
type report struct {
	Code          string      `json:"code"`
	ExitCode      int         `json:"exitCode"`
	Message       string      `json:"message"`
	Reason        string      `json:"reason,omitempty"`
	Violations    []violation `json:"violations,omitempty"`
	RetryAfter    string      `json:"retryAfter,omitempty"`
	Service       string      `json:"service,omitempty"`
	Hints         []string    `json:"hints,omitempty"`
	CorrelationID string      `json:"correlationId,omitempty"`
}

// violation is what is wrong with one field of a request.
type violation struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// explain turns any error into a report that says what to do next.
func (a *app) explain(err error) report {
	if own, ok := errors.AsType[*failure](err); ok {
		r := report{Code: ownCode(own.code), ExitCode: own.code, Message: own.text}
		if own.hint != "" {
			r.Hints = []string{own.hint}
		}
		return r
	}
	if s, ok := statusOf(err); ok {
		return a.explainStatus(err, s)
	}
	if errors.Is(err, context.Canceled) {
		return report{Code: "CANCELLED", ExitCode: exitFailure, Message: "interrupted"}
	}
	return report{Code: ownCode(exitFailure), ExitCode: exitFailure, Message: err.Error()}
}

// ownCode names a failure that no service answered.
func ownCode(exit int) string {
	switch exit {
	case exitUsage:
		return "USAGE"
	case exitNotFound:
		return "NOT_FOUND"
	case exitDenied:
		return "DENIED"
	case exitConflict:
		return "CONFLICT"
	case exitUnavailable:
		return "UNAVAILABLE"
	default:
		return "FAILED"
	}
}

func (a *app) explainStatus(err error, s *status.Status) report {
	r := report{Code: codeName(s.Code()), ExitCode: exitOf(s.Code()), Message: s.Message(), CorrelationID: a.correlation()}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			r.Reason = d.GetReason()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				r.Violations = append(r.Violations, violation{v.GetField(), v.GetDescription()})
			}
		case *errdetails.RetryInfo:
			r.RetryAfter = d.GetRetryDelay().AsDuration().String()
		}
	}
	if s.Code() == codes.ResourceExhausted && r.RetryAfter == "" {
		r.ExitCode = exitFailure // too large, say: trying again does not help
	}
	if call, ok := errors.AsType[*callError](err); ok {
		r.Service = call.service
		r.Hints = hints(call, s.Code(), r.Reason)
	}
	return r
}

// exitOf maps the code of a service's answer to an exit code.
func exitOf(code codes.Code) int {
	switch code {
	case codes.OK:
		return exitOK
	case codes.InvalidArgument, codes.OutOfRange:
		return exitUsage
	case codes.NotFound:
		return exitNotFound
	case codes.PermissionDenied, codes.Unauthenticated:
		return exitDenied
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return exitConflict
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return exitUnavailable
	default:
		return exitFailure
	}
}

// codeName is the code as the API's documents write it: NOT_FOUND.
func codeName(code codes.Code) string {
	var b strings.Builder
	for i, r := range code.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}

// hints says what to do about a call that failed.
func hints(call *callError, code codes.Code, reason string) []string {
	if text := reasonHint(reason); text != "" {
		return []string{text}
	}
	switch code {
	case codes.Unauthenticated:
		return []string{"log in: counterfoil login EMAIL"}
	case codes.PermissionDenied:
		return []string{"counterfoil whoami shows your roles; an admin can grant one: counterfoil user grant"}
	case codes.Unavailable, codes.DeadlineExceeded:
		var texts []string
		if reason == "" { // then nothing of ours has answered
			texts = append(texts, fmt.Sprintf("is %s running at %s? Another address: --%s or $COUNTERFOIL_%s", call.service, call.address, call.service, strings.ToUpper(call.service)))
		}
		if reason == "" && call.tls {
			texts = append(texts, "if it is about the certificate: --ca-file FILE names the authority to trust")
		}
		if call.requestID != "" {
			texts = append(texts, "if it was done all the same, doing it again with --request-id "+call.requestID+" changes nothing twice")
		}
		return texts
	case codes.Unimplemented:
		return []string{fmt.Sprintf("what answers at %s is not %s, or of another version than this program", call.address, call.service)}
	default:
		return nil
	}
}

// reasonHint says what to do about a reason, where its message does not.
func reasonHint(reason string) string {
	switch reason {
	case "ETAG_MISMATCH":
		return "read it again, look at what changed, and repeat with the new etag"
	case "TOKEN_EXPIRED":
		return "log in again: counterfoil login EMAIL; if that does not help, compare this computer's clock with the server's"
	case "INVALID_LOGIN":
		return "check address and password; after too many attempts the account is locked for a while"
	case "REQUEST_ID_REUSED":
		return "leave --request-id out, or repeat the first call exactly"
	case "LAST_ADMIN":
		return "make somebody else an admin first: counterfoil user grant USER admin"
	case "LAST_OWNER":
		return "make somebody else an owner first: counterfoil project set-role PROJECT USER owner"
	case "PROJECT_ARCHIVED":
		return "restore it first: counterfoil project restore PROJECT"
	case "INVALID_FILTER":
		return "counterfoil audit list --help lists the fields and operators"
	default:
		return ""
	}
}

func (r report) writeText(w io.Writer) {
	message := r.Message
	if r.Service != "" {
		message = r.Service + ": " + message
	}
	if r.Reason != "" {
		message += " (" + r.Reason + ")"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "counterfoil: %s\n", clean(message))
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "  %s: %s\n", clean(v.Field), clean(v.Description))
	}
	if r.RetryAfter != "" {
		fmt.Fprintf(&b, "  try again in %s\n", r.RetryAfter)
	}
	for _, hint := range r.Hints {
		fmt.Fprintf(&b, "  %s\n", clean(hint))
	}
	if r.CorrelationID != "" {
		fmt.Fprintf(&b, "  correlation id: %s\n", clean(r.CorrelationID))
	}
	tell(w, b.String())
}

func (r report) writeJSON(w io.Writer) {
	text, err := json.Marshal(map[string]report{"error": r})
	if err != nil { // a report is text: it always marshals
		text = []byte(`{"error":{}}`)
	}
	tell(w, string(escapeJSON(text))+"\n")
}
