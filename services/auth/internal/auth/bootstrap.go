// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// initialPolicy is the login policy of a new system.
func initialPolicy() store.LoginPolicy {
	return store.LoginPolicy{MinPasswordLength: 12, MaxFailedAttempts: 5, Lockout: 15 * time.Minute, SessionLifetime: 12 * time.Hour}
}

// Bootstrap makes the first operator, with every role, and the login policy. It records one event with each row, the
// actor being the system. Once there is a user it is FailedPrecondition (ALREADY_BOOTSTRAPPED), which is recorded too;
// of two that run at once, one succeeds.
func (s *Service) Bootstrap(ctx context.Context, n NewUser) (store.User, error) {
	o := s.origin(ctx).bySystem("bootstrap")
	policy := initialPolicy()
	policy.ID, policy.Version, policy.UpdateTime = s.newID(), 1, o.at
	user := store.User{
		ID: s.newID(), Version: 1, Email: strings.ToLower(n.Email), DisplayName: n.DisplayName, State: store.UserActive,
		CreateTime: o.at, UpdateTime: o.at, Roles: []string{RoleAdmin, RoleAuditor, RoleOperator},
	}
	if err := requireStrong(policy, n.Password); err != nil {
		return store.User{}, err
	}
	hash, err := s.hasher.Hash(ctx, n.Password)
	if err != nil {
		return store.User{}, err
	}
	err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		if err := requireEmpty(ctx, store.New(tx)); err != nil {
			return err
		}
		var batch pgx.Batch
		store.InsertUser(&batch, user)
		store.SetPassword(&batch, user.ID, hash, o.at)
		store.InsertLoginPolicy(&batch, policy)
		events := []*auditv1.AuditEvent{userCreated(o, user), policyCreated(o, policy)}
		for _, role := range user.Roles {
			grant := store.RoleGrant{ID: s.newID(), Version: 1, UserID: user.ID, Role: role, CreateTime: o.at}
			store.InsertRoleGrant(&batch, grant)
			events = append(events, roleGranted(o, grant, user))
		}
		return outbox.AppendBatch(ctx, tx, &batch, events...)
	})
	if apperr.ReasonOf(err) == "ALREADY_BOOTSTRAPPED" {
		s.record(ctx, refused(o, TryBootstrap, "", auditv1.Outcome_OUTCOME_FAILED, apperr.ReasonOf(err)))
	}
	return user, err
}

// requireEmpty refuses a system that has a user. The lock makes a second bootstrap wait for the first.
func requireEmpty(ctx context.Context, q store.Queries) error {
	if err := q.LockAccounts(ctx); err != nil {
		return err
	}
	found, err := q.AnyUser(ctx)
	if err != nil {
		return err
	}
	if found {
		return apperr.FailedPrecondition("ALREADY_BOOTSTRAPPED", "there is a user already: log in as an admin instead")
	}
	return nil
}
