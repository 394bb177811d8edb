// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/testdb"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/rpc"
)

// bundle is one test's server, and clients of it.
type bundle struct {
	t        *testing.T
	db       *testdb.DB
	server   *grpcserver.Server
	conn     *grpc.ClientConn
	signer   *authn.Signer
	projects appv1.ProjectServiceClient
	outbox   outboxv1.OutboxServiceClient
	seen     int
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, db: testdb.New(t, testdb.App)}
	dir := t.TempDir()
	keys, err := authn.LoadOrCreateKey(filepath.Join(dir, "key.pem"))
	b.must(err)
	b.signer, err = authn.NewSigner(authn.SignerConfig{Keys: keys})
	b.must(err)
	b.must(b.signer.WriteJWKS(filepath.Join(dir, "jwks.json")))
	verifier, err := authn.NewVerifier(authn.VerifierConfig{Path: filepath.Join(dir, "jwks.json")})
	b.must(err)
	b.must(verifier.Ready(t.Context()))

	const secret = config.Secret("a secret of sixteen bytes or more")
	tokens, err := pagetoken.New(secret)
	b.must(err)
	requests, err := idempotency.NewHasher(secret)
	b.must(err)
	service := app.New(app.Config{DB: b.db.Service, Logger: slog.New(slog.DiscardHandler)})
	access, err := authn.NewAuthenticator(authn.AuthenticatorConfig{Verifier: verifier, Policy: rpc.Policy(), Refused: service.CallRefused})
	b.must(err)
	b.server, err = grpcserver.New(grpcserver.Config{
		Addr: "127.0.0.1:0", Authenticate: access.Authenticate, Enrich: outboxrpc.Trace, Translate: pgdb.AppError,
		Propagator: propagation.TraceContext{},
	})
	b.must(err)
	b.must(rpc.Register(b.server, rpc.Config{DB: b.db.Service, App: service, Tokens: tokens, Requests: requests}))

	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- b.server.Run(ctx) }()
	b.conn, err = grpc.NewClient(b.server.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	b.must(err)
	t.Cleanup(func() {
		_ = b.conn.Close()
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	b.projects, b.outbox = appv1.NewProjectServiceClient(b.conn), outboxv1.NewOutboxServiceClient(b.conn)
	return b
}

// as returns a context with the token of a user who has roles, and the user's id.
func (b *bundle) as(name string, roles ...string) (context.Context, string) {
	b.t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	token, _, err := b.signer.Sign(authn.Principal{UserID: id, SessionID: uuid.NewString(), DisplayName: name, Roles: roles})
	b.must(err)
	return metadata.AppendToOutgoingContext(b.t.Context(), "authorization", "Bearer "+token, "x-correlation-id", "corr-"+name), id
}

func (b *bundle) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// project creates one and forgets its events.
func (b *bundle) project(ctx context.Context) *appv1.Project {
	b.t.Helper()
	r, err := b.projects.CreateProject(ctx, &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: "p-" + uuid.NewString()[:8], DisplayName: "Orion"}})
	b.must(err)
	b.news()
	return r.GetProject()
}

// news returns the types of the events appended since it was last asked, and the events.
func (b *bundle) news() (types string, events []*auditv1.AuditEvent) {
	b.t.Helper()
	rows, err := b.db.Super.Query(b.t.Context(), `SELECT payload FROM audit_outbox ORDER BY append_no OFFSET $1`, b.seen)
	b.must(err)
	defer rows.Close()
	var list []string
	for rows.Next() {
		var payload []byte
		b.must(rows.Scan(&payload))
		e := &auditv1.AuditEvent{}
		b.must(proto.Unmarshal(payload, e))
		events, list = append(events, e), append(list, strings.TrimSuffix(e.GetEventType(), ".v1"))
	}
	b.must(rows.Err())
	b.seen += len(events)
	return strings.Join(list, " "), events
}

// wantError checks the code, that there is exactly one ErrorInfo, and its reason (AIP-193).
func (b *bundle) wantError(err error, code codes.Code, reason string) {
	b.t.Helper()
	if status.Code(err) != code {
		b.t.Errorf("got %v, want %v", err, code)
	}
	var reasons []string
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			reasons = append(reasons, info.GetReason())
		}
	}
	if len(reasons) != 1 || reasons[0] != reason {
		b.t.Errorf("%v has reasons %v, want %s", err, reasons, reason)
	}
}

// violated returns the fields that an error says are wrong.
func violated(err error) string {
	var fields []string
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return strings.Join(fields, " ")
}
