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
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
)

const (
	standardPage = 50
	maximumPage  = 1000
)

// API is what the four services share.
type API struct {
	Auth  *auth.Service
	Keys  *idempotency.Hasher
	Pages *pagetoken.Codec
}

// Register puts the four services on a server, and the one for the operators of the outbox.
func Register(r grpc.ServiceRegistrar, a API, operators outboxrpc.Config) error {
	outboxServer, err := outboxrpc.New(operators)
	if err != nil {
		return err
	}
	authv1.RegisterAuthServiceServer(r, authServer{API: a})
	authv1.RegisterUserServiceServer(r, userServer{API: a})
	authv1.RegisterSessionServiceServer(r, sessionServer{API: a})
	authv1.RegisterLoginPolicyServiceServer(r, loginPolicyServer{API: a})
	outboxv1.RegisterOutboxServiceServer(r, outboxServer)
	return nil
}

// request is a message with a request id.
type request interface {
	proto.Message
	GetRequestId() string
}

// key names a call by its caller, method, request id and body.
func (a API) key(ctx context.Context, method string, r request) (idempotency.Key, error) {
	p, _ := authn.PrincipalFrom(ctx)
	return a.Keys.Key(p.UserID, method, r.GetRequestId(), r)
}

// target is the account that a call names, and the call's key.
func (a API) target(ctx context.Context, method, name, etag string, r request) (auth.Target, error) {
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
