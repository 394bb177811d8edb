// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// DeleteUser deletes an account with its sessions and roles. It records one event with each row: auth.session.deleted.v1
// and auth.role.revoked.v1 first, auth.user.deleted.v1 last. Nothing audited is deleted by a cascade, which would leave no
// event.
func (s *Service) DeleteUser(ctx context.Context, t Target) error {
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		user, err := lockButLastAdmin(ctx, tx, t)
		if err != nil {
			return err
		}
		sessions, err := store.New(tx).LockSessions(ctx, t.ID, false)
		if err != nil {
			return err
		}
		grants, err := store.New(tx).ListRoleGrants(ctx, t.ID, "", len(user.Roles)+1)
		if err != nil {
			return err
		}
		o := s.origin(ctx)
		user.Version++
		var batch pgx.Batch
		var events []*auditv1.AuditEvent
		t.Key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
		for _, before := range sessions {
			after := before
			after.Version, after.State = before.Version+1, ""
			store.DeleteSession(&batch, after)
			events = append(events, sessionOver(o, ActionSessionDeleted, auditv1.Operation_OPERATION_DELETE, before, after, user, reasonUserDeleted))
		}
		for _, grant := range grants {
			grant.Version++
			store.DeleteRoleGrant(&batch, grant)
			events = append(events, with(roleRevoked(o, grant, user), auditv1.Outcome_OUTCOME_SUCCEEDED, reasonUserDeleted))
		}
		store.DeleteUser(&batch, user)
		return outbox.AppendBatch(ctx, tx, &batch, append(events, userDeleted(o, user))...)
	})
	return s.settle(ctx, TryDeleteUser.on(t.ID, t.Key), err, func(idempotency.Result) error { return nil })
}
