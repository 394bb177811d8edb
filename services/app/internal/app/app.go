// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package app is what can be done with projects and their members, who may do it, and what is recorded of it.
//
// Each operation is one function, and the row change, its audit event and their transaction stand in it together: they
// commit together or not at all. A refused or failed attempt is recorded after it, in a short transaction of its own
// and as well as can be: if that one fails, the refusal stands and the record of it is missing.
//
// The package knows nothing of gRPC messages, of Redis or of the other services. It does not check that a user exists:
// users are Auth's, and their ids come from Auth's tokens or from a caller who manages members.
package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// MaxImport is how many members one ImportMembers may add.
const MaxImport = 10_000

// Anybody can cause refusals without a token, so only so many of those are recorded.
const (
	anonymousRate  = 10 // per second
	anonymousBurst = 100
)

// Config is what a Service needs. DB and Logger are required.
type Config struct {
	DB     *pgxpool.Pool
	Logger *slog.Logger
	// Wake is called after each commit, so that the dispatcher need not wait for its next poll. Default: nothing.
	Wake func()
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// Service does the operations. It is safe for concurrent use.
type Service struct {
	db        *pgxpool.Pool
	log       *slog.Logger
	wake      func()
	clock     func() time.Time
	anonymous *rate.Limiter
}

// New returns a Service.
func New(cfg Config) *Service {
	if cfg.Wake == nil {
		cfg.Wake = func() {}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{
		db: cfg.DB, log: cfg.Logger, wake: cfg.Wake, clock: cfg.Now,
		anonymous: rate.NewLimiter(anonymousRate, anonymousBurst),
	}
}

// inTx runs fn in one transaction and, once it is committed, wakes the dispatcher. fn may run twice: see pgdb.InTx.
func (s *Service) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	err := store.Translate(pgdb.InTx(ctx, s.db, fn))
	var invalid *outbox.InvalidEventError
	switch {
	case err == nil:
		s.wake()
		return nil
	case errors.As(err, &invalid):
		return apperr.InvalidArgument("EVENT_REFUSED", "the action cannot be recorded in the audit log as it is, so it was not done").WithCause(err)
	default:
		return err
	}
}

// now is the time as Postgres keeps it: the row, the event and the answer hold the same one.
func (s *Service) now() time.Time { return s.clock().UTC().Truncate(time.Microsecond) }

// newID returns a UUIDv7: ids of later rows sort after those of earlier ones. It fails only where the system has no
// randomness, and there the program ends.
func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }
