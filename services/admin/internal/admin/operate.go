// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Requeue gives DEAD entries of a consumer a fresh set of attempts and records each, with the reason, in the same
// transaction. Entries in another state are left alone, so a repeated call changes and records nothing.
func (s *Service) Requeue(ctx context.Context, c Caller, consumer string, ids []uuid.UUID, reason string) (inbox.Outcome, error) {
	return s.operate(ctx,
		func(tx pgx.Tx) (inbox.Outcome, error) { return s.inbox.Requeue(ctx, tx, consumer, ids) },
		func(id uuid.UUID) (*auditv1.AuditEvent, error) {
			return s.events.entryRequeued(c, consumer, id, reason)
		})
}

// Replay hands PROCESSED entries of a consumer to it again and records each, with the reason, in the same transaction.
func (s *Service) Replay(ctx context.Context, c Caller, consumer string, ids []uuid.UUID, reason string) (inbox.Outcome, error) {
	return s.operate(ctx,
		func(tx pgx.Tx) (inbox.Outcome, error) { return s.inbox.Replay(ctx, tx, consumer, ids) },
		func(id uuid.UUID) (*auditv1.AuditEvent, error) {
			return s.events.entryReplayed(c, consumer, id, reason)
		})
}

// ReplayPoison checks PARKED poison again and takes over what this release understands. Each poison that became an event
// is recorded, with the reason, in the same transaction.
func (s *Service) ReplayPoison(ctx context.Context, c Caller, ids []uuid.UUID, reason string) (inbox.Outcome, error) {
	by := inbox.Actor{ID: c.UserID, Reason: reason}
	return s.operate(ctx,
		func(tx pgx.Tx) (inbox.Outcome, error) { return s.inbox.ReplayPoison(ctx, tx, ids, by) },
		func(id uuid.UUID) (*auditv1.AuditEvent, error) { return s.events.poisonReplayed(c, id, reason) })
}

// DiscardPoison closes open poison and records each, with the reason, in the same transaction. The evidence
// stays.
func (s *Service) DiscardPoison(ctx context.Context, c Caller, ids []uuid.UUID, reason string) (inbox.Outcome, error) {
	by := inbox.Actor{ID: c.UserID, Reason: reason}
	return s.operate(ctx,
		func(tx pgx.Tx) (inbox.Outcome, error) { return s.inbox.DiscardPoison(ctx, tx, ids, by) },
		func(id uuid.UUID) (*auditv1.AuditEvent, error) { return s.events.poisonDiscarded(c, id, reason) })
}

// operate makes a change and records it, row by row, or does neither. Consumers are woken after the commit.
func (s *Service) operate(
	ctx context.Context, change func(pgx.Tx) (inbox.Outcome, error), event func(uuid.UUID) (*auditv1.AuditEvent, error),
) (inbox.Outcome, error) {
	var done inbox.Outcome
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		var err error
		if done, err = change(tx); err != nil {
			return err
		}
		own := make([]*auditv1.AuditEvent, len(done.Changed))
		for i, id := range done.Changed {
			if own[i], err = event(id); err != nil {
				return err
			}
		}
		return record(ctx, tx, own...)
	})
	if err != nil {
		return inbox.Outcome{}, fmt.Errorf("operate: %w", err)
	}
	s.inbox.WakeAll()
	return done, nil
}
