// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
)

// settingsOf returns a getenv over the given variables.
func settingsOf(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func macKey(id string) string {
	secret := make([]byte, 32)
	copy(secret, id)
	return id + ":" + hex.EncodeToString(secret)
}

func goodSettings() map[string]string {
	return map[string]string{
		"DATABASE_URL": "postgres://admin_service:hunter2@127.0.0.1:1/admin", "REDIS_URL": "redis://:hunter2@127.0.0.1:1/0",
		"MAC_KEYS_AUTH": macKey("auth-1"), "MAC_KEYS_APP": macKey("app-1"), "JWKS_FILE": "jwks.json",
		"PAGE_TOKEN_KEY": "hunter2-hunter2-hunter2",
	}
}

func TestSettingsNameEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := load(nil, settingsOf(nil))
	for _, name := range []string{"DATABASE_URL", "REDIS_URL", "MAC_KEYS_AUTH", "MAC_KEYS_APP", "JWKS_FILE", "PAGE_TOKEN_KEY"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is missing and not named: %v", name, err)
		}
	}
	bad := goodSettings()
	maps.Copy(bad, map[string]string{
		"REDIS_URL": "http://:hunter2@x", "MAC_KEYS_AUTH": "auth-1:hunter2", "PAGE_TOKEN_KEY": "hunter2", "INBOX_RETENTION": "1m", "TIME_SCALE": "0.5",
	})
	_, err = load([]string{"serve"}, settingsOf(bad))
	for _, name := range []string{"REDIS_URL", "MAC_KEYS_AUTH", "PAGE_TOKEN_KEY", "INBOX_RETENTION", "TIME_SCALE"} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is bad and not named: %v", name, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret is shown: %v", err)
	}
}

func TestSettingsDefaults(t *testing.T) {
	t.Parallel()
	s, err := load(nil, settingsOf(goodSettings()))
	if err != nil {
		t.Fatal(err)
	}
	if s.command != "serve" || s.ListenAddr != "127.0.0.1:7003" || s.InboxRetention != 7*24*time.Hour || s.TimeScale != 1 ||
		!strings.HasSuffix(s.Instance, "/127.0.0.1:7003") || s.keys["auth"] == nil || s.keys["app"] == nil {
		t.Errorf("settings: %+v", s)
	}
	if _, err := load([]string{"frobnicate"}, settingsOf(goodSettings())); err == nil || !strings.Contains(err.Error(), "frobnicate") {
		t.Errorf("an unknown command: %v", err)
	}
}

// log collects what the service writes.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// service is a running Admin.
type running struct {
	db     *testdb.DB
	redis  *testdb.RedisServer
	logs   *log
	debug  string
	env    map[string]string
	client adminv1.AuditLogServiceClient
	ctx    context.Context // carries an auditor's token
	stop   func() error
}

func start(t *testing.T) running {
	t.Helper()
	r := running{db: testdb.New(t, testdb.Admin), redis: testdb.Redis(t), logs: &log{}, debug: freeAddr(t)}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := authn.NewSigner(authn.SignerConfig{Keys: []authn.Key{{ID: "k1", Private: private}}})
	if err != nil {
		t.Fatal(err)
	}
	r.env = goodSettings()
	r.env["DATABASE_URL"], r.env["REDIS_URL"] = r.db.URL("admin_service"), "redis://"+r.redis.Addr()
	r.env["JWKS_FILE"] = filepath.Join(t.TempDir(), "jwks.json")
	r.env["LISTEN_ADDR"], r.env["DEBUG_ADDR"], r.env["TIME_SCALE"] = freeAddr(t), r.debug, "10"
	if err := signer.WriteJWKS(r.env["JWKS_FILE"]); err != nil {
		t.Fatal(err)
	}
	token, _, err := signer.Sign(authn.Principal{UserID: uuid.NewString(), Roles: []string{"auditor"}})
	if err != nil {
		t.Fatal(err)
	}
	r.ctx = metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	conn, err := grpc.NewClient(r.env["LISTEN_ADDR"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.client = adminv1.NewAuditLogServiceClient(conn)

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, nil, settingsOf(r.env), r.logs) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() {
		_ = conn.Close()
		if err := r.stop(); err != nil {
			t.Errorf("the service ended with %v", err)
		}
		if t.Failed() {
			t.Log(r.logs)
		}
	})
	eventually(t, func() error { return run(t.Context(), []string{"healthcheck"}, settingsOf(r.env), io.Discard) })
	return r
}

func freeAddr(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// eventually waits until check returns nil.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in 30 s: %v", err)
		}
	}
}

// publish adds an authentic event of owner to its stream and returns its id.
func (r running) publish(t *testing.T, owner, action string, ledger uuid.UUID, number int64) string {
	t.Helper()
	e := inboxtest.NewEvent(t, owner, action)
	entry := inboxtest.Sealed(t, inboxtest.NewKeys(t, owner+"-1"), e, ledger, number)
	err := r.redis.Client.XAdd(t.Context(), &redis.XAddArgs{Stream: envelope.StreamKey(owner), Values: entry.Fields()}).Err()
	if err != nil {
		t.Fatal(err)
	}
	return e.GetAuditId()
}

func (r running) recorded(id string) error {
	trace, err := r.client.TraceEvent(r.ctx, &adminv1.TraceEventRequest{EventId: id})
	if err != nil {
		return err
	}
	if trace.GetAuditLog() == nil {
		return fmt.Errorf("%s is not recorded: %v", id, trace)
	}
	return nil
}

