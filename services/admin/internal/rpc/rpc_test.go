// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/metric/noop"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
)

// bundle is a running server on a database of the test's own, and a client.
type bundle struct {
	*testdb.DB
	conn   *grpc.ClientConn
	signer *authn.Signer
	users  map[string]string // a user id for each role
}

func setup(t *testing.T) bundle {
	t.Helper()
	db := testdb.New(t, testdb.Admin)
	box, err := inbox.NewPostgres(db.Service, admin.Catalog(
		inbox.Subscription{Consumer: admin.AuditLogConsumer}, inbox.Subscription{Consumer: admin.SecurityConsumer}))
	if err != nil {
		t.Fatal(err)
	}
	service, err := admin.New(admin.Options{
		DB: db.Service, Inbox: box, Log: slog.New(slog.DiscardHandler), Meter: noop.NewMeterProvider().Meter("test"),
	})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := pagetoken.New("a secret of the test")
	if err != nil {
		t.Fatal(err)
	}
	signer, access := keys(t, service)
	server, err := grpcserver.New(grpcserver.Config{
		Addr: "127.0.0.1:0", Authenticate: access.Authenticate, Translate: pgdb.AppError,
	})
	if err != nil {
		t.Fatal(err)
	}
	Register(server, service, tokens)
	if missing := Policy().Missing(server.ServiceInfo()); len(missing) > 0 {
		t.Errorf("methods without a rule: %v", missing)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- server.Run(ctx) }()
	conn, err := grpc.NewClient(server.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return bundle{DB: db, conn: conn, signer: signer, users: map[string]string{
		"admin": uuid.NewString(), "auditor": uuid.NewString(), "operator": uuid.NewString(), "nobody": uuid.NewString(),
	}}
}

func keys(t *testing.T, service *admin.Service) (*authn.Signer, *authn.Authenticator) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := authn.NewSigner(authn.SignerConfig{Keys: []authn.Key{{ID: "k1", Private: private}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "jwks.json")
	if err := signer.WriteJWKS(path); err != nil {
		t.Fatal(err)
	}
	verifier, err := authn.NewVerifier(authn.VerifierConfig{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	access, err := authn.NewAuthenticator(authn.AuthenticatorConfig{Verifier: verifier, Policy: Policy(), Refused: Refused(service)})
	if err != nil {
		t.Fatal(err)
	}
	return signer, access
}

// as returns a context whose calls carry a token with the role; "" is nobody's.
func (b bundle) as(t *testing.T, role string) context.Context {
	t.Helper()
	if role == "" {
		return t.Context()
	}
	token, _, err := b.signer.Sign(authn.Principal{
		UserID: b.users[role], SessionID: uuid.NewString(), DisplayName: role, Roles: []string{role},
	})
	if err != nil {
		t.Fatal(err)
	}
	return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
}

// record puts events into the audit log, as their consumer does.
func (b bundle) record(t *testing.T, events ...*auditv1.AuditEvent) {
	t.Helper()
	inboxtest.ApplyTwice(t, b.Service, admin.Project, events...)
}

// event is a valid event of Auth's.
func event(t *testing.T) *auditv1.AuditEvent {
	t.Helper()
	return inboxtest.NewEvent(t, "auth", "user.updated")
}

// calls has a valid request for every method.
func (b bundle) calls() map[string]func(context.Context) error {
	logs, box := adminv1.NewAuditLogServiceClient(b.conn), adminv1.NewInboxServiceClient(b.conn)
	poison, alerts := adminv1.NewPoisonServiceClient(b.conn), adminv1.NewSecurityAlertServiceClient(b.conn)
	id := uuid.NewString()
	return map[string]func(context.Context) error{
		adminv1.AuditLogService_ListAuditLogs_FullMethodName: func(ctx context.Context) error {
			_, err := logs.ListAuditLogs(ctx, &adminv1.ListAuditLogsRequest{})
			return err
		},
		adminv1.AuditLogService_GetAuditLog_FullMethodName: func(ctx context.Context) error {
			_, err := logs.GetAuditLog(ctx, &adminv1.GetAuditLogRequest{Name: "auditLogs/" + id})
			return err
		},
		adminv1.AuditLogService_ExportAuditLogs_FullMethodName: func(ctx context.Context) error {
			_, err := export(ctx, logs, &adminv1.ExportAuditLogsRequest{Format: adminv1.ExportFormat_EXPORT_FORMAT_CSV})
			return err
		},
		adminv1.AuditLogService_TraceEvent_FullMethodName: func(ctx context.Context) error {
			_, err := logs.TraceEvent(ctx, &adminv1.TraceEventRequest{EventId: id})
			return err
		},
		adminv1.InboxService_GetInboxStatus_FullMethodName: func(ctx context.Context) error {
			_, err := box.GetInboxStatus(ctx, &adminv1.GetInboxStatusRequest{})
			return err
		},
		adminv1.InboxService_ListInboxEntries_FullMethodName: func(ctx context.Context) error {
			_, err := box.ListInboxEntries(ctx, &adminv1.ListInboxEntriesRequest{Parent: "consumers/-"})
			return err
		},
		adminv1.InboxService_GetInboxEntry_FullMethodName: func(ctx context.Context) error {
			_, err := box.GetInboxEntry(ctx, &adminv1.GetInboxEntryRequest{Name: "consumers/audit-log/entries/" + id})
			return err
		},
		adminv1.InboxService_RequeueInboxEntries_FullMethodName: func(ctx context.Context) error {
			_, err := box.RequeueInboxEntries(ctx, &adminv1.RequeueInboxEntriesRequest{Parent: "consumers/audit-log", EventIds: []string{id}, Reason: "r"})
			return err
		},
		adminv1.InboxService_ReplayInboxEntries_FullMethodName: func(ctx context.Context) error {
			_, err := box.ReplayInboxEntries(ctx, &adminv1.ReplayInboxEntriesRequest{Parent: "consumers/audit-log", EventIds: []string{id}, Reason: "r"})
			return err
		},
		adminv1.PoisonService_ListPoison_FullMethodName: func(ctx context.Context) error {
			_, err := poison.ListPoison(ctx, &adminv1.ListPoisonRequest{})
			return err
		},
		adminv1.PoisonService_GetPoison_FullMethodName: func(ctx context.Context) error {
			_, err := poison.GetPoison(ctx, &adminv1.GetPoisonRequest{Name: "poison/" + id})
			return err
		},
		adminv1.PoisonService_ReplayPoison_FullMethodName: func(ctx context.Context) error {
			_, err := poison.ReplayPoison(ctx, &adminv1.ReplayPoisonRequest{Names: []string{"poison/" + id}, Reason: "r"})
			return err
		},
		adminv1.PoisonService_DiscardPoison_FullMethodName: func(ctx context.Context) error {
			_, err := poison.DiscardPoison(ctx, &adminv1.DiscardPoisonRequest{Names: []string{"poison/" + id}, Reason: "r"})
			return err
		},
		adminv1.SecurityAlertService_ListSecurityAlerts_FullMethodName: func(ctx context.Context) error {
			_, err := alerts.ListSecurityAlerts(ctx, &adminv1.ListSecurityAlertsRequest{})
			return err
		},
	}
}

// export reads the whole stream.
func export(ctx context.Context, logs adminv1.AuditLogServiceClient, r *adminv1.ExportAuditLogsRequest) ([]*adminv1.ExportAuditLogsResponse, error) {
	stream, err := logs.ExportAuditLogs(ctx, r)
	if err != nil {
		return nil, err
	}
	var chunks []*adminv1.ExportAuditLogsResponse
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return chunks, nil
		}
		if err != nil {
			return chunks, err
		}
		chunks = append(chunks, chunk)
	}
}

// Auditors read, operators read and act, everybody else does neither. Each refusal of a known caller is recorded once.
func TestWhoMayCallWhat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	act := []string{
		adminv1.InboxService_RequeueInboxEntries_FullMethodName, adminv1.InboxService_ReplayInboxEntries_FullMethodName,
		adminv1.PoisonService_ReplayPoison_FullMethodName, adminv1.PoisonService_DiscardPoison_FullMethodName,
	}
	calls := b.calls()
	if len(calls) != len(Policy()) {
		t.Fatalf("%d methods are called, the policy has %d", len(calls), len(Policy()))
	}
	for _, method := range slices.Sorted(maps.Keys(calls)) {
		for role, allowed := range map[string]bool{
			"": false, "nobody": false, "admin": false, "auditor": !slices.Contains(act, method), "operator": true,
		} {
			want := codes.OK
			switch {
			case role == "":
				want = codes.Unauthenticated
			case !allowed:
				want = codes.PermissionDenied
			case strings.Contains(method, "/Get") && !strings.Contains(method, "Status"):
				want = codes.NotFound
			}
			if got := status.Code(calls[method](b.as(t, role))); got != want {
				t.Errorf("%s as %q: %v, want %v", method, role, got, want)
			}
			if role == "" {
				continue
			}
			var denied int
			err := b.Super.QueryRow(t.Context(), `SELECT count(*) FROM audit_logs WHERE action = 'admin.call.refused'
				AND outcome = 'DENIED' AND actor_id = $1 AND resource_id = $2`, b.users[role], method).Scan(&denied)
			if err != nil {
				t.Fatal(err)
			}
			if wanted := want == codes.PermissionDenied; (denied == 1) != wanted || denied > 1 {
				t.Errorf("%s as %q: %d refusals are recorded", method, role, denied)
			}
		}
	}
	var anonymous int
	if err := b.Super.QueryRow(t.Context(), "SELECT count(*) FROM audit_logs WHERE actor_type = 'anonymous'").Scan(&anonymous); err != nil || anonymous != 0 {
		t.Errorf("%d anonymous refusals fill the log, %v", anonymous, err)
	}
}

// Pages are walked by tokens that are bound to the filter and grant nothing else.
func TestListByTokens(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := b.as(t, "auditor")
	logs := adminv1.NewAuditLogServiceClient(b.conn)
	want := map[string]bool{}
	for range 10 {
		e := event(t)
		b.record(t, e)
		want["auditLogs/"+e.GetAuditId()] = true
	}
	r := &adminv1.ListAuditLogsRequest{Filter: `owner = "auth"`, PageSize: 3}
	var token string
	for pages := 1; ; pages++ {
		page, err := logs.ListAuditLogs(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		for _, log := range page.GetAuditLogs() {
			if !want[log.GetName()] {
				t.Fatalf("%s is served twice, or was never recorded", log.GetName())
			}
			delete(want, log.GetName())
			if len(log.GetPayload()) > 0 {
				t.Error("the basic view holds the payload")
			}
		}
		if r.PageToken = page.GetNextPageToken(); r.GetPageToken() == "" {
			if pages != 4 {
				t.Errorf("%d pages, want 4", pages)
			}
			break
		}
		token = r.GetPageToken()
	}
	if len(want) > 0 {
		t.Errorf("not served: %v", want)
	}
	for what, bad := range map[string]*adminv1.ListAuditLogsRequest{
		"another filter":   {Filter: `owner = "app"`, PageToken: token},
		"no filter":        {PageToken: token},
		"a changed token":  {Filter: r.GetFilter(), PageToken: token[:len(token)-1] + "x"},
		"no token of ours": {PageToken: "0198c0de-0000-7000-8000-000000000001"},
		"a negative size":  {PageSize: -1},
		"a bad filter":     {Filter: "colour = red"},
		"an unknown view":  {View: 99},
	} {
		if _, err := logs.ListAuditLogs(ctx, bad); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", what, err)
		}
	}
}

func TestFullViewServesTheExactBytes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := event(t)
	b.record(t, e)
	answer, err := adminv1.NewAuditLogServiceClient(b.conn).GetAuditLog(b.as(t, "auditor"), &adminv1.GetAuditLogRequest{
		Name: "auditLogs/" + e.GetAuditId(), View: adminv1.AuditLogView_AUDIT_LOG_VIEW_FULL,
	})
	if err != nil {
		t.Fatal(err)
	}
	payload, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	log := answer.GetAuditLog()
	if !bytes.Equal(log.GetPayload(), payload) || !proto.Equal(log.GetEvent(), e) || log.GetLedgerNumber() == 0 || log.GetRecordTime() == nil {
		t.Errorf("served %v", log)
	}
}

