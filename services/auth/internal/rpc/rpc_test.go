// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/testdb"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/rpc"
)

const (
	secret       = "0123456789abcdef"
	rootPassword = "correct horse battery"
	goodPassword = "a fairly long password"
)

// syncBuffer is a log that tests read while the server writes.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// bundle is the API on a socket, over a database of its own, and a client logged in as its first operator.
type bundle struct {
	t        *testing.T
	db       *testdb.DB
	server   *grpcserver.Server
	conn     *grpc.ClientConn
	log      *syncBuffer
	root     context.Context
	rootName string

	auth     authv1.AuthServiceClient
	users    authv1.UserServiceClient
	sessions authv1.SessionServiceClient
	policy   authv1.LoginPolicyServiceClient
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, db: testdb.New(t, testdb.Auth), log: &syncBuffer{}}
	service, verifier := b.service()
	access, err := rpc.Authenticator(verifier, service)
	b.must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	b.server, err = grpcserver.New(grpcserver.Config{
		Listener: listener, Logger: slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Authenticate: access.Authenticate, Enrich: outboxrpc.Trace, Translate: pgdb.AppError,
	})
	b.must(err)
	pages, err := pagetoken.New(secret)
	b.must(err)
	requests, err := idempotency.NewHasher(secret)
	b.must(err)
	b.must(rpc.Register(b.server, rpc.Config{DB: b.db.Service, Auth: service, Tokens: pages, Requests: requests}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.server.Run(ctx) }()
	b.conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	b.must(err)
	t.Cleanup(func() {
		_ = b.conn.Close()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	b.auth, b.users = authv1.NewAuthServiceClient(b.conn), authv1.NewUserServiceClient(b.conn)
	b.sessions, b.policy = authv1.NewSessionServiceClient(b.conn), authv1.NewLoginPolicyServiceClient(b.conn)

	root, err := service.Bootstrap(t.Context(), auth.NewUser{Email: "root@example.com", DisplayName: "Root", Password: rootPassword})
	b.must(err)
	b.rootName = root.Name()
	b.root, _ = b.login("root@example.com", rootPassword)
	return b
}

func (b *bundle) service() (*auth.Service, *authn.Verifier) {
	b.t.Helper()
	dir := b.t.TempDir()
	keys, err := authn.LoadOrCreateKey(dir + "/key.pem")
	b.must(err)
	signer, err := authn.NewSigner(authn.SignerConfig{Keys: keys})
	b.must(err)
	b.must(signer.WriteJWKS(dir + "/jwks.json"))
	verifier, err := authn.NewVerifier(authn.VerifierConfig{Path: dir + "/jwks.json"})
	b.must(err)
	hasher, err := auth.NewHasher(auth.HashParams{MemoryKiB: 64, Passes: 1}, 4)
	b.must(err)
	service, err := auth.New(auth.Options{
		DB: b.db.Service, Hasher: hasher, Signer: signer, Secret: secret, Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	})
	b.must(err)
	return service, verifier
}

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// with is a call with an access token.
func (b *bundle) with(token string) context.Context {
	return metadata.AppendToOutgoingContext(b.t.Context(), "authorization", "Bearer "+token)
}

// login returns a context with a user's token.
func (b *bundle) login(email, password string) (context.Context, *authv1.LoginResponse) {
	b.t.Helper()
	r, err := b.auth.Login(b.t.Context(), &authv1.LoginRequest{Email: email, Password: password})
	b.must(err)
	return b.with(r.GetTokens().GetAccessToken()), r
}

// user makes an account.
func (b *bundle) user(name string) *authv1.User {
	b.t.Helper()
	r, err := b.users.CreateUser(b.root, &authv1.CreateUserRequest{
		User: &authv1.User{Email: name + "@example.com", DisplayName: name}, Password: goodPassword, RequestId: uuid.NewString(),
	})
	b.must(err)
	return r.GetUser()
}

// recorded runs do and returns the events that it recorded.
func (b *bundle) recorded(do func()) []*auditv1.AuditEvent {
	b.t.Helper()
	before := len(b.events())
	do()
	return b.events()[before:]
}

func (b *bundle) events() []*auditv1.AuditEvent {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rows, err := b.db.Service.Query(ctx, `SELECT payload FROM audit_outbox ORDER BY append_no`)
	b.must(err)
	defer rows.Close()
	var events []*auditv1.AuditEvent
	for rows.Next() {
		var payload []byte
		e := &auditv1.AuditEvent{}
		b.must(rows.Scan(&payload))
		b.must(proto.Unmarshal(payload, e))
		events = append(events, e)
	}
	return events
}

func requireCode(t *testing.T, err error, code codes.Code) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("got %v, want %v", err, code)
	}
}
