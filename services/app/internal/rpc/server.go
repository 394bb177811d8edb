// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpc serves package app over gRPC: it turns messages into values and back, and has the table of who may call
// what. Generated types stop here, and nothing here decides or stores anything.
//
// Requests arrive validated by the rules of their contract. Errors are returned as they are; the server maps them.
package rpc

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
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

// Config is what the service's API needs. All fields are required.
type Config struct {
	DB       *pgxpool.Pool
	App      *app.Service
	Tokens   *pagetoken.Codec
	Requests *idempotency.Hasher
	// Wake is called when an operator made events wait for delivery again.
	Wake func()
}

// Register registers everything that the service serves: its own API, and the operations on its outbox.
func Register(on grpc.ServiceRegistrar, cfg Config) error {
	ofOutbox, err := outboxrpc.New(outboxrpc.Config{
		Owner: "app", DB: cfg.DB, Outbox: outbox.NewPostgres(cfg.DB, outbox.PostgresOptions{}), Journal: journal{cfg.App},
		Tokens: cfg.Tokens, Requests: cfg.Requests, Wake: cfg.Wake,
	})
	if err != nil {
		return err
	}
	appv1.RegisterProjectServiceServer(on, &Server{app: cfg.App, tokens: cfg.Tokens, requests: cfg.Requests})
	outboxv1.RegisterOutboxServiceServer(on, ofOutbox)
	return nil
}
