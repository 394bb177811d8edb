// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// logs is a log that tests read.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(l, nil)) }

func TestErrorsAreMappedAndInternalOnesLoggedOnce(t *testing.T) {
	t.Parallel()
	const secretText = "pq: password is hunter2"
	answers := map[string]error{
		"plain":     errors.New(secretText),
		"not found": apperr.NotFound("USER_NOT_FOUND", "no such user").WithCause(errors.New(secretText)),
		"driver":    io.ErrNoProgress,
	}
	var log logs
	cfg := Config{Logger: log.logger(), Domain: "example.org", Translate: func(err error) error {
		if errors.Is(err, io.ErrNoProgress) {
			return apperr.Unavailable("DATABASE_UNAVAILABLE", "later", time.Second).WithCause(err)
		}
		return err
	}}
	answer := func(name string) error {
		if name == "panic" {
			panic(secretText)
		}
		return answers[name]
	}
	s := start(t, cfg, handlers{
		do: func(_ context.Context, name string) (string, error) { return name, answer(name) },
		stream: func(ss grpc.ServerStream) error {
			m := named("")
			if err := ss.RecvMsg(m); err != nil {
				return err
			}
			return answer(nameOf(m))
		},
	})
	calls := map[string]func(string) error{
		"unary": func(name string) error { _, err := s.do(t.Context(), name); return err },
		"stream": func(name string) error {
			ss := s.open(t, t.Context())
			if err := ss.SendMsg(named(name)); err != nil {
				return err
			}
			return ss.RecvMsg(named(""))
		},
	}
	for kind, call := range calls {
		for name, want := range map[string]struct {
			code   codes.Code
			reason string
			logged int
		}{
			"plain": {codes.Internal, "INTERNAL", 1}, "panic": {codes.Internal, "INTERNAL", 1},
			"not found": {codes.NotFound, "USER_NOT_FOUND", 0}, "driver": {codes.Unavailable, "DATABASE_UNAVAILABLE", 1},
			"":                       {codes.InvalidArgument, "INVALID_REQUEST", 0},
			strings.Repeat("x", 101): {codes.InvalidArgument, "INVALID_REQUEST", 0},
		} {
			before := strings.Count(log.String(), "\n")
			st := status.Convert(call(name))
			if st.Code() != want.code || strings.Contains(st.Proto().String(), "hunter2") {
				t.Errorf("%s %q: %v", kind, name, st.Proto())
			}
			var reasons []string
			var fields int
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					reasons = append(reasons, d.GetReason()+"@"+d.GetDomain())
				case *errdetails.BadRequest:
					fields = len(d.GetFieldViolations())
				}
			}
			if len(reasons) != 1 || reasons[0] != want.reason+"@example.org" || (fields == 1) != (want.code == codes.InvalidArgument) {
				t.Errorf("%s %q: reasons %v, %d fields", kind, name, reasons, fields)
			}
			if n := strings.Count(log.String(), "\n") - before; n != want.logged {
				t.Errorf("%s %q: %d log lines, want %d", kind, name, n, want.logged)
			}
		}
	}
	if !strings.Contains(log.String(), "hunter2") || !strings.Contains(log.String(), `"stack"`) {
		t.Errorf("cause or stack is not in the log: %s", log.String())
	}
	// What the embedded Unimplemented types of generated code answer keeps its code.
	if err := s.conn.Invoke(t.Context(), "/test.v1.Test/Nothing", named("x"), named("")); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