// ready returns the status of each readiness check, and whether the service is ready.
func (r running) ready(t *testing.T) (bool, map[string]string) {
	t.Helper()
	var answer struct {
		Ready  bool `json:"ready"`
		Checks []struct{ Name, Status string }
	}
	if err := json.Unmarshal(r.get(t, "/readyz"), &answer); err != nil {
		t.Fatal(err)
	}
	checks := map[string]string{}
	for _, c := range answer.Checks {
		checks[c.Name] = c.Status
	}
	return answer.Ready, checks
}

func (r running) get(t *testing.T, path string) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.debug+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// The whole service: events of both owners come in by the broker and are served; a forged one changes nothing; without
// the broker the log can still be read, and readiness says what is missing; the metrics are there; it stops cleanly.
func TestServe(t *testing.T) {
	t.Parallel()
	r := start(t)
	authLedger, appLedger := uuid.New(), uuid.New()
	ids := []string{
		r.publish(t, "auth", "user.created", authLedger, 1), r.publish(t, "app", "project.created", appLedger, 1),
		r.publish(t, "auth", "user.updated", authLedger, 2),
	}
	for _, id := range ids {
		eventually(t, func() error { return r.recorded(id) })
	}
	eventually(t, func() error {
		if ready, checks := r.ready(t); !ready || checks["broker"] != "ok" || checks["flow"] != "ok" {
			return fmt.Errorf("ready=%v %v", ready, checks)
		}
		return nil
	})
	metrics := string(r.get(t, "/metrics"))
	for _, name := range []string{
		"inbox_stream_lag", "inbox_dead", "inbox_oldest_lease_age", "inbox_oldest_retry_age", "inbox_oldest_pending_age",
	} {
		if !strings.Contains(metrics, name) {
			t.Errorf("no metric %s", name)
		}
	}

	recorded := regexp.MustCompile(`(?m)^inbox_event_age_seconds_count\{[^}]*consumer="audit-log"[^}]*owner="auth"[^}]*\} 2$`)
	if !recorded.MatchString(metrics) {
		t.Error("no metric says how old the events of auth were when they were recorded (U73)")
	}

	// A dead entry degrades the service, though the stream is read to its end (U88, U89).
	_, err := r.db.Super.Exec(t.Context(), `UPDATE consumer_inbox SET state = 'DEAD', dead_at = clock_timestamp(),
		last_error_code = 'test.dead' WHERE consumer = 'audit-log' AND event_id = $1`, ids[0])
	if err != nil {
		t.Fatal(err)
	}
	dead := regexp.MustCompile(`(?m)^inbox_dead[a-z_]*\{[^}]*consumer="audit-log"[^}]*\} 1$`)
	eventually(t, func() error {
		ready, checks := r.ready(t)
		if metrics := r.get(t, "/metrics"); !ready || checks["flow"] == "ok" || !dead.Match(metrics) {
			return fmt.Errorf("ready=%v %v", ready, checks)
		}
		return nil
	})

	r.redis.Kill()
	eventually(t, func() error {
		if ready, checks := r.ready(t); !ready || checks["broker"] == "ok" {
			return fmt.Errorf("ready=%v %v", ready, checks)
		}
		return nil
	})
	if err := r.recorded(ids[0]); err != nil {
		t.Errorf("without the broker: %v", err)
	}
	page, err := r.client.ListAuditLogs(r.ctx, &adminv1.ListAuditLogsRequest{Filter: `owner != "admin"`})
	if err != nil || len(page.GetAuditLogs()) != len(ids) {
		t.Errorf("without the broker: %d records, %v", len(page.GetAuditLogs()), err)
	}
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if strings.Contains(r.logs.String(), macKey("auth-1")[len("auth-1:"):]) || strings.Contains(r.logs.String(), "hunter2") {
		t.Error("a secret is in the log")
	}
}

// BC-44: a broker that may drop streams is named, in readiness, metrics and log, while nothing is lost yet; the log can still
// be read, so the service stays ready.
func TestABrokerThatEvictsIsNamed(t *testing.T) {
	t.Parallel()
	r := start(t)
	shows := func(policy, status, metric string) {
		t.Helper()
		if err := r.redis.Client.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
		value := regexp.MustCompile(`(?m)^broker_evicts(\{.*\})? ` + metric + `$`)
		eventually(t, func() error {
			ready, checks := r.ready(t)
			if !ready || checks["eviction"] != status || !value.Match(r.get(t, "/metrics")) {
				return fmt.Errorf("%s: ready=%v %v", policy, ready, checks)
			}
			return nil
		})
	}
	shows("noeviction", "ok", "0")
	for _, policy := range []string{"allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-ttl"} {
		shows(policy, "failed", "1")
		if !strings.Contains(r.logs.String(), policy) {
			t.Errorf("%s is not in the log", policy)
		}
		shows("noeviction", "ok", "0")
	}
	if err := r.redis.Client.Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		ready, checks := r.ready(t)
		if metrics := string(r.get(t, "/metrics")); !ready || checks["eviction"] != "failed" || strings.Contains(metrics, "\nbroker_evicts") {
			return fmt.Errorf("a policy that cannot be read: ready=%v %v", ready, checks)
		}
		return nil
	})
}

// Without its database the service is not ready, says so by its exit code, and is alive.
func TestHealthcheckFailsWithoutDatabase(t *testing.T) {
	t.Parallel()
	env := goodSettings()
	env["LISTEN_ADDR"], env["DEBUG_ADDR"] = "127.0.0.1:0", freeAddr(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"serve"}, settingsOf(env), io.Discard) }()
	eventually(t, func() error {
		err := run(t.Context(), []string{"healthcheck"}, settingsOf(env), io.Discard)
		if err == nil {
			t.Fatal("the healthcheck of a service without database succeeds")
		}
		if !strings.Contains(err.Error(), "database") {
			return err
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("the service ended with %v", err)
	}
}
