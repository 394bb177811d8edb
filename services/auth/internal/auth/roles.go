// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// GrantRole gives an account a role and records auth.role.granted.v1 with it. A grant is a row of its own, with an id
// that is never used again: a role taken and given back is another grant.
func (s *Service) GrantRole(ctx context.Context, t Target, role string) (store.RoleGrant, error) {
	var grant store.RoleGrant
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		user, err := store.New(tx).LockUser(ctx, t.ID)
		if err != nil {
			return err
		}
		o := s.origin(ctx)
		grant = store.RoleGrant{ID: s.newID(), Version: 1, UserID: user.ID, Role: role, CreateTime: o.at}
		var batch pgx.Batch
		t.Key.Queue(&batch, idempotency.Result{Name: grant.Name(), Version: grant.Version})
		store.InsertRoleGrant(&batch, grant)
		return outbox.AppendBatch(ctx, tx, &batch, roleGranted(o, grant, user))
	})
	err = s.settle(ctx, TryGrantRole.on(t.ID, t.Key), err, func(idempotency.Result) (err error) {
		grant, err = store.New(s.db).RoleGrant(ctx, t.ID, role)
		return err
	})
	return grant, err
}

// RevokeRole takes a role from an account and records auth.role.revoked.v1 with it.
func (s *Service) RevokeRole(ctx context.Context, t Target, role string) error {
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		user, err := lockForRevoke(ctx, tx, t, role)
		if err != nil {
			return err
		}
		grant, err := store.New(tx).RoleGrant(ctx, user.ID, role)
		if err != nil {
			return err
		}
		grant.Version++
		var batch pgx.Batch
		t.Key.Queue(&batch, idempotency.Result{Name: grant.Name(), Version: grant.Version})
		store.DeleteRoleGrant(&batch, grant)
		return outbox.AppendBatch(ctx, tx, &batch, roleRevoked(s.origin(ctx), grant, user))
	})
	return s.settle(ctx, TryRevokeRole.on(t.ID, t.Key), err, func(idempotency.Result) error { return nil })
}

// lockForRevoke locks an account, and guards the last admin if that is the role to go.
func lockForRevoke(ctx context.Context, tx pgx.Tx, t Target, role string) (store.User, error) {
	if role == RoleAdmin {
		return lockButLastAdmin(ctx, tx, t)
	}
	return store.New(tx).LockUser(ctx, t.ID)
}
