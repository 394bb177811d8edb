// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// recordBudget bounds the transaction that records a refusal; the caller waits for it.
const recordBudget = 2 * time.Second

// attempt is what a call tries to do: what is recorded of it if it is refused or fails.
type attempt struct {
	call      Call
	kind      Kind // ProjectRefused, MemberRefused, …
	operation auditv1.Operation
	resource  *auditv1.Resource // without a version: nothing changed
}

// answer ends a mutation. If it succeeded, done is the answer. If not, it may be the repeat of a call that did: then
// again makes the answer from what that call was about, as it is now and as far as the caller may still see it, and nothing is recorded.
// Otherwise the refusal is recorded and returned.
//
// Asking only after an error costs the usual call nothing, and finds every repeat: each fails at the latest on its
// request id. It also settles a lost reply to COMMIT.
func answer[T any](ctx context.Context, s *Service, try attempt, done T, err error, again func(idempotency.Result) (T, error)) (T, error) {
	if err == nil {
		return done, nil
	}
	var none T
	before, repeated, recallErr := try.call.Request.Answered(ctx, s.db)
	switch {
	case repeated:
		return again(before)
	case apperr.KindOf(recallErr) == apperr.KindInvalidArgument: // the request id was used for something else
		err = recallErr
	case recallErr != nil: // it may have been done before: there is no refusal to record
		return none, recallErr
	}
	return none, s.refuse(ctx, try, err)
}

// refuse records that try was refused or failed with err, and returns err.
func (s *Service) refuse(ctx context.Context, try attempt, err error) error {
	outcome, reason := verdict(err)
	if outcome == auditv1.Outcome_OUTCOME_UNSPECIFIED {
		return err
	}
	if try.operation == auditv1.Operation_OPERATION_READ && outcome != auditv1.Outcome_OUTCOME_DENIED {
		return err // reading what is not there is nobody's deed
	}
	s.record(ctx, try, outcome, reason)
	return err
}

// verdict says how an attempt that ended with err is recorded. Trouble of the service's own is not: its transaction may
// have committed in spite of the error, and then it is recorded as done.
func verdict(err error) (auditv1.Outcome, string) {
	switch apperr.KindOf(err) {
	case apperr.KindInternal, apperr.KindUnavailable:
		return auditv1.Outcome_OUTCOME_UNSPECIFIED, ""
	case apperr.KindPermissionDenied, apperr.KindUnauthenticated:
		return auditv1.Outcome_OUTCOME_DENIED, apperr.ReasonOf(err)
	default:
		if errors.Is(err, errNotMember) {
			return auditv1.Outcome_OUTCOME_DENIED, "NOT_A_MEMBER"
		}
		return auditv1.Outcome_OUTCOME_FAILED, apperr.ReasonOf(err)
	}
}

// record writes the event of a refusal, whether the caller still waits or not.
func (s *Service) record(ctx context.Context, try attempt, outcome auditv1.Outcome, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordBudget)
	defer cancel()
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		return outbox.Append(ctx, tx, refused(try, outcome, reason, s.now()))
	})
	if err != nil {
		s.log.ErrorContext(ctx, "a refusal is not recorded",
			slog.Any("error", err), slog.String("method", try.call.Info.Method), slog.String("reason", reason))
	}
}

// CallRefused records a call that was not let in: no good token, or not the role that the method needs. It fits
// authn.AuthenticatorConfig.Refused. Of calls from nobody in particular only ten a second are recorded.
func (s *Service) CallRefused(ctx context.Context, r authn.Refusal) {
	if !r.Known && !s.anonymous.Allow() {
		s.log.WarnContext(ctx, "a refused call is not recorded: too many of them",
			slog.String("method", r.Method), slog.String("reason", r.Reason))
		return
	}
	call := Call{DisplayName: r.Principal.DisplayName, SessionID: r.Principal.SessionID, Info: grpcserver.RequestInfo(ctx)}
	call.Info.Method = r.Method
	if id, err := uuid.Parse(r.Principal.UserID); err == nil {
		call.UserID = id
	}
	resource := &auditv1.Resource{Type: "method", Id: methodName(r.Method)}
	ctx = outbox.ContextWithTrace(ctx, call.Info.Traceparent, call.Info.Tracestate)
	s.record(ctx, attempt{call, CallRefused, operationOf(r.Method), resource}, auditv1.Outcome_OUTCOME_DENIED, r.Reason)
}

// operationOf guesses from a method's name what a call to it would have done.
func operationOf(method string) auditv1.Operation {
	name := methodName(method)
	for _, verb := range []struct {
		prefix    string
		operation auditv1.Operation
	}{
		{"Get", auditv1.Operation_OPERATION_READ},
		{"List", auditv1.Operation_OPERATION_READ},
		{"Create", auditv1.Operation_OPERATION_CREATE},
		{"Add", auditv1.Operation_OPERATION_CREATE},
		{"Import", auditv1.Operation_OPERATION_CREATE},
		{"Delete", auditv1.Operation_OPERATION_DELETE},
		{"Remove", auditv1.Operation_OPERATION_DELETE},
		{"Requeue", auditv1.Operation_OPERATION_OPERATE},
	} {
		if strings.HasPrefix(name, verb.prefix) {
			return verb.operation
		}
	}
	return auditv1.Operation_OPERATION_UPDATE // whatever else there is, or will be, changes something
}