// A file larger than a message comes in pieces that, joined, are the file.
func TestExportInChunks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var events []*auditv1.AuditEvent
	for range 40 {
		e := event(t)
		for range 60 {
			e.Changes = append(e.Changes, &auditv1.Change{
				Field: "note", NewValue: &auditv1.Personal{Value: &auditv1.Personal_Plain{Plain: strings.Repeat("é", 1000)}},
			})
		}
		events = append(events, e)
	}
	b.record(t, events...)
	chunks, err := export(b.as(t, "auditor"), adminv1.NewAuditLogServiceClient(b.conn), &adminv1.ExportAuditLogsRequest{
		Filter: `owner = "auth"`, Format: adminv1.ExportFormat_EXPORT_FORMAT_NDJSON,
	})
	if err != nil {
		t.Fatal(err)
	}
	var file []byte
	for _, chunk := range chunks {
		if len(chunk.GetContent()) > chunkBytes {
			t.Errorf("a chunk has %d bytes", len(chunk.GetContent()))
		}
		file = append(file, chunk.GetContent()...)
	}
	if n := bytes.Count(file, []byte("\n")); n != len(events) || chunks[len(chunks)-1].GetRecordCount() != int64(n) {
		t.Errorf("%d lines and %d records, want %d", n, chunks[len(chunks)-1].GetRecordCount(), len(events))
	}
	if len(chunks) < 3 {
		t.Errorf("%d chunks for %d bytes", len(chunks), len(file))
	}
	for _, e := range events {
		if !bytes.Contains(file, []byte(`"name":"auditLogs/`+e.GetAuditId()+`"`)) {
			t.Errorf("%s is not in the file", e.GetAuditId())
		}
	}
}

