// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
)

// callOf returns who calls and from where. The authenticator has seen the token, so a caller without a usable id is a
// fault of whoever issued it.
func callOf(ctx context.Context) (app.Call, error) {
	p, ok := authn.PrincipalFrom(ctx)
	if !ok {
		return app.Call{}, apperr.Unauthenticated("TOKEN_MISSING", "the call needs an access token")
	}
	id, err := uuid.Parse(p.UserID)
	if err != nil || id == uuid.Nil {
		return app.Call{}, apperr.Unauthenticated("TOKEN_INVALID", "the access token names no user").WithCause(err)
	}
	return app.Call{
		UserID: id, DisplayName: p.DisplayName, SessionID: p.SessionID, Admin: p.HasRole(roleAdmin), Info: grpcserver.RequestInfo(ctx),
	}, nil
}

// mutation is a request that may be repeated under its request id.
type mutation interface {
	proto.Message
	GetRequestId() string
}

// callWith is callOf for a request that changes something.
func (s *Server) callWith(ctx context.Context, req mutation) (app.Call, error) {
	call, err := callOf(ctx)
	if err != nil {
		return app.Call{}, err
	}
	call.Request, err = s.requests.Key(call.UserID.String(), call.Info.Method, req.GetRequestId(), req)
	return call, err
}
