// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// TestPlaintextIsRefused: no password and no token leaves for another computer in the clear, unless that is asked for.
func TestPlaintextIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, address := range []string{"192.0.2.1:7001", "auth.example.com:7001", "[2001:db8::1]:7001", "localhost.example.com:1"} {
		o := w.runWith(strings.NewReader("correct horse"), "login", "ada@example.com", "--auth", address)
		if o.code != exitUsage || !strings.Contains(o.err, "refused to send passwords and tokens in the clear to "+address) || !strings.Contains(o.err, "--tls") {
			t.Errorf("%s: exit code %d: %s", address, o.code, o.err)
		}
	}
	if o := w.run("audit", "list", "--admin", "admin.example.com:443"); o.code != exitUsage || !strings.Contains(o.err, "in the clear") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	if o := w.run("audit", "list", "--admin", "nowhere"); o.code != exitUsage || !strings.Contains(o.err, "HOST:PORT") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	for host, want := range map[string]bool{"localhost": true, "LOCALHOST": true, "127.0.0.9": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": false, "": false} {
		if got := loopback(host); got != want {
			t.Errorf("loopback(%q) = %v", host, got)
		}
	}
	// With --insecure the refusal is gone; the address of documentation (RFC 5737) answers nobody.
	o := w.run("audit", "list", "--admin", "192.0.2.1:7003", "--insecure", "--timeout", "50ms")
	if o.code != exitUnavailable {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
}

// certificate makes one for 127.0.0.1 that signs itself, and the file that trusts it.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// TestTLS: the certificate is checked, and what was trusted at login is trusted after it.
func TestTLS(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cert, caFile := certificate(t)
	w.serve(serviceAuth, w.fakeServer(serviceAuth, withTLS(cert)))
	w.says("AuthService/Login", &authv1.LoginResponse{Tokens: tokens("fresh"), User: ada(), Session: session()})
	w.says("AuthService/GetSelf", &authv1.GetSelfResponse{User: ada(), Session: session()})
	login := func(args ...string) outcome {
		return w.runWith(strings.NewReader("correct horse"), append([]string{"login", "ada@example.com"}, args...)...)
	}
	if o := login("--tls"); o.code != exitUnavailable || !strings.Contains(o.err, "--ca-file FILE") {
		t.Errorf("an unknown authority: exit code %d: %s", o.code, o.err)
	}
	if o := login("--ca-file", "/does/not/exist"); o.code != exitUsage {
		t.Errorf("no such file: exit code %d: %s", o.code, o.err)
	}
	if len(w.calls) != 0 {
		t.Fatal("the password was sent to somebody who is not trusted")
	}
	if o := login("--ca-file", caFile); o.code != exitOK {
		t.Fatalf("exit code %d: %s", o.code, o.err)
	}
	w.must("whoami")
	if o := w.run("whoami", "--no-tls"); o.code != exitUnavailable {
		t.Errorf("--no-tls: exit code %d: %s", o.code, o.err)
	}
	w.env["COUNTERFOIL_TLS"] = "perhaps"
	if o := w.run("whoami"); o.code != exitUsage || !strings.Contains(o.err, "neither true nor false") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
}

