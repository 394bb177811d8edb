// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// Logout ends the caller's session and records auth.session.ended.v1 with it. Nothing happens to a session that is over.
func (s *Service) Logout(ctx context.Context) error {
	userID, sessionID, err := callerIDs(ctx)
	if err != nil {
		return err
	}
	try := TryLogout.on(sessionID, idempotency.Key{})
	err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		user, err := store.New(tx).LockUser(ctx, userID)
		if err != nil {
			return err
		}
		session, err := store.New(tx).LockSession(ctx, userID, sessionID)
		if err != nil || session.State != store.SessionActive {
			return err
		}
		var batch pgx.Batch
		event := endSession(&batch, s.origin(ctx), session, user, store.SessionEnded, reasonLogout)
		return outbox.AppendBatch(ctx, tx, &batch, event)
	})
	return s.settle(ctx, try, err, nil)
}

// RevokeSession ends a session and records auth.session.revoked.v1 with it. The caller is its user or an admin.
func (s *Service) RevokeSession(ctx context.Context, key idempotency.Key, userID, sessionID uuid.UUID) (store.Session, error) {
	try := TryRevokeSession.on(sessionID, key)
	if err := requireSelfOr(ctx, userID, RoleAdmin); err != nil {
		return store.Session{}, s.refuse(ctx, try, err)
	}
	var session store.Session
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		user, err := store.New(tx).LockUser(ctx, userID)
		if err != nil {
			return err
		}
		session, err = store.New(tx).LockSession(ctx, userID, sessionID)
		if err != nil {
			return err
		}
		if session.State != store.SessionActive {
			return apperr.FailedPrecondition("SESSION_ENDED", "the session has ended already")
		}
		var batch pgx.Batch
		key.Queue(&batch, idempotency.Result{Name: session.Name(), Version: session.Version + 1})
		event := endSession(&batch, s.origin(ctx), session, user, store.SessionRevoked, reasonRevoked)
		return outbox.AppendBatch(ctx, tx, &batch, event)
	})
	if err := s.settle(ctx, try, err, func(idempotency.Result) error { return nil }); err != nil {
		return store.Session{}, err
	}
	return store.New(s.db).Session(ctx, userID, sessionID)
}

// RevokeUserSessions ends a user's active sessions, records auth.session.revoked.v1 with each, and returns how many. The
// caller is the user or an admin.
func (s *Service) RevokeUserSessions(ctx context.Context, key idempotency.Key, userID uuid.UUID) (int, error) {
	try := TryRevokeSessions.on(userID, key)
	if err := requireSelfOr(ctx, userID, RoleAdmin); err != nil {
		return 0, s.refuse(ctx, try, err)
	}
	var count int
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		user, err := store.New(tx).LockUser(ctx, userID)
		if err != nil {
			return err
		}
		sessions, err := store.New(tx).LockSessions(ctx, userID, true)
		if err != nil {
			return err
		}
		count = len(sessions)
		var batch pgx.Batch
		// There is no one row whose version could be kept: the answer is the count.
		key.Queue(&batch, idempotency.Result{Name: user.Name() + "/sessions", Version: int64(count)})
		return outbox.AppendBatch(ctx, tx, &batch, revokeAll(&batch, s.origin(ctx), sessions, user, uuid.Nil, reasonRevoked)...)
	})
	err = s.settle(ctx, try, err, func(done idempotency.Result) error {
		count = int(done.Version)
		return nil
	})
	return count, err
}

// expireSessions ends up to limit sessions that are past their lifetime, records auth.session.ended.v1 (reason EXPIRED)
// with each, and returns how many. It leaves out what somebody else holds. What a crash undid, the next call does.
func (s *Service) expireSessions(ctx context.Context, limit int) (int, error) {
	var count int
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		o := s.origin(ctx).bySystem("housekeeping")
		expired, err := store.New(tx).LockExpired(ctx, o.at, limit)
		if count = len(expired); err != nil || count == 0 {
			return err
		}
		var batch pgx.Batch
		events := make([]*auditv1.AuditEvent, count)
		for i, e := range expired {
			after := e.Session
			after.Version, after.State = e.Session.Version+1, store.SessionExpired // when and why its expire_time says
			store.EndSession(&batch, after)
			events[i] = sessionOver(o, ActionSessionEnded, auditv1.Operation_OPERATION_UPDATE, e.Session, after, e.User, reasonExpired)
		}
		return outbox.AppendBatch(ctx, tx, &batch, events...)
	})
	if err != nil {
		return 0, fmt.Errorf("end expired sessions: %w", err)
	}
	if count > 0 {
		s.wake()
	}
	return count, nil
}

// endSession queues the end of a session and returns its event.
func endSession(b *pgx.Batch, o origin, before store.Session, u store.User, state, reason string) *auditv1.AuditEvent {
	after := before
	after.Version, after.State, after.EndTime, after.EndReason = before.Version+1, state, &o.at, reason
	store.EndSession(b, after)
	if state == store.SessionEnded {
		return sessionOver(o, ActionSessionEnded, auditv1.Operation_OPERATION_LOGOUT, before, after, u, reason)
	}
	return sessionOver(o, ActionSessionRevoked, auditv1.Operation_OPERATION_UPDATE, before, after, u, reason)
}

// revokeAll queues the end of sessions, but for one that is kept, and returns their events, one for each row.
func revokeAll(b *pgx.Batch, o origin, sessions []store.Session, u store.User, keep uuid.UUID, reason string) []*auditv1.AuditEvent {
	var events []*auditv1.AuditEvent
	for _, session := range sessions {
		if session.ID != keep {
			events = append(events, endSession(b, o, session, u, store.SessionRevoked, reason))
		}
	}
	return events
}

// callerIDs returns the ids of the calling user and session.
func callerIDs(ctx context.Context) (user, session uuid.UUID, err error) {
	p, known := authn.PrincipalFrom(ctx)
	user, errUser := uuid.Parse(p.UserID)
	session, errSession := uuid.Parse(p.SessionID)
	if !known || errUser != nil || errSession != nil {
		return uuid.Nil, uuid.Nil, apperr.Unauthenticated("TOKEN_INVALID", "the call needs the access token of a session")
	}
	return user, session, nil
}