// An operator's verbs work over the wire, say what was left alone, and demand a reason.
func TestOperateOverTheWire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := b.as(t, "operator")
	box := adminv1.NewInboxServiceClient(b.conn)
	e := event(t)
	inboxtest.Deliver(t, b.Service, admin.AuditLogConsumer, e)
	consumer, err := inbox.NewConsumer(inbox.ConsumerOptions{
		DB: b.Service, Name: admin.AuditLogConsumer, MaxAttempts: 1,
		Handler: func(context.Context, pgx.Tx, []inbox.Event) error {
			return inbox.Permanent("test.no", errors.New("no"))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := consumer.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := "consumers/audit-log/entries/" + e.GetAuditId()
	entry, err := box.GetInboxEntry(ctx, &adminv1.GetInboxEntryRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if got := entry.GetInboxEntry(); got.GetName() != name || got.GetState() != adminv1.InboxState_INBOX_STATE_DEAD ||
		got.GetLastErrorCode() != "test.no" || got.GetFinishTime() == nil || got.GetStreamEntryId() == "" {
		t.Errorf("entry: %v", got)
	}
	state, err := box.GetInboxStatus(ctx, &adminv1.GetInboxStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if c := state.GetConsumers()[0]; c.GetDeadCount() != 1 || c.GetDeadCountByCode()["test.no"] != 1 || c.GetOldestPendingAge() != nil {
		t.Errorf("status: %v", c)
	}
	list, err := box.ListInboxEntries(ctx, &adminv1.ListInboxEntriesRequest{
		Parent: "consumers/audit-log", State: adminv1.InboxState_INBOX_STATE_DEAD, ErrorCode: "test.no",
		ReceiveTimeFrom: timestamppb.New(time.Now().Add(-time.Hour)),
	})
	if err != nil || len(list.GetInboxEntries()) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}

	unknown := uuid.NewString()
	done, err := box.RequeueInboxEntries(ctx, &adminv1.RequeueInboxEntriesRequest{
		Parent: "consumers/audit-log", EventIds: []string{e.GetAuditId(), unknown}, Reason: "fixed",
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(done.GetRequeuedEventIds(), []string{e.GetAuditId()}) || len(done.GetRefusals()) != 1 || done.GetRefusals()[0].GetName() != unknown {
		t.Errorf("requeued: %v", done)
	}
	for _, reason := range []string{"", "  ", "\t", strings.Repeat("x", 513), "a\x00b"} {
		_, err := box.RequeueInboxEntries(ctx, &adminv1.RequeueInboxEntriesRequest{
			Parent: "consumers/audit-log", EventIds: []string{e.GetAuditId()}, Reason: reason,
		})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("reason %.10q: %v, want INVALID_ARGUMENT", reason, err)
		}
	}
}

// Errors say what is wrong in the way of AIP-193, and nothing of SQL, drivers or addresses.
func TestErrorsAreForCallers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	logs := adminv1.NewAuditLogServiceClient(b.conn)
	_, err := logs.ListAuditLogs(b.as(t, "auditor"), &adminv1.ListAuditLogsRequest{Filter: "colour = red"})
	info, violations := details(err)
	if info.GetReason() != "INVALID_FILTER" || info.GetMetadata()["field"] != "colour" || !slices.Equal(violations, []string{"filter"}) {
		t.Errorf("got %v, %v", info, violations)
	}
	if _, err := b.Super.Exec(t.Context(), "ALTER TABLE audit_logs RENAME TO secret_name"); err != nil {
		t.Fatal(err)
	}
	_, err = logs.GetAuditLog(b.as(t, "auditor"), &adminv1.GetAuditLogRequest{Name: "auditLogs/" + uuid.NewString()})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "audit_logs") || strings.Contains(err.Error(), "42P01") {
		t.Errorf("got %v", err)
	}
}

func details(err error) (info *errdetails.ErrorInfo, fields []string) {
	for _, detail := range status.Convert(err).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	return info, fields
}
