// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpc serves Auth's API: it turns requests into operations of package auth, and rows into messages. The generated
// types stop here.
//
// Requests were checked against the contract before they get here (package grpcserver), and callers against Policy. Errors
// go up as they are; grpcserver turns them into statuses. Lists are paged by keyset: what was there when the first page
// was served is neither skipped nor repeated.
package rpc

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
)

const (
	standardPage = 50
	maximumPage  = 1000
)

// Config is what the services need. All fields but Wake are required.
type Config struct {
	DB   *pgxpool.Pool // for the operations on the outbox
	Auth *auth.Service
	// Tokens makes page tokens; Requests makes repeated calls safe.
	Tokens   *pagetoken.Codec
	Requests *idempotency.Hasher
	// Wake is called when an operator made events wait for delivery again.
	Wake func()
}

// Register registers everything that the service serves: its own API, and the operations on its outbox.
func Register(on grpc.ServiceRegistrar, cfg Config) error {
	ofOutbox, err := outboxrpc.New(outboxrpc.Config{
		Owner: auth.Owner, DB: cfg.DB, Outbox: outbox.NewPostgres(cfg.DB, outbox.PostgresOptions{}), Journal: cfg.Auth,
		Tokens: cfg.Tokens, Requests: cfg.Requests, Wake: cfg.Wake,
	})
	if err != nil {
		return err
	}
	a := api{auth: cfg.Auth, tokens: cfg.Tokens, requests: cfg.Requests}
	authv1.RegisterAuthServiceServer(on, authServer{api: a})
	authv1.RegisterUserServiceServer(on, userServer{api: a})
	authv1.RegisterSessionServiceServer(on, sessionServer{api: a})
	authv1.RegisterLoginPolicyServiceServer(on, loginPolicyServer{api: a})
	outboxv1.RegisterOutboxServiceServer(on, ofOutbox)
	return nil
}

// api is what the four services share.
type api struct {
	auth     *auth.Service
	tokens   *pagetoken.Codec
	requests *idempotency.Hasher
}

// request is a message with a request id.
type request interface {
	proto.Message
	GetRequestId() string
}

// key names a call by its caller, method, request id and body.
func (a api) key(ctx context.Context, method string, r request) (idempotency.Key, error) {
	p, _ := authn.PrincipalFrom(ctx)
	return a.requests.Key(p.UserID, method, r.GetRequestId(), r)
}

// target is the account that a call names, and the call's key.
func (a api) target(ctx context.Context, method, name, etag string, r request) (auth.Target, error) {
	id, err := userID(name)
	if err != nil {
		return auth.Target{}, err
	}
	key, err := a.key(ctx, method, r)
	return auth.Target{ID: id, ETag: etag, Key: key}, err
}

// nextPage cuts a list that was read one row beyond size, and returns the token of what follows.
func nextPage[T any](codec *pagetoken.Codec, b pagetoken.Binding, rows []T, size int, cursor func(T) any) ([]T, string, error) {
	if len(rows) <= size {
		return rows, "", nil
	}
	rows = rows[:size]
	token, err := codec.Seal(b, cursor(rows[size-1]))
	return rows, token, err
}

// userID reads "users/{user}" and whatever follows it.
func userID(name string) (uuid.UUID, error) { return segment(name, "name", 1) }

// sessionIDs reads "users/{user}/sessions/{session}".
func sessionIDs(name string) (user, session uuid.UUID, err error) {
	if user, err = segment(name, "name", 1); err != nil {
		return uuid.Nil, uuid.Nil, err
	}
	session, err = segment(name, "name", 3)
	return user, session, err
}

// segment reads the id at a place of a name. The contract's pattern was checked before: the error is for a contract that
// lost its pattern.
func segment(name, field string, place int) (uuid.UUID, error) {
	parts := strings.Split(name, "/")
	if place < len(parts) {
		if id, err := uuid.Parse(parts[place]); err == nil {
			return id, nil
		}
	}
	return uuid.Nil, apperr.InvalidField(field, "is not the name of such a resource")
}
