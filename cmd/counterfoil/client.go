// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// The services that this program talks to.
const (
	serviceAuth  = "auth"
	serviceApp   = "app"
	serviceAdmin = "admin"
)

// maxMessage is the largest answer taken, in bytes: as much as the services send.
const maxMessage = 16 << 20

// retries repeats calls that were not answered: those that read, and those whose request id keeps them from taking effect
// twice. The calls of the second entry are neither, so they are sent once: refreshing twice ends the session.
const retries = `{"methodConfig": [
  {"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}},
  {"name": [
    {"service": "counterfoil.auth.v1.AuthService", "method": "Login"},
    {"service": "counterfoil.auth.v1.AuthService", "method": "Refresh"},
    {"service": "counterfoil.admin.v1.AuditLogService", "method": "ExportAuditLogs"},
    {"service": "counterfoil.admin.v1.InboxService", "method": "RequeueInboxEntries"},
    {"service": "counterfoil.admin.v1.InboxService", "method": "ReplayInboxEntries"},
    {"service": "counterfoil.admin.v1.PoisonService", "method": "ReplayPoison"},
    {"service": "counterfoil.admin.v1.PoisonService", "method": "DiscardPoison"}]}]}`

func defaultAddress(service string) string {
	return map[string]string{serviceAuth: "127.0.0.1:7001", serviceApp: "127.0.0.1:7002", serviceAdmin: "127.0.0.1:7003"}[service]
}

// address is where a service is: as the flag says, or the environment, or the login, or the default.
func (a *app) address(service string) string {
	var kept loginFile
	if login, err := a.saved(); err == nil && login != nil { // an error is told where the login is needed
		kept = *login
	}
	flag := map[string]string{serviceAuth: a.Auth, serviceApp: a.App, serviceAdmin: a.Admin}[service]
	saved := map[string]string{serviceAuth: kept.Auth, serviceApp: kept.App, serviceAdmin: kept.Admin}[service]
	return or(or(or(flag, a.getenv("COUNTERFOIL_"+strings.ToUpper(service))), saved), defaultAddress(service))
}

// security says whether to speak TLS, and which certificates to trust ("" = the system's).
func (a *app) security() (speak bool, caFile string, err error) {
	if login, err := a.saved(); err == nil && login != nil {
		speak, caFile = login.TLS, login.CAFile
	}
	if text := a.getenv("COUNTERFOIL_TLS"); text != "" {
		if speak, err = strconv.ParseBool(text); err != nil {
			return false, "", usage("$COUNTERFOIL_TLS: %q is neither true nor false", text)
		}
	}
	if file := or(a.CAFile, a.getenv("COUNTERFOIL_CA_FILE")); file != "" {
		speak, caFile = true, file
	}
	if a.TLS != nil {
		speak = *a.TLS
	}
	return speak, caFile, nil
}

// remote is one service. It connects at the first call, adds the token to each, and replaces a token that is used up. It is
// a grpc.ClientConnInterface. Only trace uses several at once, each from one goroutine, after dialling them.
type remote struct {
	app     *app
	service string
	address string
	tls     bool
	cc      *grpc.ClientConn
}

// conn returns a service. Nothing is dialled yet, so there is no error yet.
func (a *app) conn(service string) *remote {
	if r, ok := a.remotes[service]; ok {
		return r
	}
	r := &remote{app: a, service: service, address: a.address(service)}
	a.remotes[service] = r
	return r
}

func (a *app) close() {
	for _, r := range a.remotes {
		if r.cc != nil {
			r.cc.Close()
		}
	}
}

// Invoke implements grpc.ClientConnInterface.
func (r *remote) Invoke(ctx context.Context, method string, request, answer any, options ...grpc.CallOption) error {
	return r.call(ctx, method, request, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, r.app.Timeout)
		defer cancel()
		return r.cc.Invoke(ctx, method, request, answer, options...)
	})
}

// NewStream implements grpc.ClientConnInterface. A token that turns out to be used up is met at the first Recv, by the
// caller.
func (r *remote) NewStream(ctx context.Context, d *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	var stream grpc.ClientStream
	err := r.call(ctx, method, nil, func(ctx context.Context) (err error) {
		stream, err = r.cc.NewStream(ctx, d, method, options...)
		return err
	})
	return stream, err
}

// call connects, and calls with a token unless the method hands one out.
func (r *remote) call(ctx context.Context, method string, request any, invoke func(context.Context) error) error {
	if err := r.dial(); err != nil {
		return err
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "x-correlation-id", r.app.correlation())
	if method == authv1.AuthService_Login_FullMethodName || method == authv1.AuthService_Refresh_FullMethodName {
		return r.wrap(method, request, invoke(ctx))
	}
	token, err := r.app.token(ctx, "")
	if err != nil {
		return err
	}
	err = invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token))
	if usedUp(err) {
		fresh, refreshErr := r.app.token(ctx, token)
		if refreshErr != nil {
			return refreshErr
		}
		err = invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+fresh))
	}
	return r.wrap(method, request, err)
}

// usedUp tells whether a service refused a token that a refresh replaces by a good one.
func usedUp(err error) bool {
	reason := reasonOf(err)
	return reason == "TOKEN_EXPIRED" || reason == "ROLES_CHANGED"
}

// wrap says which call an error is about.
func (r *remote) wrap(method string, request any, err error) error {
	if err == nil {
		return nil
	}
	failed := &callError{service: r.service, address: r.address, method: method, tls: r.tls, err: err}
	if repeatable, ok := request.(interface{ GetRequestId() string }); ok {
		failed.requestID = repeatable.GetRequestId()
	}
	return failed
}

// dial prepares the connection. It refuses to carry secrets in the clear over a network.
func (r *remote) dial() error {
	if r.cc != nil {
		return nil
	}
	speakTLS, caFile, err := r.app.security()
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(r.address)
	if err != nil {
		return usage("%q is not the address of %s: give HOST:PORT", r.address, r.service)
	}
	transport := insecure.NewCredentials()
	if speakTLS {
		pool, err := trusted(caFile)
		if err != nil {
			return err
		}
		transport = credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})
	} else if !loopback(host) && !r.app.Insecure {
		return &failure{
			code: exitUsage, text: "refused to send passwords and tokens in the clear to " + r.address,
			hint: "add --tls (and --ca-file FILE for a private authority); --insecure if the network is yours alone",
		}
	}
	cc, err := grpc.NewClient("dns:///"+r.address,
		grpc.WithTransportCredentials(transport),
		grpc.WithUserAgent("counterfoil/"+buildVersion()),
		grpc.WithDefaultServiceConfig(retries),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	)
	if err != nil {
		return usage("connect to %s at %q: %v", r.service, r.address, err)
	}
	r.cc, r.tls = cc, speakTLS
	return nil
}

// trusted reads the certificates to trust; nil means the system's.
func trusted(caFile string) (*x509.CertPool, error) {
	if caFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(caFile)
	if err != nil {
		return nil, usage("--ca-file: %v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, usage("--ca-file: %s holds no certificate in PEM", caFile)
	}
	return pool, nil
}

// loopback tells whether what is sent to host stays on this computer. A name other than localhost might not.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// correlation is the id that groups this command's calls.
func (a *app) correlation() string {
	if a.CorrelationID == "" {
		a.CorrelationID = or(a.getenv("COUNTERFOIL_CORRELATION_ID"), a.newID())
	}
	return a.CorrelationID
}

// buildVersion is the version that this program was built as, or the commit, or "devel".
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
