// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// Conn returns a connection to a service: calls go round its replicas that answer. It is shared, and closed with the
// system.
func (s *System) Conn(name string) (*grpc.ClientConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if conn := s.conns[name]; conn != nil {
		return conn, nil
	}
	var state resolver.State
	for _, replica := range s.services[name] {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: replica.Addr()})
	}
	builder := manual.NewBuilderWithScheme("replicas")
	builder.InitialState(state)
	conn, err := Dial("replicas:///"+name, grpc.WithResolvers(builder),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`))
	if err != nil {
		return nil, err
	}
	s.conns[name] = conn
	return conn, nil
}

// Dial connects to an address as a client without TLS does.
func Dial(target string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// A restarted service should be found at once, not after gRPC's usual minute.
		grpc.WithConnectParams(quickBackoff()),
	}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target, err)
	}
	return conn, nil
}

// Login returns an access token.
func (s *System) Login(ctx context.Context, who Credentials) (string, error) {
	conn, err := s.Conn("auth")
	if err != nil {
		return "", err
	}
	answer, err := authv1.NewAuthServiceClient(conn).Login(ctx, &authv1.LoginRequest{Email: who.Email, Password: who.Password})
	if err != nil {
		return "", fmt.Errorf("log in as %s: %w", who.Email, err)
	}
	return answer.GetTokens().GetAccessToken(), nil
}

// WithToken returns a context whose calls carry the access token.
func WithToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// AsOperator logs the first operator in and returns a context whose calls are theirs.
func (s *System) AsOperator(ctx context.Context) (context.Context, error) {
	token, err := s.Login(ctx, s.Operator)
	if err != nil {
		return nil, err
	}
	return WithToken(ctx, token), nil
}
