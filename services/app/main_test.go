// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
)

const macSecret = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

// process is the service running inside the test.
type process struct {
	t        *testing.T
	env      map[string]string
	log      *buffer
	token    string
	projects appv1.ProjectServiceClient
	stop     func() error
}

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

// start runs the service against a database and a broker, and waits until it is ready.
func start(t *testing.T, db *testdb.DB, broker *testdb.RedisServer) *process {
	t.Helper()
	dir := t.TempDir()
	keys, err := authn.LoadOrCreateKey(filepath.Join(dir, "key.pem"))
	must(t, err)
	signer, err := authn.NewSigner(authn.SignerConfig{Keys: keys})
	must(t, err)
	must(t, signer.WriteJWKS(filepath.Join(dir, "jwks.json")))
	p := &process{t: t, log: &buffer{}, env: map[string]string{
		"DATABASE_URL": db.URL("app_service"), "REDIS_URL": "redis://" + broker.Addr(), "MAC_KEYS": "k1:" + macSecret,
		"JWKS_FILE": filepath.Join(dir, "jwks.json"), "PAGE_TOKEN_KEY": "a secret of sixteen bytes or more",
		"LISTEN_ADDR": freeAddr(t), "DEBUG_ADDR": freeAddr(t),
	}}
	p.token, _, err = signer.Sign(authn.Principal{UserID: uuid.NewString(), SessionID: uuid.NewString(), DisplayName: "Ada"})
	must(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, nil, p.getenv, p.log) }()
	conn, err := grpc.NewClient(p.env["LISTEN_ADDR"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	p.projects = appv1.NewProjectServiceClient(conn)
	p.stop = sync.OnceValue(func() error {
		_ = conn.Close()
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

func (p *process) getenv(name string) string { return p.env[name] }

func (p *process) create(slug string) {
	p.t.Helper()
	ctx := metadata.AppendToOutgoingContext(p.t.Context(), "authorization", "Bearer "+p.token)
	_, err := p.projects.CreateProject(ctx, &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: slug, DisplayName: slug}})
	must(p.t, err)
}

// get returns what the debug server answers.
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

// TestDelivery: what is committed reaches App's stream and no other, numbered and authentic, and a clean stop leaves
// nothing claimed (U17, BC-29).
func TestDelivery(t *testing.T) {
	t.Parallel()
	db, broker := testdb.New(t, testdb.App), testdb.Redis(t)
	p := start(t, db, broker)
	p.create("orion")
	p.create("vega")

	keys, err := envelope.ParseKeyring("k1:" + macSecret)
	must(t, err)
	var entries []envelope.Entry
	eventually(t, func() error {
		messages, err := broker.Client.XRange(t.Context(), envelope.StreamKey("app"), "-", "+").Result()
		if err != nil || len(messages) < 4 {
			return fmt.Errorf("%d of 4 entries, %w", len(messages), err)
		}
		entries = nil
		for _, m := range messages {
			e, err := envelope.Parse(m.Values)
			if err != nil {
				return err
			}
			entries = append(entries, e)
		}
		return nil
	})
	for i, e := range entries {
		if err := keys.Verify(&e, envelope.ToAdmin); err != nil || e.Owner != "app" || e.LedgerSeq != int64(i)+1 {
			t.Errorf("entry %d: owner %s, number %d, %v", i, e.Owner, e.LedgerSeq, err)
		}
	}
	if streams := broker.Client.Keys(t.Context(), "*").Val(); len(streams) != 1 {
		t.Errorf("keys of the broker: %v", streams)
	}
	must(t, p.stop())
	var open int
	must(t, db.Super.QueryRow(t.Context(), `SELECT count(*) FROM audit_outbox WHERE status <> 'DELIVERED' OR claim_token IS NOT NULL`).Scan(&open))
	if open != 0 {
		t.Errorf("%d events are not settled after a clean stop", open)
	}
	for _, secret := range []string{macSecret, "sixteen bytes", p.token, "counterfoil-test"} {
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("the log holds a secret: %s", secret)
		}
	}
}

// TestBrokerAway: without Redis calls succeed, the service stays ready and says what is wrong, and the events wait.
func TestBrokerAway(t *testing.T) {
	t.Parallel()
	db, broker := testdb.New(t, testdb.App), testdb.Redis(t)
	p := start(t, db, broker)
	broker.Kill()
	for i := range 10 {
		p.create(fmt.Sprintf("project-%d", i))
	}
	eventually(t, func() error {
		code, body := p.get("/readyz")
		var answer struct {
			Checks []struct{ Name, Status string }
		}
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			return err
		}
		if code != http.StatusOK {
			t.Fatalf("not ready without a broker: %s", body)
		}
		for _, c := range answer.Checks {
			if c.Name == "broker" && c.Status != "ok" {
				return nil
			}
		}
		return fmt.Errorf("the broker seems fine: %s", body)
	})
	eventually(t, func() error {
		var waiting, used int
		err := db.Super.QueryRow(t.Context(), `
			SELECT count(*) FILTER (WHERE status IN ('PENDING', 'DEFERRED')), sum(attempts) FROM audit_outbox`).Scan(&waiting, &used)
		if err != nil || waiting != 20 || used != 0 {
			return fmt.Errorf("%d of 20 events wait, %d attempts used, %w", waiting, used, err)
		}
		return nil
	})
	if code, body := p.get("/metrics"); code != http.StatusOK || !strings.Contains(body, "counterfoil_outbox_") {
		t.Errorf("metrics: %d", code)
	}
}

// TestConfiguration: everything that is wrong is said at once, without a secret.
func TestConfiguration(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"REDIS_URL": "redis://user:canary-1@[", "MAC_KEYS": "canary-2", "PAGE_TOKEN_KEY": "canary-3", "TIME_SCALE": "0", "JWKS_FILE": "x",
	}
	err := run(t.Context(), nil, func(name string) string { return env[name] }, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("without a database: %v", err)
	}
	env["DATABASE_URL"] = "postgres://localhost/app"
	err = run(t.Context(), nil, func(name string) string { return env[name] }, io.Discard)
	if err == nil {
		t.Fatal("started with a configuration that cannot work")
	}
	for _, name := range []string{"REDIS_URL", "MAC_KEYS", "PAGE_TOKEN_KEY", "TIME_SCALE"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("%v shows a secret", err)
	}
	if err := run(t.Context(), []string{"dance"}, func(string) string { return "" }, io.Discard); err == nil || !strings.Contains(err.Error(), "dance") {
		t.Errorf("unknown command: %v", err)
	}
	unused := map[string]string{"DEBUG_ADDR": freeAddr(t)}
	if err := run(t.Context(), []string{"healthcheck"}, func(name string) string { return unused[name] }, io.Discard); err == nil {
		t.Error("nothing runs, and the health check is content")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}

// freeAddr returns an address on loopback that nobody listened on a moment ago.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}