func TestStreamEndOfInputIsNoError(t *testing.T) {
	t.Parallel()
	s := start(t, Config{}, handlers{stream: func(ss grpc.ServerStream) error {
		for {
			m := named("")
			if err := ss.RecvMsg(m); err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
			if err := ss.SendMsg(m); err != nil {
				return err
			}
		}
	}})
	ss := s.open(t, t.Context())
	if err := ss.SendMsg(named("a")); err != nil {
		t.Fatal(err)
	}
	got := named("")
	if err := ss.RecvMsg(got); err != nil || nameOf(got) != "a" {
		t.Fatalf("%q, %v", nameOf(got), err)
	}
	if err := ss.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := ss.RecvMsg(got); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestAuthenticationComesBeforeValidation(t *testing.T) {
	t.Parallel()
	type key struct{}
	s := start(t, Config{
		Reflection: true,
		Authenticate: func(ctx context.Context, method string) (context.Context, error) {
			if method == streamMethod {
				return ctx, apperr.PermissionDenied("ROLE_REQUIRED", "no")
			}
			if RequestInfo(ctx).CorrelationID == "anonymous" {
				return ctx, apperr.Unauthenticated("TOKEN_MISSING", "no")
			}
			return context.WithValue(ctx, key{}, "alice"), nil
		},
		Enrich: func(ctx context.Context) context.Context {
			return context.WithValue(ctx, key{}, ctx.Value(key{}).(string)+" enriched")
		},
	}, handlers{
		do:     func(ctx context.Context, _ string) (string, error) { return ctx.Value(key{}).(string), nil },
		stream: func(grpc.ServerStream) error { t.Error("the handler ran"); return nil },
	})
	if got, err := s.do(t.Context(), "x"); err != nil || got != "alice enriched" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := s.do(withHeader(t.Context(), correlationHeader, "anonymous"), ""); status.Code(err) != codes.Unauthenticated {
		t.Errorf("an anonymous caller learns what is wrong with the request: %v", err)
	}
	if err := s.open(t, t.Context()).RecvMsg(named("")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("got %v", err)
	}
	if _, err := healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("health needs a token: %v", err)
	}
	rs, err := reflectionpb.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := rs.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	answer, err := rs.Recv()
	if err != nil || !strings.Contains(answer.String(), testService) {
		t.Errorf("reflection: %v, %v", answer, err)
	}
}

func TestNewRefusesAServerWithoutAuthentication(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{Addr: "127.0.0.1:0"}); err == nil {
		t.Error("accepted")
	}
	if _, err := New(Config{Addr: "127.0.0.1:nope", Authenticate: AllowAll}); err == nil {
		t.Error("listens nowhere")
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	left := func(ctx context.Context) (string, error) {
		d, ok := ctx.Deadline()
		if !ok {
			return "none", nil
		}
		return time.Until(d).Round(time.Minute).String(), nil
	}
	h := handlers{
		do: func(ctx context.Context, name string) (string, error) {
			if name == "wait" {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return left(ctx)
		},
		stream: func(ss grpc.ServerStream) error {
			text, _ := left(ss.Context())
			return ss.SendMsg(named(text))
		},
	}
	s := start(t, Config{Deadline: 10 * time.Minute}, h)
	if got, err := s.do(t.Context(), "x"); err != nil || got != "10m0s" {
		t.Errorf("default: %s, %v", got, err)
	}
	long, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if got, err := s.do(long, "x"); err != nil || got != "1h0m0s" {
		t.Errorf("the caller's own: %s, %v", got, err)
	}
	got := named("")
	if err := s.open(t, t.Context()).RecvMsg(got); err != nil || nameOf(got) != "none" {
		t.Errorf("stream: %s, %v", nameOf(got), err)
	}
	short := start(t, Config{Deadline: 30 * time.Millisecond, StreamDeadline: 2 * time.Hour}, h)
	if _, err := short.do(t.Context(), "wait"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	if err := short.open(t, t.Context()).RecvMsg(got); err != nil || nameOf(got) != "2h0m0s" {
		t.Errorf("stream with a default: %s, %v", nameOf(got), err)
	}
}

func TestMessageSizeIsBounded(t *testing.T) {
	t.Parallel()
	h := handlers{do: func(_ context.Context, name string) (string, error) { return strings.Repeat(name, 3000), nil }}
	s := start(t, Config{MaxRecvBytes: 2000, MaxSendBytes: 1000}, h)
	if _, err := s.do(t.Context(), strings.Repeat("é", 2000)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("large request: %v", err)
	}
	if _, err := s.do(t.Context(), "x"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("large answer: %v", err)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	s := start(t, Config{}, handlers{})
	client := healthpb.NewHealthClient(s.conn)
	check := func(service string) string {
		resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		if err != nil {
			return status.Code(err).String()
		}
		return resp.GetStatus().String()
	}
	if check("") != "SERVING" || check(testService) != "SERVING" || check("nobody") != "NotFound" {
		t.Errorf("got %s, %s, %s", check(""), check(testService), check("nobody"))
	}
	s.SetServing(testService, false)
	if check("") != "SERVING" || check(testService) != "NOT_SERVING" {
		t.Errorf("got %s, %s", check(""), check(testService))
	}
}

// BC-69: a stop answers unary calls in progress, says NOT_SERVING first, and ends streams that never end by themselves.
func TestStopIsOrderlyAndBounded(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 1), make(chan struct{})
	streaming := make(chan struct{}, 1)
	s := start(t, Config{Grace: 4 * time.Second}, handlers{
		do: func(context.Context, string) (string, error) {
			entered <- struct{}{}
			<-release
			return "answered", nil
		},
		stream: func(ss grpc.ServerStream) error {
			streaming <- struct{}{}
			<-ss.Context().Done()
			return ss.Context().Err()
		},
	})
	watch, err := healthpb.NewHealthClient(s.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("got %v, %v", first, err)
	}
	endless := s.open(t, t.Context())
	<-streaming
	type result struct {
		text string
		err  error
	}
	unary := make(chan result, 1)
	go func() {
		text, err := s.do(t.Context(), "x")
		unary <- result{text, err}
	}()
	<-entered
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	if next, err := watch.Recv(); err != nil || next.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health says %v, %v", next, err)
	}
	close(release)
	if got := <-unary; got.err != nil || got.text != "answered" {
		t.Errorf("the call in progress: %q, %v", got.text, got.err)
	}
	if err := endless.RecvMsg(named("")); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 3500*time.Millisecond {
		t.Errorf("the stop took %s of 4 s", took)
	}
}

func TestStopDoesNotWaitForHandlersThatIgnoreIt(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	s := start(t, Config{Grace: 200 * time.Millisecond}, handlers{do: func(context.Context, string) (string, error) {
		entered <- struct{}{}
		<-release // not even the context is looked at
		return "", nil
	}})
	go s.do(t.Context(), "x") //nolint:errcheck // its connection is cut
	<-entered
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- s.stop() }()
	select {
	case err := <-done:
		if err != nil || time.Since(began) < 200*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the stop waits for a handler")
	}
}

