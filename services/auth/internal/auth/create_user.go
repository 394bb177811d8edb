// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// NewUser is an account to be made.
type NewUser struct {
	Email       string
	DisplayName string
	Password    string
}

// Target is an existing account that an operation is about.
type Target struct {
	ID   uuid.UUID
	ETag string // if given, the etag that the account must have
	Key  idempotency.Key
}

// CreateUser makes an account without roles and records auth.user.created.v1 with it.
//
// Row and event go in two round trips here, so that the fault tests can end the process between them; elsewhere they
// share one. What holds them together is the transaction either way.
func (s *Service) CreateUser(ctx context.Context, key idempotency.Key, n NewUser) (store.User, error) {
	user := store.User{
		ID: s.newID(), Version: 1, Email: strings.ToLower(n.Email), DisplayName: n.DisplayName, State: store.UserActive,
		CreateTime: s.now(),
	}
	user.UpdateTime = user.CreateTime
	try := attempt{Attempt: TryCreateUser, key: key}
	hash, err := s.hashNew(ctx, n.Password)
	if err == nil {
		err = pgdb.InTx(ctx, s.db, func(tx pgx.Tx) error {
			var batch pgx.Batch
			key.Queue(&batch, idempotency.Result{Name: user.Name(), Version: user.Version})
			store.InsertUser(&batch, user)
			store.SetPassword(&batch, user.ID, hash, user.CreateTime)
			if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
				return err
			}
			failpoint.Hit(failpoint.OutboxAfterBusinessWrite)
			return outbox.Append(ctx, tx, userCreated(s.origin(ctx), user))
		})
	}
	err = s.settle(ctx, try, err, func(done idempotency.Result) (err error) {
		user, err = s.userNamed(ctx, done.Name)
		return err
	})
	return user, err
}

// hashNew returns the hash of a password that the policy allows.
func (s *Service) hashNew(ctx context.Context, password string) (string, error) {
	policy, err := store.New(s.db).LoginPolicy(ctx)
	if err != nil {
		return "", err
	}
	if err := requireStrong(policy, password); err != nil {
		return "", err
	}
	return s.hasher.Hash(ctx, password)
}

// userNamed returns the user whose name a request id was kept with, as it is now.
func (s *Service) userNamed(ctx context.Context, name string) (store.User, error) {
	id, err := uuid.Parse(strings.TrimPrefix(name, "users/"))
	if err != nil {
		return store.User{}, fmt.Errorf("read the name of an answered call: %w", err)
	}
	return store.New(s.db).User(ctx, id)
}
