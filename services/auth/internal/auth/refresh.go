// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// Refresh exchanges a refresh token for new tokens and records auth.session.refreshed.v1 with the exchange.
//
// A token works once. Using it again, at the same time included, tells that two parties hold it: the session is revoked
// (auth.session.revoked.v1, reason REFRESH_TOKEN_REUSED) and with it every token that descends from the login (RFC 9700
// §4.14). A client whose reply was lost therefore logs in again. Every refusal is recorded and, but for that of the
// network, is one Unauthenticated error (INVALID_REFRESH_TOKEN).
func (s *Service) Refresh(ctx context.Context, token string) (Tokens, error) {
	hash := hashToken(token)
	policy, err := store.New(s.db).LoginPolicy(ctx)
	if err != nil {
		return Tokens{}, err
	}
	userID, sessionID, found, err := store.New(s.db).RefreshTokenOwner(ctx, hash)
	if err != nil {
		return Tokens{}, err
	}
	if !found {
		s.recordCheap(ctx, refused(s.origin(ctx), TryRefresh, "", auditv1.Outcome_OUTCOME_DENIED, "UNKNOWN_REFRESH_TOKEN"))
		return Tokens{}, invalidRefreshToken()
	}

	var user store.User
	var session store.Session
	var next string
	var refusal error
	err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		var batch pgx.Batch
		o := s.origin(ctx)
		var used store.RefreshToken
		user, session, used, err = lockForRefresh(ctx, tx, userID, sessionID, hash)
		if err != nil {
			return err
		}
		reason := refreshRefusal(ctx, o, policy, user, session, used)
		switch {
		case reason == reasonTokenReused:
			refusal = invalidRefreshToken()
			event := endSession(&batch, o.bySystem("refresh"), session, user, store.SessionRevoked, reason)
			return outbox.AppendBatch(ctx, tx, &batch, refreshRefused(o, session, user, reason), event)
		case reason == reasonNetwork:
			refusal = networkNotAllowed()
			return outbox.Append(ctx, tx, refreshRefused(o, session, user, reason))
		case reason != "":
			refusal = invalidRefreshToken()
			return outbox.Append(ctx, tx, refreshRefused(o, session, user, reason))
		}
		refusal = nil
		store.UseRefreshToken(&batch, hash, o.at)
		next = queueRefreshToken(&batch, session, o.at)
		store.TouchSession(&batch, session.ID, o.at)
		return outbox.AppendBatch(ctx, tx, &batch, sessionRefreshed(o.by(user, session.ID), session, user))
	})
	switch {
	case apperr.KindOf(err) == apperr.KindNotFound: // deleted with its user in between
		s.record(ctx, refused(s.origin(ctx), TryRefresh, sessionID.String(), auditv1.Outcome_OUTCOME_DENIED, apperr.ReasonOf(err)))
		return Tokens{}, invalidRefreshToken()
	case err != nil:
		return Tokens{}, err
	}
	s.wake()
	if refusal != nil {
		return Tokens{}, refusal
	}
	return s.sign(user, session, next)
}

// lockForRefresh takes the locks of a refresh in the order that all operations keep.
func lockForRefresh(ctx context.Context, tx pgx.Tx, user, session uuid.UUID, hash []byte) (store.User, store.Session, store.RefreshToken, error) {
	q := store.New(tx)
	u, err := q.LockUser(ctx, user)
	if err != nil {
		return store.User{}, store.Session{}, store.RefreshToken{}, err
	}
	se, err := q.LockSession(ctx, user, session)
	if err != nil {
		return store.User{}, store.Session{}, store.RefreshToken{}, err
	}
	t, err := q.LockRefreshToken(ctx, hash)
	return u, se, t, err
}

// refreshRefusal returns why a token may not be exchanged, or nothing. A used token of a session that is over is no
// news: there is nothing left to revoke.
func refreshRefusal(ctx context.Context, o origin, p store.LoginPolicy, u store.User, s store.Session, t store.RefreshToken) string {
	switch {
	case s.State == store.SessionExpired:
		return "SESSION_EXPIRED"
	case s.State != store.SessionActive:
		return "SESSION_ENDED"
	case !s.ExpireTime.After(o.at):
		return "SESSION_EXPIRED" // and found so before housekeeping did
	case t.UseTime != nil:
		return reasonTokenReused
	case u.State != store.UserActive:
		return reasonUserDisabled
	case !networkAllowed(ctx, p):
		return reasonNetwork
	}
	return ""
}

func invalidRefreshToken() error {
	return apperr.Unauthenticated("INVALID_REFRESH_TOKEN", "the refresh token is not good, or its session is over: log in again")
}
