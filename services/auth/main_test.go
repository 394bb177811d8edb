// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

const (
	macSecret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	password  = "correct horse battery"
)

// buffer is a log that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// process is the service running inside the test.
type process struct {
	t    *testing.T
	env  map[string]string
	log  *buffer
	conn *grpc.ClientConn
	stop func() error
}

func (p *process) getenv(name string) string { return p.env[name] }

// environment is a whole configuration on a database and a broker.
func environment(t *testing.T, db *testdb.DB, broker *testdb.RedisServer) map[string]string {
	t.Helper()
	dir := t.TempDir()
	return map[string]string{
		"DATABASE_URL": db.URL("auth_service"), "REDIS_URL": "redis://" + broker.Addr(), "MAC_KEYS": "k1:" + macSecret,
		"SIGNING_KEY_FILE": filepath.Join(dir, "key.pem"), "JWKS_FILE": filepath.Join(dir, "jwks.json"),
		"PAGE_TOKEN_KEY": "a secret of sixteen bytes or more", "LISTEN_ADDR": freeAddr(t), "DEBUG_ADDR": freeAddr(t),
		"BOOTSTRAP_EMAIL": "root@example.com", "BOOTSTRAP_PASSWORD": password,
	}
}

// start bootstraps and runs the service, and waits until it is ready.
func start(t *testing.T, db *testdb.DB, broker *testdb.RedisServer) *process {
	t.Helper()
	p := &process{t: t, env: environment(t, db, broker), log: &buffer{}}
	must(t, run(t.Context(), []string{"bootstrap"}, p.getenv, p.log))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, nil, p.getenv, p.log) }()
	var err error
	p.conn, err = grpc.NewClient(p.env["LISTEN_ADDR"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	p.stop = sync.OnceValue(func() error {
		_ = p.conn.Close()
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
	eventually(t, func() error { return run(t.Context(), []string{"healthcheck"}, p.getenv, io.Discard) })
	return p
}

func (p *process) login() (context.Context, string) {
	p.t.Helper()
	r, err := authv1.NewAuthServiceClient(p.conn).Login(p.t.Context(), &authv1.LoginRequest{Email: "root@example.com", Password: password})
	must(p.t, err)
	token := r.GetTokens().GetAccessToken()
	return metadata.AppendToOutgoingContext(p.t.Context(), "authorization", "Bearer "+token), token
}

func (p *process) get(path string) (int, string) {
	p.t.Helper()
	request, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+p.env["DEBUG_ADDR"]+path, http.NoBody)
	must(p.t, err)
	response, err := http.DefaultClient.Do(request)
	must(p.t, err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	must(p.t, err)
	return response.StatusCode, string(body)
}

// TestAPolicyChangeReachesTheStream: from the API to Auth's own stream, numbered and authentic, with old and new value (U3,
// U17). A clean stop leaves nothing claimed (BC-29), and the log tells no secret.
func TestAPolicyChangeReachesTheStream(t *testing.T) {
	t.Parallel()
	db, broker := testdb.New(t, testdb.Auth), testdb.Redis(t)
	p := start(t, db, broker)
	ctx, token := p.login()
	_, err := authv1.NewLoginPolicyServiceClient(p.conn).UpdateLoginPolicy(ctx, &authv1.UpdateLoginPolicyRequest{
		LoginPolicy: &authv1.LoginPolicy{MinPasswordLength: 16, Etag: "1"},
	})
	must(t, err)

	ring, err := envelope.ParseKeyring("k1:" + macSecret)
	must(t, err)
	var last envelope.Entry
	eventually(t, func() error {
		// Five of bootstrap, the login, the change.
		messages, err := broker.Client.XRange(t.Context(), envelope.StreamKey("auth"), "-", "+").Result()
		if err != nil || len(messages) != 7 {
			return fmt.Errorf("%d of 7 entries, %w", len(messages), err)
		}
		last, err = envelope.Parse(messages[6].Values)
		return err
	})
	event := &auditv1.AuditEvent{}
	must(t, proto.Unmarshal(last.Payload, event))
	change := event.GetChanges()[0]
	if ring.Verify(&last, envelope.ToAdmin) != nil || last.LedgerSeq != 7 || event.GetAuditId() != last.EventID.String() ||
		event.GetAction() != "auth.login_policy.updated" || event.GetActor().GetDisplayName().GetPlain() != "Operator" ||
		change.GetField() != "min_password_length" || change.GetOldValue().GetPlain() != "12" || change.GetNewValue().GetPlain() != "16" {
		t.Errorf("number %d: %v", last.LedgerSeq, event)
	}
	if keys := broker.Client.Keys(t.Context(), "*").Val(); len(keys) != 1 {
		t.Errorf("keys of the broker: %v", keys)
	}
	must(t, p.stop())
	var open int
	must(t, db.Super.QueryRow(t.Context(), `SELECT count(*) FROM audit_outbox WHERE status <> 'DELIVERED' OR claim_token IS NOT NULL`).Scan(&open))
	if open != 0 {
		t.Errorf("%d events are not settled after a clean stop", open)
	}
	for _, secret := range []string{macSecret, "sixteen bytes", token, password} {
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("the log holds a secret: %s", secret)
		}
	}
}

// TestOthersCheckTokensByTheKeyFile, offline; the private half is for the owner alone.
func TestOthersCheckTokensByTheKeyFile(t *testing.T) {
	t.Parallel()
	p := start(t, testdb.New(t, testdb.Auth), testdb.Redis(t))
	_, token := p.login()
	verifier, err := authn.NewVerifier(authn.VerifierConfig{Path: p.env["JWKS_FILE"]})
	must(t, err)
	who, err := verifier.Verify(token)
	if err != nil || who.DisplayName != "Operator" || !who.HasRole("admin") || !who.HasRole("operator") || who.SessionID == "" {
		t.Errorf("principal %v, error %v", who, err)
	}
	info, err := os.Stat(p.env["SIGNING_KEY_FILE"])
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the signing key has mode %v", info.Mode())
	}
}

// TestTheServiceWorksWithoutABroker: ready, and every call succeeds; the events wait without using up an attempt.
func TestTheServiceWorksWithoutABroker(t *testing.T) {
	t.Parallel()
	db, broker := testdb.New(t, testdb.Auth), testdb.Redis(t)
	p := start(t, db, broker)
	eventually(t, func() error {
		var waiting int
		err := db.Super.QueryRow(t.Context(), `SELECT count(*) FROM audit_outbox WHERE status <> 'DELIVERED'`).Scan(&waiting)
		if err == nil && waiting > 0 {
			err = fmt.Errorf("%d events wait", waiting)
		}
		return err
	})
	broker.Kill()
	for range 3 {
		p.login()
	}
	if code, body := p.get("/readyz"); code != http.StatusOK {
		t.Errorf("not ready without a broker: %s", body)
	}
	var waiting, attempts int
	must(t, db.Super.QueryRow(t.Context(), `
		SELECT count(*) FILTER (WHERE status IN ('PENDING', 'DEFERRED')), sum(attempts) FROM audit_outbox`).Scan(&waiting, &attempts))
	if waiting != 3 || attempts != 0 {
		t.Errorf("%d of 3 events wait, %d attempts were used", waiting, attempts)
	}
	if code, body := p.get("/metrics"); code != http.StatusOK || !strings.Contains(body, "outbox") {
		t.Errorf("metrics: %d", code)
	}
}

// TestBootstrapAsksForWhatItNeeds, by variable or flag, and works once.
func TestBootstrapAsksForWhatItNeeds(t *testing.T) {
	t.Parallel()
	env := environment(t, testdb.New(t, testdb.Auth), testdb.Redis(t))
	getenv := func(name string) string { return env[name] }
	delete(env, "BOOTSTRAP_EMAIL")
	delete(env, "BOOTSTRAP_PASSWORD")
	err := run(t.Context(), []string{"bootstrap"}, getenv, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "BOOTSTRAP_EMAIL") || !strings.Contains(err.Error(), "BOOTSTRAP_PASSWORD") {
		t.Errorf("without its variables: %v", err)
	}
	file := filepath.Join(t.TempDir(), "password")
	must(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	flags := []string{"bootstrap", "-email", "ada@example.com", "-display-name", "Ada", "-password-file", file}
	must(t, run(t.Context(), flags, getenv, io.Discard))
	if err := run(t.Context(), flags, getenv, io.Discard); err == nil || !strings.Contains(err.Error(), "ALREADY_BOOTSTRAPPED") {
		t.Errorf("the second time: %v", err)
	}
}

// TestBadArgumentsAreNamed.
func TestBadArgumentsAreNamed(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	for args, want := range map[string]string{
		"":                     "DATABASE_URL is required",
		"fly":                  "unknown command",
		"serve now":            "unknown command",
		"bootstrap -pass word": "usage: auth bootstrap",
		"healthcheck":          "", // nobody listens
	} {
		if err := run(t.Context(), strings.Fields(args), none, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("auth %s: %v", args, err)
		}
	}
}

// freeAddr is an address that nobody listened on a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// eventually asks until the answer is nil.
func eventually(t *testing.T, ask func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still: %v", err)
		case <-tick.C:
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
