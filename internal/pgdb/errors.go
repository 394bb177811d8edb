// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package pgdb

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// SQLSTATE codes of PostgreSQL, appendix A.
const (
	featureNotSupported  = "0A000"
	readOnlyTransaction  = "25006"
	idleInTransaction    = "25P03"
	foreignKeyViolation  = "23503"
	uniqueViolation      = "23505"
	checkViolation       = "23514"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
)

// unavailableRetry is the wait that callers are told when the database has trouble.
const unavailableRetry = time.Second

// Code returns the SQLSTATE in err's chain, and "" if the server gave none.
func Code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// ConstraintName returns the name of the constraint that a statement violated, and "" if it violated none.
func ConstraintName(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.ConstraintName
	}
	return ""
}

// IsUnique says that err violates the named unique or primary key constraint; "" stands for any.
func IsUnique(err error, constraint string) bool { return violates(err, uniqueViolation, constraint) }

// IsForeignKey is IsUnique for foreign keys.
func IsForeignKey(err error, constraint string) bool {
	return violates(err, foreignKeyViolation, constraint)
}

// IsCheck is IsUnique for check constraints.
func IsCheck(err error, constraint string) bool { return violates(err, checkViolation, constraint) }

func violates(err error, code, constraint string) bool {
	return Code(err) == code && (constraint == "" || ConstraintName(err) == constraint)
}

// Trouble says that err is the database's own and not the statement's: SQLSTATE classes 08 (connection), 40 (rollback),
// 53 (resources), 57 (operator, shutdown) and 58 (system), the codes 55P03 (lock time-out), 25006 (read-only) and 25P03
// (idle in transaction time-out), and a connection that could not be made or broke. The same work may succeed later.
//
// 57014 (query cancelled) belongs to class 57 but may be the statement's own time-out: a caller with a budget of its own
// looks at Code first. The end of the caller's own context is not trouble, except while connecting.
func Trouble(err error) bool {
	if err == nil {
		return false
	}
	if code := Code(err); code != "" {
		return troubleCode(code)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return !errors.Is(err, context.Canceled)
	}
	if CommitUnknown(err) {
		return true
	}
	// A deadline is a net.Error too: the context comes first.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err)
}

func troubleCode(code string) bool {
	switch code {
	case lockNotAvailable, readOnlyTransaction, idleInTransaction:
		return true
	}
	for _, class := range [...]string{"08", "40", "53", "57", "58"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}

// connectionCode says that the server ended the session instead of answering the statement.
func connectionCode(code string) bool {
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P")
}

// AppError turns trouble of the database into apperr.Unavailable with the reason DATABASE_UNAVAILABLE and a retry hint,
// and returns any other error, and one that has a kind already, as it is.
func AppError(err error) error {
	var known *apperr.Error
	if errors.As(err, &known) || !Trouble(err) {
		return err
	}
	return apperr.Unavailable("DATABASE_UNAVAILABLE", "the service cannot reach its database at the moment; try again", unavailableRetry).
		WithCause(err)
}

// stalePlan recognises "cached plan must not change result type". The code alone stands for many unsupported features;
// the routine is the server function that raises it and, unlike the message, is not translated.
func stalePlan(e *pgconn.PgError) bool {
	return e.Code == featureNotSupported && e.Routine == "RevalidateCachedQuery"
}

func isStalePlan(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && stalePlan(e)
}
