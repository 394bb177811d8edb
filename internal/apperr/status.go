// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package apperr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// maxViolations bounds the field violations of one status: trailers have a size limit, and a bulk request can be wrong
// ten thousand times.
const maxViolations = 50

// maxText bounds, in bytes, each text of a status.
const maxText = 1024

// ToStatus turns err into the status that a caller may see: canonical code, a short message and the details of AIP-193
// (exactly one ErrorInfo; BadRequest for field violations; RetryInfo for a retry hint).
//
// A nil error is OK. An error that carries no *Error is CANCELED or DEADLINE_EXCEEDED if it stems from a context, keeps
// its code if gRPC itself made it (not implemented, too large), and is INTERNAL "internal error" otherwise. The text of
// a cause is never part of the result.
func ToStatus(err error, domain string) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	var e *Error
	if errors.As(err, &e) && e.Kind != KindInternal {
		return e.status(domain)
	}
	if plain := fromLibrary(err); plain != nil {
		return withDetails(plain.code, plain.message, plain.info(domain))
	}
	internal := library{codes.Internal, "INTERNAL", "internal error"}
	return withDetails(internal.code, internal.message, internal.info(domain))
}

func (e *Error) status(domain string) *status.Status {
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason: clean(e.Reason), Domain: domain, Metadata: cleanMap(e.Metadata),
	}}
	if len(e.Violations) > 0 {
		details = append(details, badRequest(e.Violations))
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	return withDetails(e.Kind.Code(), clean(e.Message), details...)
}

func badRequest(violations []Violation) *errdetails.BadRequest {
	bad := &errdetails.BadRequest{}
	for _, v := range violations[:min(len(violations), maxViolations)] {
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field: clean(v.Field), Description: clean(v.Description), Reason: clean(v.Reason),
		})
	}
	return bad
}

func withDetails(code codes.Code, message string, details ...protoadapt.MessageV1) *status.Status {
	plain := status.New(code, message)
	full, err := plain.WithDetails(details...)
	if err != nil { // only for details that do not marshal; the code matters more than they do
		return plain
	}
	return full
}

// library is an error that did not come from this package but may be told apart from an internal one.
type library struct {
	code    codes.Code
	reason  string
	message string
}

func (l library) info(domain string) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{Reason: l.reason, Domain: domain}
}

// fromLibrary recognises context errors and those statuses that gRPC's own code returns through a handler. It keeps the
// code and replaces the text.
func fromLibrary(err error) *library {
	code := codes.Unknown
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	default:
		if s, ok := status.FromError(err); ok {
			code = s.Code()
		}
	}
	switch code {
	case codes.Canceled:
		return &library{code, "CANCELLED", "the caller cancelled the call"}
	case codes.DeadlineExceeded:
		return &library{code, "DEADLINE_EXCEEDED", "the call did not finish before its deadline"}
	case codes.Unimplemented:
		return &library{code, "UNIMPLEMENTED", "the method is not implemented by this server"}
	case codes.ResourceExhausted:
		return &library{code, "MESSAGE_TOO_LARGE", "a message is larger than this server allows"}
	default:
		return nil
	}
}

// FromValidation turns the violations that protovalidate found into an InvalidArgument error with one field violation
// each. nil stays nil; an error that is no violation (a rule that does not compile) is returned wrapped and so internal.
func FromValidation(err error) error {
	if err == nil {
		return nil
	}
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) {
		return fmt.Errorf("validate request: %w", err)
	}
	violations := make([]Violation, 0, len(invalid.Violations))
	for _, v := range invalid.Violations {
		description := v.Proto.GetMessage()
		if description == "" {
			description = "violates the rule " + v.Proto.GetRuleId()
		}
		violations = append(violations, Violation{
			Field:       protovalidate.FieldPathString(v.Proto.GetField()),
			Description: description,
			Reason:      upperSnake(v.Proto.GetRuleId()),
		})
	}
	return InvalidArgument("INVALID_REQUEST", "the request has invalid fields; see the field violations", violations...)
}

// upperSnake turns a rule id such as "string.min_len" into a reason such as "STRING_MIN_LEN".
func upperSnake(id string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, id)
}

// clean makes s fit for a protobuf string: valid UTF-8 and bounded.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxText {
		return s
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func cleanMap(m map[string]string) map[string]string {
	out := maps.Clone(m)
	for k, v := range out {
		delete(out, k)
		out[clean(k)] = clean(v)
	}
	return out
}
