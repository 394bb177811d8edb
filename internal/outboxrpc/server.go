// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package outboxrpc serves counterfoil.outbox.v1 over a service's own outbox: an operator sees what waits, what failed
// and why, and sends failed events on their way again. Every service that owns an outbox registers the same server.
//
// A requeue and the owner's own event about it are one transaction. Reading is not recorded. Nothing here delivers.
package outboxrpc

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

// Journal is how a service records what operators do to its outbox. The caller is in the context.
type Journal interface {
	// Requeued appends, in tx, the owner's event about each of the events that are being requeued.
	Requeued(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, reason string) error
	// RequeueRefused records that err kept the events from being requeued, as well as can be.
	RequeueRefused(ctx context.Context, ids []uuid.UUID, err error)
}

// Config is what a Server needs. All fields but Wake are required.
type Config struct {
	// Owner is the service's name: "auth", "app".
	Owner string
	// DB is the service's database, and Outbox the outbox in it.
	DB     *pgxpool.Pool
	Outbox outbox.Store
	// Journal records requeues.
	Journal Journal
	// Tokens makes page tokens; Requests makes repeated calls safe.
	Tokens   *pagetoken.Codec
	Requests *idempotency.Hasher
	// Wake is called after a requeue is committed: Dispatcher.Wake.
	Wake func()
}

// Server implements OutboxService.
type Server struct {
	outboxv1.UnimplementedOutboxServiceServer
	cfg Config
}

// New checks cfg and returns a Server.
func New(cfg Config) (*Server, error) {
	if cfg.Owner == "" || cfg.DB == nil || cfg.Outbox == nil || cfg.Journal == nil || cfg.Tokens == nil || cfg.Requests == nil {
		return nil, errors.New("outbox rpc: a required field of the config is not set")
	}
	if cfg.Wake == nil {
		cfg.Wake = func() {}
	}
	return &Server{cfg: cfg}, nil
}

// Roles of a token that the policy knows.
const (
	roleOperator = "operator"
	roleAuditor  = "auditor"
	roleAdmin    = "admin"
)

// Policy says who may call what: operators, auditors and admins read, operators requeue. A service adds it to its own.
func Policy() authn.Policy {
	readers := authn.AnyRole(roleOperator, roleAuditor, roleAdmin)
	return authn.Policy{
		outboxv1.OutboxService_GetOutboxStatus_FullMethodName:     readers,
		outboxv1.OutboxService_ListOutboxEvents_FullMethodName:    readers,
		outboxv1.OutboxService_GetOutboxEvent_FullMethodName:      readers,
		outboxv1.OutboxService_RequeueOutboxEvents_FullMethodName: authn.AnyRole(roleOperator),
	}
}

// Trace gives the trace context of a call to the events that it appends. It fits grpcserver.Config.Enrich.
func Trace(ctx context.Context) context.Context {
	info := grpcserver.RequestInfo(ctx)
	return outbox.ContextWithTrace(ctx, info.Traceparent, info.Tracestate)
}
