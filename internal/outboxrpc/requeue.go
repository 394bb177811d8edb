// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outboxrpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

// errOther is that fewer events were moved than named; what is wrong with which one is looked up afterwards.
var errOther = errors.New("an event is unknown or stands in another status")

// RequeueOutboxEvents implements OutboxService.
func (s *Server) RequeueOutboxEvents(
	ctx context.Context, req *outboxv1.RequeueOutboxEventsRequest,
) (*outboxv1.RequeueOutboxEventsResponse, error) {
	ids := make([]uuid.UUID, len(req.GetNames()))
	for i, name := range req.GetNames() {
		var err error
		if ids[i], err = parseName(fmt.Sprintf("names[%d]", i), name); err != nil {
			return nil, err
		}
	}
	operator, _ := authn.PrincipalFrom(ctx)
	key, err := s.cfg.Requests.Key(operator.UserID, grpcserver.RequestInfo(ctx).Method, req.GetRequestId(), req)
	if err != nil {
		return nil, err
	}

	err = pgdb.InTx(ctx, s.cfg.DB, func(tx pgx.Tx) error {
		if err := key.Insert(ctx, tx, idempotency.Result{Name: "outboxEvents", Version: int64(len(ids))}); err != nil {
			return err
		}
		moved, err := s.cfg.Outbox.Requeue(ctx, tx, ids, operator.UserID, req.GetReason())
		if err != nil {
			return err
		}
		if moved != len(ids) {
			return errOther
		}
		return s.cfg.Journal.Requeued(ctx, tx, ids, req.GetReason())
	})
	if err == nil {
		s.cfg.Wake()
		return requeued(ids), nil
	}

	_, repeated, recallErr := key.Answered(ctx, s.cfg.DB)
	switch {
	case repeated: // done before, and nothing more to record
		return requeued(ids), nil
	case apperr.KindOf(recallErr) == apperr.KindInvalidArgument: // the request id was used for something else
		err = recallErr
	case recallErr != nil: // it may have been done before: there is no refusal to record
		return nil, recallErr
	case errors.Is(err, errOther):
		err = s.explain(ctx, ids)
	}
	s.cfg.Journal.RequeueRefused(ctx, ids, err)
	return nil, err
}

func requeued(ids []uuid.UUID) *outboxv1.RequeueOutboxEventsResponse {
	return &outboxv1.RequeueOutboxEventsResponse{RequeuedCount: int32(len(ids))} //nolint:gosec // at most 1000
}

// explain names the first event that kept a requeue from happening.
func (s *Server) explain(ctx context.Context, ids []uuid.UUID) error {
	for _, id := range ids {
		record, _, err := s.cfg.Outbox.Get(ctx, id)
		switch {
		case errors.Is(err, outbox.ErrNotFound):
			return notFound(id)
		case err != nil:
			return err
		case record.Status != outbox.StatusFailed && record.Status != outbox.StatusDeadLettered:
			return apperr.FailedPrecondition("OUTBOX_EVENT_NOT_FAILED",
				fmt.Sprintf("event %s is %s; only FAILED and DEAD_LETTERED ones are requeued, and none was", id, record.Status)).
				With("event_id", id.String()).With("status", string(record.Status))
		}
	}
	return apperr.Aborted("OUTBOX_EVENT_MOVED", "another operator was faster; list the events again")
}
