// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"errors"
	"regexp"

	"github.com/jackc/pgx/v5/pgconn"
)

// Error codes that the package itself gives.
const (
	CodeHandlerError   = "inbox.handler_error"   // the handler returned an error without a code
	CodeHandlerPanic   = "inbox.handler_panic"   // the handler panicked
	CodeHandlerTimeout = "inbox.handler_timeout" // the handler exceeded its budget
	CodeMaxStarts      = "inbox.max_starts"      // every start ended without an outcome: the process died
	CodeUndecodable    = "inbox.undecodable"     // the stored payload does not decode
	CodeConnectionCut  = "inbox.connection_cut"  // run alone, the handler lost its connection again and again
	maxCodeLength      = 64
)

// codePattern bounds what is stored and shown of an error: a code, never text that could hold a value.
var codePattern = regexp.MustCompile(`^[a-z0-9]+([._-][a-z0-9]+)*$`)

// codedError gives an error a stable code.
type codedError struct {
	code      string
	permanent bool
	err       error
}

// Error implements error.
func (e *codedError) Error() string { return e.code + ": " + e.err.Error() }

// Unwrap returns the cause.
func (e *codedError) Unwrap() error { return e.err }

// Permanent marks err as one that no further attempt can cure: its event goes to DEAD at once,
// under code ("audit.id_mismatch": lower case, digits, ".", "_" and "-", at most 64 characters).
// The error's text is logged and not stored.
func Permanent(code string, err error) error { return coded(code, true, err) }

// Coded gives err the code that is stored with the row if it fails; it is tried again.
func Coded(code string, err error) error { return coded(code, false, err) }

func coded(code string, permanent bool, err error) error {
	if err == nil {
		err = errors.New(code)
	}
	return &codedError{code: boundCode(code), permanent: permanent, err: err}
}

func boundCode(code string) string {
	if len(code) > maxCodeLength || !codePattern.MatchString(code) {
		return CodeHandlerError
	}
	return code
}

// codeOf returns the code to store for a handler's error, and whether it is permanent.
func codeOf(err error) (code string, permanent bool) {
	if c, ok := errors.AsType[*codedError](err); ok {
		return c.code, c.permanent
	}
	if p, ok := errors.AsType[*pgconn.PgError](err); ok {
		return boundCode("postgres." + lower(p.Code)), false
	}
	return CodeHandlerError, false
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// Errors of the operations.
var (
	// ErrNotFound says that there is no such row.
	ErrNotFound = errors.New("inbox: not found")
	// ErrInvalid says that an argument is refused: too many ids, a limit out of range, a reason that is missing or too long.
	ErrInvalid = errors.New("inbox: invalid argument")
)

// Reasons for which an operation leaves an id as it is.
const (
	RefusedNotFound = "not_found"   // there is no such row
	RefusedState    = "wrong_state" // it is not in the state that the verb leaves
	RefusedKind     = "wrong_kind"  // the poison is not PARKED
	RefusedUnusable = "not_usable"  // it is still not understood; ErrorCode says why
	RefusedCut      = "cut"         // its bytes were too many to keep
)
