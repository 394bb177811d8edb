// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Execer is a pool or a transaction that can write.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Credential is what a login is checked against before anything is locked.
type Credential struct {
	UserID       uuid.UUID
	PasswordHash string
}

// CredentialByEmail returns the credential of the user with an address; false if there is none.
func (q Queries) CredentialByEmail(ctx context.Context, email string) (Credential, bool, error) {
	var c Credential
	err := q.db.QueryRow(ctx, `
		SELECT u.id, c.password_hash
		FROM users u JOIN credentials c ON c.user_id = u.id
		WHERE u.email = $1`, email).Scan(&c.UserID, &c.PasswordHash)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Credential{}, false, nil
	case err != nil:
		return Credential{}, false, fmt.Errorf("select credential: %w", err)
	}
	return c, true, nil
}

// Credential returns the credential of a user. Without the user it is NotFound (USER_NOT_FOUND).
func (q Queries) Credential(ctx context.Context, user uuid.UUID) (Credential, error) {
	c := Credential{UserID: user}
	err := q.db.QueryRow(ctx, `SELECT password_hash FROM credentials WHERE user_id = $1`, user).Scan(&c.PasswordHash)
	return c, notFound(err, "select credential", userNotFound())
}

// SetPassword queues a user's password hash. The user's version changes with it: the caller queues UpdateUser too.
func SetPassword(b *pgx.Batch, user uuid.UUID, hash string, at time.Time) {
	write(b, "set password", 1, `
		INSERT INTO credentials (user_id, password_hash, update_time)
		VALUES ($1, $2, $3)
		ON CONFLICT (user_id) DO UPDATE SET password_hash = EXCLUDED.password_hash, update_time = EXCLUDED.update_time`, user, hash, at)
}

// SetAttempts queues the counter behind lock-out.
func SetAttempts(b *pgx.Batch, user uuid.UUID, failed int, lockedUntil *time.Time, at time.Time) {
	write(b, "set login attempts", 1, `
		INSERT INTO login_attempts (user_id, failed_count, locked_until, last_failure)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (user_id) DO UPDATE
		SET failed_count = EXCLUDED.failed_count, locked_until = EXCLUDED.locked_until, last_failure = EXCLUDED.last_failure`,
		user, failed, lockedUntil, at)
}

// ClearAttempts queues that a user has no failed attempts and is not locked.
func ClearAttempts(b *pgx.Batch, user uuid.UUID) {
	writeAny(b, "clear login attempts", `DELETE FROM login_attempts WHERE user_id = $1`, user)
}

// RefreshToken is a row of refresh_tokens; the token itself is kept nowhere.
type RefreshToken struct {
	Hash       []byte // SHA-256 of the token
	SessionID  uuid.UUID
	CreateTime time.Time
	ExpireTime time.Time
	UseTime    *time.Time // when it was exchanged; a second time revokes its session
}

// RefreshTokenOwner returns whose token it is, without any lock; false if there is no such token.
func (q Queries) RefreshTokenOwner(ctx context.Context, hash []byte) (user, session uuid.UUID, found bool, err error) {
	err = q.db.QueryRow(ctx, `
		SELECT s.user_id, s.id
		FROM refresh_tokens t JOIN sessions s ON s.id = t.session_id
		WHERE t.token_hash = $1`, hash).Scan(&user, &session)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return uuid.Nil, uuid.Nil, false, nil
	case err != nil:
		return uuid.Nil, uuid.Nil, false, fmt.Errorf("select refresh token: %w", err)
	}
	return user, session, true, nil
}

// LockRefreshToken returns a token and holds its row until the transaction ends. Without one it is NotFound
// (SESSION_NOT_FOUND): tokens go with their session.
func (q Queries) LockRefreshToken(ctx context.Context, hash []byte) (RefreshToken, error) {
	var t RefreshToken
	err := q.db.QueryRow(ctx, `
		SELECT token_hash, session_id, create_time, expire_time, use_time
		FROM refresh_tokens
		WHERE token_hash = $1
		FOR UPDATE`, hash).Scan(&t.Hash, &t.SessionID, &t.CreateTime, &t.ExpireTime, &t.UseTime)
	return t, notFound(err, "lock refresh token", sessionNotFound())
}

// InsertRefreshToken queues a new token.
func InsertRefreshToken(b *pgx.Batch, t RefreshToken) {
	write(b, "insert refresh token", 1, `
		INSERT INTO refresh_tokens (token_hash, session_id, create_time, expire_time)
		VALUES ($1, $2, $3, $4)`, t.Hash, t.SessionID, t.CreateTime, t.ExpireTime)
}

// UseRefreshToken queues that a token was exchanged, which happens once.
func UseRefreshToken(b *pgx.Batch, hash []byte, at time.Time) {
	write(b, "use refresh token", 1, `UPDATE refresh_tokens SET use_time = $2 WHERE token_hash = $1 AND use_time IS NULL`, hash, at)
}

// PruneRefreshTokens deletes up to limit refresh tokens that expired before a time, and returns how many.
func PruneRefreshTokens(ctx context.Context, db Execer, before time.Time, limit int) (int, error) {
	tag, err := db.Exec(ctx, `
		DELETE FROM refresh_tokens
		WHERE token_hash IN (SELECT token_hash FROM refresh_tokens WHERE expire_time < $1 LIMIT $2 FOR UPDATE SKIP LOCKED)`, before, limit)
	if err != nil {
		return 0, fmt.Errorf("prune refresh tokens: %w", err)
	}
	return int(tag.RowsAffected()), nil
}