func TestDrainingLetsAStreamEndByItself(t *testing.T) {
	t.Parallel()
	ready := make(chan struct{}, 1)
	s := start(t, Config{Grace: time.Minute}, handlers{stream: func(ss grpc.ServerStream) error {
		ready <- struct{}{}
		select {
		case <-Draining(ss.Context()):
			return nil
		case <-ss.Context().Done():
			return ss.Context().Err()
		}
	}})
	ss := s.open(t, t.Context())
	<-ready
	began := time.Now()
	if err := s.stop(); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if err := ss.RecvMsg(named("")); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	if Draining(context.Background()) != nil {
		t.Error("a context outside a call drains")
	}
}

func TestRunReportsAListenerThatBreaks(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Listener: listener, Authenticate: AllowAll})
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("no error")
	}
}

// BC-70: a client that pings within the documented bound keeps its connection; one that pings more often does not.
func TestKeepalivePolicy(t *testing.T) {
	t.Parallel()
	h := handlers{do: func(context.Context, string) (string, error) { return "x", nil }}
	s := start(t, Config{KeepaliveMinTime: 200 * time.Millisecond}, h)
	// grpc-go clients do not ping more often than every 10 s, so the policy itself is looked at: idle pings are allowed.
	conn := dial(t, s.Addr(), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}))
	if err := conn.Invoke(t.Context(), doMethod, named("x"), named("")); err != nil {
		t.Fatal(err)
	}
	if !pingsAccepted(t, s.Addr(), 6, 400*time.Millisecond) {
		t.Error("a client within the bound was sent away")
	}
	if pingsAccepted(t, s.Addr(), 20, 10*time.Millisecond) {
		t.Error("a client that pings all the time was not sent away")
	}
}

func TestHealthChecksMakeNoSpans(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	s := start(t, Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))}, handlers{
		do: func(context.Context, string) (string, error) { return "x", nil },
	})
	for range 5 {
		if _, err := healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.do(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if ended := spans.Ended(); len(ended) != 1 || ended[0].Name() != "test.v1.Test/Do" {
		t.Errorf("%d spans: %v", len(ended), ended)
	}
}
