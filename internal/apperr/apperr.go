// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package apperr gives errors a kind, a reason code and a message for people, and turns them into gRPC statuses
// after AIP-193 in one place.
//
// An operation returns either an *Error, possibly wrapped, or any other error. Any other error is internal: its text,
// and the cause of an *Error, are for logs and never reach a caller. The package does not log and knows no database.
package apperr

import (
	"errors"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
)

// Domain is the ErrorInfo domain of every error that the services return.
const Domain = "counterfoil.dev"

// Kind says what sort of failure an error is; one table maps it to a gRPC code.
type Kind int

// The kinds. The zero value is KindInternal, so that a forgotten kind never looks like the caller's mistake.
const (
	KindInternal Kind = iota
	KindInvalidArgument
	KindNotFound
	KindAlreadyExists
	KindPermissionDenied
	KindUnauthenticated
	KindFailedPrecondition
	KindAborted
	KindResourceExhausted
	KindUnavailable
)

// kinds is the one table from kind to gRPC code and name.
func kinds() map[Kind]struct {
	code codes.Code
	name string
} {
	return map[Kind]struct {
		code codes.Code
		name string
	}{
		KindInternal:           {codes.Internal, "internal"},
		KindInvalidArgument:    {codes.InvalidArgument, "invalid argument"},
		KindNotFound:           {codes.NotFound, "not found"},
		KindAlreadyExists:      {codes.AlreadyExists, "already exists"},
		KindPermissionDenied:   {codes.PermissionDenied, "permission denied"},
		KindUnauthenticated:    {codes.Unauthenticated, "unauthenticated"},
		KindFailedPrecondition: {codes.FailedPrecondition, "failed precondition"},
		KindAborted:            {codes.Aborted, "aborted"},
		KindResourceExhausted:  {codes.ResourceExhausted, "resource exhausted"},
		KindUnavailable:        {codes.Unavailable, "unavailable"},
	}
}

// Code returns the gRPC code of k; an unknown kind is codes.Internal.
func (k Kind) Code() codes.Code {
	if row, ok := kinds()[k]; ok {
		return row.code
	}
	return codes.Internal
}

// String returns the name of k in lower case, as used in error texts and logs.
func (k Kind) String() string {
	if row, ok := kinds()[k]; ok {
		return row.name
	}
	return "internal"
}

// Violation says what is wrong with one field of a request.
type Violation struct {
	// Field is the path of the field, such as "user.email" or "members[3].role".
	Field string
	// Description says, for people, what the field must be.
	Description string
	// Reason is an optional code in UPPER_SNAKE_CASE.
	Reason string
}

// Error is a failure that may be shown to the caller, apart from its cause.
//
// Message must hold no text of a driver, a statement or a secret; it is sent as it is. Values are not changed after
// construction: the With methods return copies, so a package-level error value may be extended safely.
type Error struct {
	Kind       Kind
	Reason     string            // UPPER_SNAKE_CASE, at most 63 characters
	Message    string            // one sentence for people that says what to do
	Metadata   map[string]string // every variable that Message mentions
	Violations []Violation       // for KindInvalidArgument
	RetryAfter time.Duration     // 0: no hint
	cause      error
}

// InvalidArgument is a request that can never succeed as it is, whatever the state of the system.
func InvalidArgument(reason, message string, violations ...Violation) *Error {
	return &Error{Kind: KindInvalidArgument, Reason: reason, Message: message, Violations: violations}
}

// InvalidField is InvalidArgument with a single field violation and the reason INVALID_FIELD.
func InvalidField(field, description string) *Error {
	e := InvalidArgument("INVALID_FIELD", field+": "+description, Violation{Field: field, Description: description})
	return e.With("field", field)
}

// NotFound is a resource that does not exist, or that the caller may not know to exist.
func NotFound(reason, message string) *Error {
	return &Error{Kind: KindNotFound, Reason: reason, Message: message}
}

// AlreadyExists is a resource that the call would have created.
func AlreadyExists(reason, message string) *Error {
	return &Error{Kind: KindAlreadyExists, Reason: reason, Message: message}
}

// PermissionDenied is a caller who is known and may not do this.
func PermissionDenied(reason, message string) *Error {
	return &Error{Kind: KindPermissionDenied, Reason: reason, Message: message}
}

// Unauthenticated is a caller who has not shown who it is.
func Unauthenticated(reason, message string) *Error {
	return &Error{Kind: KindUnauthenticated, Reason: reason, Message: message}
}

// FailedPrecondition is a resource in a state that does not allow the call; the caller must change it first.
func FailedPrecondition(reason, message string) *Error {
	return &Error{Kind: KindFailedPrecondition, Reason: reason, Message: message}
}

// Aborted is a lost race, such as an etag that is no longer the current one: read again, then try again.
func Aborted(reason, message string) *Error {
	return &Error{Kind: KindAborted, Reason: reason, Message: message}
}

// ResourceExhausted is a quota, rate or size that is used up.
func ResourceExhausted(reason, message string) *Error {
	return &Error{Kind: KindResourceExhausted, Reason: reason, Message: message}
}

// Unavailable is trouble that passes; retryAfter tells the caller how long to wait (0: no hint).
func Unavailable(reason, message string, retryAfter time.Duration) *Error {
	return &Error{Kind: KindUnavailable, Reason: reason, Message: message, RetryAfter: retryAfter}
}

// With returns a copy of e with one more metadata entry.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.Metadata = make(map[string]string, len(e.Metadata)+1)
	maps.Copy(c.Metadata, e.Metadata)
	c.Metadata[key] = value
	return &c
}

// WithRetry returns a copy of e that tells the caller to wait d before trying again.
func (e *Error) WithRetry(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// WithCause returns a copy of e that wraps err. The cause is seen by errors.Is, errors.As and logs, never by callers.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.cause = err
	return &c
}

// Error returns kind, reason and message, and the cause if there is one: a text for logs.
func (e *Error) Error() string {
	s := e.Kind.String() + " (" + e.Reason + "): " + e.Message
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// KindOf returns the kind of the outermost *Error in err's chain, and KindInternal if there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return KindInternal
}

// ReasonOf returns the reason of the outermost *Error in err's chain, and "" if there is none.
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}
