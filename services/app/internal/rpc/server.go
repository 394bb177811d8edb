// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpc serves package app over gRPC: it turns messages into values and back, and has the table of who may call
// what. Generated types stop here, and nothing here decides or stores anything.
//
// Requests arrive validated by the rules of their contract. Errors are returned as they are; the server maps them.
package rpc

import (
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
)

// Sizes of a page of a list.
const (
	defaultPage = 50
	maxPage     = 1000
)

// Server implements ProjectService.
type Server struct {
	appv1.UnimplementedProjectServiceServer
	app      *app.Service
	tokens   *pagetoken.Codec
	requests *idempotency.Hasher
}

// New returns a Server in front of service.
func New(service *app.Service, tokens *pagetoken.Codec, requests *idempotency.Hasher) *Server {
	return &Server{app: service, tokens: tokens, requests: requests}
}
