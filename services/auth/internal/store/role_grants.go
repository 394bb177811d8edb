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

// RoleGrant is a row of role_grants.
type RoleGrant struct {
	ID         uuid.UUID
	Version    int64
	UserID     uuid.UUID
	Role       string
	CreateTime time.Time
}

// Name is the grant's resource name.
func (g RoleGrant) Name() string { return resourceName("users", g.UserID) + "/roleGrants/" + g.Role }

const selectGrants = `SELECT id, version, user_id, role, create_time FROM role_grants`

func scanGrant(row pgx.Row) (RoleGrant, error) {
	var g RoleGrant
	err := row.Scan(&g.ID, &g.Version, &g.UserID, &g.Role, &g.CreateTime)
	return g, err
}

// RoleGrant returns one grant. Without it, it is NotFound (ROLE_NOT_GRANTED).
func (q Queries) RoleGrant(ctx context.Context, user uuid.UUID, role string) (RoleGrant, error) {
	g, err := scanGrant(q.db.QueryRow(ctx, selectGrants+` WHERE user_id = $1 AND role = $2`, user, role))
	return g, notFound(err, "select role grant", apperr.NotFound("ROLE_NOT_GRANTED", "the account does not have this role"))
}

// ListRoleGrants returns up to limit grants of a user whose role sorts after the given one, by role.
func (q Queries) ListRoleGrants(ctx context.Context, user uuid.UUID, after string, limit int) ([]RoleGrant, error) {
	rows, err := q.db.Query(ctx, selectGrants+`
		WHERE user_id = $1 AND role > $2
		ORDER BY role
		LIMIT $3`, user, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list role grants: %w", err)
	}
	grants, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (RoleGrant, error) { return scanGrant(row) })
	if err != nil {
		return nil, fmt.Errorf("list role grants: %w", err)
	}
	return grants, nil
}

// InsertRoleGrant queues a new grant. A role that the user has is AlreadyExists (ROLE_ALREADY_GRANTED).
func InsertRoleGrant(b *pgx.Batch, g RoleGrant) {
	write(b, "insert role grant", 1, `
		INSERT INTO role_grants (id, version, user_id, role, create_time)
		VALUES ($1, $2, $3, $4, $5)`,
		g.ID, g.Version, g.UserID, g.Role, g.CreateTime)
}

// DeleteRoleGrant queues the deletion of a grant; g.Version is the version that its deletion makes.
func DeleteRoleGrant(b *pgx.Batch, g RoleGrant) {
	write(b, "delete role grant", 1, `DELETE FROM role_grants WHERE id = $1 AND version = $2 - 1`, g.ID, g.Version)
}
