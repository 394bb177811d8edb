// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// recordWait bounds the transaction that records a refusal, whatever became of the call.
const recordWait = 5 * time.Second

// attempt is an operation in progress: what to record if it is refused, and the key under which its answer is kept.
type attempt struct {
	Attempt
	resource string // opaque id; empty if the call names none
	key      idempotency.Key
}

func (a Attempt) on(id uuid.UUID, key idempotency.Key) attempt {
	return attempt{Attempt: a, resource: id.String(), key: key}
}

// refuse records that an attempt was refused or failed, and returns err. Trouble and mistakes of our own decide
// nothing, and there is nothing to record of them.
func (s *Service) refuse(ctx context.Context, try attempt, err error) error {
	if outcome, decided := outcomeOf(err); decided {
		s.record(ctx, refused(s.origin(ctx), try.Attempt, try.resource, outcome, apperr.ReasonOf(err)))
	}
	return err
}

// outcomeOf tells who says no (denied) from what cannot be done (failed).
func outcomeOf(err error) (auditv1.Outcome, bool) {
	switch apperr.KindOf(err) {
	case apperr.KindPermissionDenied, apperr.KindUnauthenticated:
		return auditv1.Outcome_OUTCOME_DENIED, true
	case apperr.KindInvalidArgument, apperr.KindNotFound, apperr.KindAlreadyExists, apperr.KindFailedPrecondition,
		apperr.KindAborted, apperr.KindResourceExhausted:
		return auditv1.Outcome_OUTCOME_FAILED, true
	default:
		return auditv1.Outcome_OUTCOME_UNSPECIFIED, false
	}
}

// record appends events about no row in a transaction of their own. The caller's going away does not stop it; if it
// fails, the log says so and the caller's answer stays what it was (T18).
func (s *Service) record(ctx context.Context, events ...*auditv1.AuditEvent) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordWait)
	defer cancel()
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		return outbox.Append(ctx, tx, events...)
	})
	if err != nil {
		s.log.ErrorContext(ctx, "refusal not recorded",
			slog.String("event_type", events[0].GetEventType()), slog.String("reason", events[0].GetReason()), slog.Any("error", err))
		return
	}
	s.wake()
}

// recordCheap is record for a refusal that costs the caller nothing to bring about and that nothing can stop: no good token
// came with the call, or one whose session is over, and no password was hashed. Those are recorded up to 50 a second; what
// is beyond is logged.
func (s *Service) recordCheap(ctx context.Context, e *auditv1.AuditEvent) {
	if !s.anonymous.Allow() {
		s.log.WarnContext(ctx, "refusal not recorded: too many from callers who are not logged in",
			slog.String("event_type", e.GetEventType()), slog.String("reason", e.GetReason()))
		return
	}
	s.record(ctx, e)
}

// RecordRefusal records a call that the authenticator did not let in, with who it was if ctx names one.
func (s *Service) RecordRefusal(ctx context.Context, tried Attempt, r authn.Refusal) {
	e := refused(s.origin(ctx), tried, "", auditv1.Outcome_OUTCOME_DENIED, r.Reason)
	if apperr.KindOf(r.Err) == apperr.KindUnauthenticated {
		s.recordCheap(ctx, e)
		return
	}
	s.record(ctx, e)
}