// TestRetries: a call that was not answered is made again under the same request id; one that would count twice is not.
func TestRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tries := 0
	w.on("UserService/UnlockUser", func(received) ([]proto.Message, error) {
		if tries++; tries < 3 {
			return nil, refusal(codes.Unavailable, "DATABASE_UNAVAILABLE", "try again")
		}
		return []proto.Message{&authv1.UnlockUserResponse{User: ada()}}, nil
	})
	w.must("user", "unlock", userID, "--correlation-id", "incident-7")
	calls := w.asked("UserService/UnlockUser")
	if len(calls) != 3 {
		t.Fatalf("%d calls", len(calls))
	}
	first := calls[0].request.(*authv1.UnlockUserRequest).GetRequestId()
	for _, c := range calls {
		if id := c.request.(*authv1.UnlockUserRequest).GetRequestId(); id != first || id == "" {
			t.Errorf("request ids %q and %q", first, id)
		}
		if got := c.metadata.Get("x-correlation-id"); len(got) != 1 || got[0] != "incident-7" {
			t.Errorf("correlation id %q", got)
		}
		if got := c.metadata.Get("authorization"); len(got) != 1 || got[0] != "Bearer access-1" {
			t.Errorf("authorization %q", got)
		}
	}

	unavailable := refusal(codes.Unavailable, "SERVER_STOPPING", "stopping")
	w.fails("PoisonService/ReplayPoison", unavailable)
	w.fails("InboxService/ReplayInboxEntries", unavailable)
	w.fails("AuditLogService/ExportAuditLogs", unavailable)
	w.fails("AuthService/Login", unavailable)
	for method, args := range map[string][]string{
		"PoisonService/ReplayPoison":      {"poison", "replay", poison1, "--reason", "x"},
		"InboxService/ReplayInboxEntries": {"inbox", "replay", "--consumer", "audit-log", eventID, "--reason", "x"},
		"AuditLogService/ExportAuditLogs": {"audit", "export"},
		"AuthService/Login":               {"login", "ada@example.com"},
	} {
		if o := w.runWith(strings.NewReader("correct horse"), args...); o.code != exitUnavailable || len(w.asked(method)) != 1 {
			t.Errorf("%s: exit code %d, called %d times", method, o.code, len(w.asked(method)))
		}
	}
}

// TestPages: a list goes on over short and empty pages until its end or the limit.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pages := map[string]*adminv1.ListAuditLogsResponse{
		"":  {AuditLogs: []*adminv1.AuditLog{record(granted())}, NextPageToken: "a"},
		"a": {NextPageToken: "b"},
		"b": {AuditLogs: []*adminv1.AuditLog{record(denied()), record(granted())}, NextPageToken: "c"},
		"c": {AuditLogs: []*adminv1.AuditLog{record(denied())}},
	}
	w.on("AuditLogService/ListAuditLogs", func(c received) ([]proto.Message, error) {
		return []proto.Message{pages[c.request.(*adminv1.ListAuditLogsRequest).GetPageToken()]}, nil
	})
	o := w.run("audit", "list", "--all", "-o", "json")
	if n := strings.Count(o.out, "\n"); n != 4 || o.err != "" {
		t.Errorf("--all gave %d lines: %s", n, o.err)
	}
	o = w.run("audit", "list", "--limit", "3", "-o", "json")
	if n := strings.Count(o.out, "\n"); n != 3 || !strings.Contains(o.err, "there may be more records") {
		t.Errorf("--limit 3 gave %d lines: %s", n, o.err)
	}
	sizes := []int32{}
	for _, c := range w.asked("AuditLogService/ListAuditLogs") {
		sizes = append(sizes, c.request.(*adminv1.ListAuditLogsRequest).GetPageSize())
	}
	if want := []int32{1000, 1000, 1000, 1000, 3, 2, 2}; len(sizes) != len(want) || sizes[4] != 3 || sizes[6] != 2 {
		t.Errorf("page sizes %v, want %v", sizes, want)
	}
	o = w.run("audit", "list", "--all")
	if n := strings.Count(o.out, "WHEN (UTC)"); n != 1 || strings.Count(o.out, "\n") != 5 {
		t.Errorf("one header and four rows, not:\n%s", o.out)
	}
	w.says("AuditLogService/ListAuditLogs", &adminv1.ListAuditLogsResponse{})
	if o := w.run("audit", "list"); o.code != exitOK || o.out != "" || o.err != "no records\n" {
		t.Errorf("exit code %d: %q %q", o.code, o.out, o.err)
	}
	if o := w.run("audit", "list", "--limit", "0"); o.code != exitUsage {
		t.Errorf("exit code %d", o.code)
	}
}
