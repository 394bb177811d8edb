// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// The states of a session. One past its ExpireTime is over, whatever its state: it becomes EXPIRED some time later.
const (
	SessionActive  = "ACTIVE"
	SessionEnded   = "ENDED"
	SessionRevoked = "REVOKED"
	SessionExpired = "EXPIRED"
)

// Session is a row of sessions: one login and the refresh tokens that descend from it.
type Session struct {
	ID         uuid.UUID
	Version    int64
	UserID     uuid.UUID
	State      string
	CreateTime time.Time
	ExpireTime time.Time
	EndTime    *time.Time
	EndReason  string

	LastSeen *time.Time // from session_activity
}

// Name is the session's resource name.
func (s Session) Name() string {
	return resourceName(resourceName("users", s.UserID)+"/sessions", s.ID)
}

const selectSessions = `
	SELECT s.id, s.version, s.user_id, s.state, s.create_time, s.expire_time, s.end_time, s.end_reason, a.last_seen
	FROM sessions s LEFT JOIN session_activity a ON a.session_id = s.id`

func scanSession(row pgx.Row) (Session, error) {
	var s Session
	err := row.Scan(&s.ID, &s.Version, &s.UserID, &s.State, &s.CreateTime, &s.ExpireTime, &s.EndTime, &s.EndReason, &s.LastSeen)
	return s, err
}

func sessionNotFound() *apperr.Error {
	return apperr.NotFound("SESSION_NOT_FOUND", "there is no such session")
}

// Session returns a session of a user. Without one it is NotFound (SESSION_NOT_FOUND).
func (q Queries) Session(ctx context.Context, user, id uuid.UUID) (Session, error) {
	s, err := scanSession(q.db.QueryRow(ctx, selectSessions+` WHERE s.id = $2 AND s.user_id = $1`, user, id))
	return s, notFound(err, "select session", sessionNotFound())
}

// LockSession is Session, and holds the row until the transaction ends.
func (q Queries) LockSession(ctx context.Context, user, id uuid.UUID) (Session, error) {
	s, err := scanSession(q.db.QueryRow(ctx, selectSessions+` WHERE s.id = $2 AND s.user_id = $1 FOR UPDATE OF s`, user, id))
	return s, notFound(err, "lock session", sessionNotFound())
}

// LockSessions returns a user's sessions, only the active ones if asked so, by id, and holds their rows until the
// transaction ends.
func (q Queries) LockSessions(ctx context.Context, user uuid.UUID, onlyActive bool) ([]Session, error) {
	rows, err := q.db.Query(ctx, selectSessions+`
		WHERE s.user_id = $1 AND (NOT $2 OR s.state = 'ACTIVE')
		ORDER BY s.id
		FOR UPDATE OF s`, user, onlyActive)
	if err != nil {
		return nil, fmt.Errorf("lock sessions: %w", err)
	}
	return collectSessions(rows, "lock sessions")
}

// Expired is a session that is active in spite of its ExpireTime, and its user as far as an event names it.
type Expired struct {
	Session Session
	User    User
}

// LockExpired returns up to limit sessions that are active and expired at a time, the longest expired first, and holds
// their rows and their users' until the transaction ends. It leaves out what another holds: it never waits, so it needs to
// keep no order of locks, and any number of transactions share the work.
func (q Queries) LockExpired(ctx context.Context, at time.Time, limit int) ([]Expired, error) {
	rows, err := q.db.Query(ctx, `
		SELECT s.id, s.version, s.user_id, s.state, s.create_time, s.expire_time, u.id, u.version, u.display_name
		FROM sessions s JOIN users u ON u.id = s.user_id
		WHERE s.state = 'ACTIVE' AND s.expire_time <= $1
		ORDER BY s.expire_time
		LIMIT $2
		FOR UPDATE OF u, s SKIP LOCKED`, at, limit)
	if err != nil {
		return nil, fmt.Errorf("lock expired sessions: %w", err)
	}
	expired, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Expired, error) {
		var e Expired
		s, u := &e.Session, &e.User
		err := row.Scan(&s.ID, &s.Version, &s.UserID, &s.State, &s.CreateTime, &s.ExpireTime, &u.ID, &u.Version, &u.DisplayName)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("lock expired sessions: %w", err)
	}
	return expired, nil
}

// ListSessions returns up to limit sessions of a user, newest first, from after the position (before, id) on. A zero
// before is the beginning.
func (q Queries) ListSessions(ctx context.Context, user uuid.UUID, before time.Time, id uuid.UUID, limit int) ([]Session, error) {
	rows, err := q.db.Query(ctx, selectSessions+`
		WHERE s.user_id = $1 AND ($2 OR (s.create_time, s.id) < ($3, $4))
		ORDER BY s.create_time DESC, s.id DESC
		LIMIT $5`, user, before.IsZero(), before, id, limit)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	return collectSessions(rows, "list sessions")
}

func collectSessions(rows pgx.Rows, what string) ([]Session, error) {
	sessions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Session, error) { return scanSession(row) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return sessions, nil
}

// Standing is what decides whether an access token is still good at Auth.
type Standing struct {
	SessionState  string
	SessionExpire time.Time
	UserState     string
	Roles         []string
}

// Standing returns how a session and its user stand now. Without the session it is NotFound (SESSION_NOT_FOUND).
func (q Queries) Standing(ctx context.Context, user, session uuid.UUID) (Standing, error) {
	var st Standing
	err := q.db.QueryRow(ctx, `
		SELECT s.state, s.expire_time, u.state, ARRAY(SELECT role FROM role_grants WHERE user_id = u.id ORDER BY role)
		FROM sessions s JOIN users u ON u.id = s.user_id
		WHERE s.id = $2 AND u.id = $1`, user, session).
		Scan(&st.SessionState, &st.SessionExpire, &st.UserState, &st.Roles)
	return st, notFound(err, "select standing", sessionNotFound())
}

// InsertSession queues a new session.
func InsertSession(b *pgx.Batch, s Session) {
	write(b, "insert session", 1, `
		INSERT INTO sessions (id, version, user_id, state, create_time, expire_time)
		VALUES ($1, $2, $3, $4, $5, $6)`,
		s.ID, s.Version, s.UserID, s.State, s.CreateTime, s.ExpireTime)
	TouchSession(b, s.ID, s.CreateTime)
}

// EndSession queues the end of a session, at the version s.Version.
func EndSession(b *pgx.Batch, s Session) {
	write(b, "end session", 1, `
		UPDATE sessions
		SET version = $2, state = $3, end_time = $4, end_reason = $5
		WHERE id = $1 AND version = $2 - 1`,
		s.ID, s.Version, s.State, s.EndTime, s.EndReason)
}

// DeleteSession queues the deletion of a session, its tokens and its last use; s.Version is the version that its
// deletion makes.
func DeleteSession(b *pgx.Batch, s Session) {
	write(b, "delete session", 1, `DELETE FROM sessions WHERE id = $1 AND version = $2 - 1`, s.ID, s.Version)
}

// TouchSession queues that a session was used.
func TouchSession(b *pgx.Batch, id uuid.UUID, at time.Time) {
	write(b, "touch session", 1, `
		INSERT INTO session_activity (session_id, last_seen)
		VALUES ($1, $2)
		ON CONFLICT (session_id) DO UPDATE SET last_seen = EXCLUDED.last_seen`, id, at)
}
