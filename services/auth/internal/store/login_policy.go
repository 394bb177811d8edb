// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"net/netip"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// LoginPolicy is the one row of login_policies.
type LoginPolicy struct {
	ID                uuid.UUID
	Version           int64
	MinPasswordLength int // characters
	MaxFailedAttempts int
	Lockout           time.Duration  // whole seconds
	SessionLifetime   time.Duration  // whole seconds
	AllowedNetworks   []netip.Prefix // empty: all
	UpdateTime        time.Time
}

// Name is the policy's resource name.
func (p LoginPolicy) Name() string { return "loginPolicy" }

const selectPolicy = `
	SELECT id, version, min_password_length, max_failed_attempts, lockout_seconds, session_seconds, allowed_networks, update_time
	FROM login_policies`

func scanPolicy(row pgx.Row, what string) (LoginPolicy, error) {
	var p LoginPolicy
	var lockout, session int64
	err := row.Scan(&p.ID, &p.Version, &p.MinPasswordLength, &p.MaxFailedAttempts, &lockout, &session, &p.AllowedNetworks, &p.UpdateTime)
	p.Lockout, p.SessionLifetime = time.Duration(lockout)*time.Second, time.Duration(session)*time.Second
	return p, notFound(err, what, apperr.FailedPrecondition("NOT_BOOTSTRAPPED",
		"there is no login policy yet: run the service's bootstrap command once"))
}

// LoginPolicy returns the policy. Before bootstrap it is FailedPrecondition (NOT_BOOTSTRAPPED).
func (q Queries) LoginPolicy(ctx context.Context) (LoginPolicy, error) {
	return scanPolicy(q.db.QueryRow(ctx, selectPolicy), "select login policy")
}

// LockLoginPolicy is LoginPolicy, and holds the row until the transaction ends.
func (q Queries) LockLoginPolicy(ctx context.Context) (LoginPolicy, error) {
	return scanPolicy(q.db.QueryRow(ctx, selectPolicy+` FOR UPDATE`), "lock login policy")
}

// InsertLoginPolicy queues the policy.
func InsertLoginPolicy(b *pgx.Batch, p LoginPolicy) {
	write(b, "insert login policy", 1, `
		INSERT INTO login_policies (id, version, min_password_length, max_failed_attempts, lockout_seconds, session_seconds,
			allowed_networks, update_time)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, policyArgs(p)...)
}

// UpdateLoginPolicy queues the change of the policy to the version p.Version from the one before.
func UpdateLoginPolicy(b *pgx.Batch, p LoginPolicy) {
	write(b, "update login policy", 1, `
		UPDATE login_policies
		SET version = $2, min_password_length = $3, max_failed_attempts = $4, lockout_seconds = $5, session_seconds = $6,
			allowed_networks = $7, update_time = $8
		WHERE id = $1 AND version = $2 - 1`, policyArgs(p)...)
}

func policyArgs(p LoginPolicy) []any {
	networks := append([]netip.Prefix{}, p.AllowedNetworks...) // never null
	return []any{
		p.ID, p.Version, p.MinPasswordLength, p.MaxFailedAttempts, int64(p.Lockout / time.Second), int64(p.SessionLifetime / time.Second),
		networks, p.UpdateTime,
	}
}
