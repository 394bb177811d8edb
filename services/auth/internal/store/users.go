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

// The states of a user.
const (
	UserActive   = "ACTIVE"
	UserDisabled = "DISABLED"
)

// User is a row of users, and what readers want to know beside it.
type User struct {
	ID          uuid.UUID
	Version     int64
	Email       string
	DisplayName string
	State       string
	CreateTime  time.Time
	UpdateTime  time.Time

	Roles        []string   // from role_grants, sorted
	FailedCount  int        // from login_attempts: failures in a row since the last success or lock-out
	LockedUntil  *time.Time // from login_attempts; may lie in the past
	PasswordHash string     // from credentials, only after LockUser; never leaves package auth
}

// Name is the user's resource name.
func (u User) Name() string { return resourceName("users", u.ID) }

const (
	userColumns = `u.id, u.version, u.email, u.display_name, u.state, u.create_time, u.update_time`

	// besideUser must run after the row's lock is held: only a new statement sees what the lock waited for.
	besideUser = `
		SELECT ARRAY(SELECT role FROM role_grants WHERE user_id = $1 ORDER BY role),
		       coalesce((SELECT failed_count FROM login_attempts WHERE user_id = $1), 0),
		       (SELECT locked_until FROM login_attempts WHERE user_id = $1),
		       coalesce((SELECT password_hash FROM credentials WHERE user_id = $1), '')`

	selectUsers = `
		SELECT ` + userColumns + `,
		       ARRAY(SELECT role FROM role_grants g WHERE g.user_id = u.id ORDER BY role),
		       coalesce(a.failed_count, 0), a.locked_until
		FROM users u LEFT JOIN login_attempts a ON a.user_id = u.id`
)

func userNotFound() *apperr.Error {
	return apperr.NotFound("USER_NOT_FOUND", "there is no such user")
}

func (u *User) row() []any {
	return []any{&u.ID, &u.Version, &u.Email, &u.DisplayName, &u.State, &u.CreateTime, &u.UpdateTime}
}

// LockUser returns a user and holds its row until the transaction ends. Without one it is NotFound (USER_NOT_FOUND).
func (q Queries) LockUser(ctx context.Context, id uuid.UUID) (User, error) {
	var u User
	var b pgx.Batch
	b.Queue(`SELECT `+userColumns+` FROM users u WHERE u.id = $1 FOR UPDATE`, id).
		QueryRow(func(row pgx.Row) error { return row.Scan(u.row()...) })
	b.Queue(besideUser, id).
		QueryRow(func(row pgx.Row) error { return row.Scan(&u.Roles, &u.FailedCount, &u.LockedUntil, &u.PasswordHash) })
	return u, notFound(q.db.SendBatch(ctx, &b).Close(), "lock user", userNotFound())
}

// User returns a user. Without one it is NotFound (USER_NOT_FOUND).
func (q Queries) User(ctx context.Context, id uuid.UUID) (User, error) {
	u, err := scanUser(q.db.QueryRow(ctx, selectUsers+` WHERE u.id = $1`, id))
	return u, notFound(err, "select user", userNotFound())
}

func scanUser(row pgx.Row) (User, error) {
	var u User
	err := row.Scan(append(u.row(), &u.Roles, &u.FailedCount, &u.LockedUntil)...)
	return u, err
}

// ListUsers returns up to limit users with an id after the given one, by id and so from the oldest on. An email limits
// the list to the user who has it.
func (q Queries) ListUsers(ctx context.Context, after uuid.UUID, email string, limit int) ([]User, error) {
	rows, err := q.db.Query(ctx, selectUsers+`
		WHERE u.id > $1 AND ($2 = '' OR u.email = $2)
		ORDER BY u.id
		LIMIT $3`, after, email, limit)
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	users, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (User, error) { return scanUser(row) })
	if err != nil {
		return nil, fmt.Errorf("list users: %w", err)
	}
	return users, nil
}

// LockAccounts makes whoever changes the set of active admins wait in line until the transaction ends. It is taken before any
// row's lock. Counting under row locks alone would let two admins disable each other.
func (q Queries) LockAccounts(ctx context.Context) error {
	var done bool
	if err := q.db.QueryRow(ctx, `SELECT pg_advisory_xact_lock(hashtext('counterfoil.auth.admins')) IS NOT NULL`).Scan(&done); err != nil {
		return fmt.Errorf("lock accounts: %w", err)
	}
	return nil
}

// OtherAdmins counts the active admins beside one user. It means something only under LockAccounts.
func (q Queries) OtherAdmins(ctx context.Context, id uuid.UUID) (count int, err error) {
	err = q.db.QueryRow(ctx, `
		SELECT count(*)
		FROM role_grants g JOIN users u ON u.id = g.user_id
		WHERE g.role = 'admin' AND u.state = 'ACTIVE' AND u.id <> $1`, id).Scan(&count)
	if err != nil {
		return 0, fmt.Errorf("count admins: %w", err)
	}
	return count, nil
}

// AnyUser says whether there is a user at all.
func (q Queries) AnyUser(ctx context.Context) (found bool, err error) {
	if err = q.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM users)`).Scan(&found); err != nil {
		return false, fmt.Errorf("look for a user: %w", err)
	}
	return found, nil
}

// InsertUser queues a new user. A taken address is AlreadyExists (EMAIL_TAKEN).
func InsertUser(b *pgx.Batch, u User) {
	write(b, "insert user", 1, `
		INSERT INTO users (id, version, email, display_name, state, create_time, update_time)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		u.ID, u.Version, u.Email, u.DisplayName, u.State, u.CreateTime, u.UpdateTime)
}

// UpdateUser queues the change of a user to the version u.Version from the one before. A taken address is AlreadyExists
// (EMAIL_TAKEN).
func UpdateUser(b *pgx.Batch, u User) {
	write(b, "update user", 1, `
		UPDATE users
		SET version = $2, email = $3, display_name = $4, state = $5, update_time = $6
		WHERE id = $1 AND version = $2 - 1`,
		u.ID, u.Version, u.Email, u.DisplayName, u.State, u.UpdateTime)
}

// DeleteUser queues the deletion of a user whose sessions and roles are gone, and with it of what hangs on it unaudited:
// password and counters.
func DeleteUser(b *pgx.Batch, u User) {
	write(b, "delete user", 1, `DELETE FROM users WHERE id = $1 AND version = $2 - 1`, u.ID, u.Version)
}
