// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// PolicyChange names the fields of the login policy to change; nil leaves a field as it is.
type PolicyChange struct {
	MinPasswordLength *int
	MaxFailedAttempts *int
	Lockout           *time.Duration
	SessionLifetime   *time.Duration
	AllowedNetworks   *[]netip.Prefix
}

// UpdateLoginPolicy changes the policy and records auth.login_policy.updated.v1 with it. A change that leaves every field
// as it is makes no new version and records nothing.
func (s *Service) UpdateLoginPolicy(ctx context.Context, key idempotency.Key, etag string, c PolicyChange) (store.LoginPolicy, error) {
	var policy store.LoginPolicy
	err := pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
		before, err := store.New(tx).LockLoginPolicy(ctx)
		if err != nil {
			return err
		}
		if err := requireETag(etag, before.Version); err != nil {
			return err
		}
		policy = c.apply(before)
		if err := checkPolicy(policy); err != nil {
			return err
		}
		if len(policyChanges(before, policy)) == 0 {
			return key.Insert(ctx, tx, idempotency.Result{Name: policy.Name(), Version: policy.Version})
		}
		policy.Version, policy.UpdateTime = before.Version+1, s.now()
		var batch pgx.Batch
		key.Queue(&batch, idempotency.Result{Name: policy.Name(), Version: policy.Version})
		store.UpdateLoginPolicy(&batch, policy)
		return outbox.AppendBatch(ctx, tx, &batch, policyUpdated(s.origin(ctx), before, policy))
	})
	err = s.settle(ctx, attempt{Attempt: TryUpdateLoginPolicy, key: key}, err, func(idempotency.Result) (err error) {
		policy, err = store.New(s.db).LoginPolicy(ctx)
		return err
	})
	return policy, err
}

func (c PolicyChange) apply(p store.LoginPolicy) store.LoginPolicy {
	if c.MinPasswordLength != nil {
		p.MinPasswordLength = *c.MinPasswordLength
	}
	if c.MaxFailedAttempts != nil {
		p.MaxFailedAttempts = *c.MaxFailedAttempts
	}
	if c.Lockout != nil {
		p.Lockout = *c.Lockout
	}
	if c.SessionLifetime != nil {
		p.SessionLifetime = *c.SessionLifetime
	}
	if c.AllowedNetworks != nil {
		p.AllowedNetworks = *c.AllowedNetworks
	}
	return p
}

// checkPolicy holds a policy to the bounds that the table has too. A request that names a field and leaves it empty gets
// here: to the contract, empty may mean absent.
func checkPolicy(p store.LoginPolicy) error {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	switch {
	case p.MinPasswordLength < 8 || p.MinPasswordLength > 128:
		return outOfBounds("min_password_length", "8 to 128")
	case p.MaxFailedAttempts < 1 || p.MaxFailedAttempts > 100:
		return outOfBounds("max_failed_attempts", "1 to 100")
	case p.Lockout < time.Second || p.Lockout > day || p.Lockout%time.Second != 0:
		return outOfBounds("lockout_duration", "1 s to 24 h, in whole seconds")
	case p.SessionLifetime < time.Minute || p.SessionLifetime > year || p.SessionLifetime%time.Second != 0:
		return outOfBounds("session_duration", "1 minute to 1 year, in whole seconds")
	}
	return nil
}

func outOfBounds(field, bounds string) error {
	return apperr.InvalidField("login_policy."+field, fmt.Sprintf("must be %s", bounds))
}
