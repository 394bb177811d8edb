// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package scenario plays a working day of the whole system through its gRPC interfaces: people, roles, a guessed password, a
// stolen token, projects, refusals, and an outage of Admin and Redis in the middle of it.
//
// It writes down each call before it makes it, with the events that the call must leave. That journal is the demo's own
// account, made without a look into any database, and package report holds the audit log against it.
package scenario

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/counterfoil/counterfoil/test/harness"
)

// The parts of the system that the scenario kills.
const (
	Admin = "admin"
	Redis = "redis"
)

// Power switches parts of a system off and on.
type Power interface {
	// Kill ends all processes of a part with SIGKILL and says what was killed, in words for people.
	Kill(ctx context.Context, part string) (string, error)
	// Start starts the part again, and returns when it answers.
	Start(ctx context.Context, part string) error
}

// System is what the scenario plays against.
type System struct {
	// Services are connections to auth, app and admin.
	Services map[string]*grpc.ClientConn
	// Databases are pools to the databases of the three services, as the superuser: for looking only.
	Databases map[string]*pgxpool.Pool
	// RedisAddr is host:port of the broker.
	RedisAddr string
	// Operator is the first operator.
	Operator harness.Credentials
	// Power kills and starts Admin and Redis.
	Power Power
}

// probePatience bounds one look whether a part answers.
const probePatience = 200 * time.Millisecond

// adminAnswers asks Admin over gRPC whether it serves.
func (s System) adminAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(s.Services[Admin]).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err == nil && answer.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

// RedisAnswers sends a PING to host:port; "you may not" is an answer, too. That somebody accepts the connection is none: in
// front of a container it may be the engine.
func RedisAnswers(ctx context.Context, addr string) bool {
	conn, err := (&net.Dialer{Timeout: probePatience}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(probePatience)); err != nil {
		return false
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	first := make([]byte, 1)
	n, err := conn.Read(first)
	return err == nil && n == 1
}
