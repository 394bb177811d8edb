// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The ids that the tests speak of.
const (
	eventID   = "01980000-0000-7000-8000-0000000000e1"
	eventID2  = "01980000-0000-7000-8000-0000000000e2"
	userID    = "01980000-0000-7000-8000-0000000000a1"
	userID2   = "01980000-0000-7000-8000-0000000000a2"
	sessionID = "01980000-0000-7000-8000-0000000000b1"
	projectID = "01980000-0000-7000-8000-0000000000c1"
	memberID  = "01980000-0000-7000-8000-0000000000d1"
	poison1   = "01980000-0000-7000-8000-0000000000f1"
	poison2   = "01980000-0000-7000-8000-0000000000f2"
	ledgerID  = "01980000-0000-7000-8000-000000000099"
)

// at is a moment of the tests' day.
func at(hour, minute int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 11, 30, hour, minute, 0, 0, time.UTC))
}

// received is a call that a fake service got.
type received struct {
	service, method string
	request         proto.Message
	metadata        metadata.MD
}

// answer is what a fake service says to a call.
type answer func(received) ([]proto.Message, error)

// world is three services that say what the test wants, and a login at them. Every request is checked against the contract
// as the true services do.
type world struct {
	t         *testing.T
	mu        sync.Mutex
	calls     []received
	answers   map[string]answer // by method, without its package: "UserService/GetUser"
	addresses map[string]string
	env       map[string]string
	config    string
}

// fakeServer makes a gRPC server that answers every method that any of the contracts has.
func (w *world) fakeServer(service string, options ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(options, grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		return w.handle(service, stream)
	}))...)
}

// serve starts a fake service on a free port.
func (w *world) serve(service string, server *grpc.Server) string {
	w.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	go func() {
		if err := server.Serve(listener); err != nil {
			w.t.Errorf("serve: %v", err)
		}
	}()
	w.t.Cleanup(server.Stop)
	w.addresses[service] = listener.Addr().String()
	w.env["COUNTERFOIL_"+strings.ToUpper(service)] = listener.Addr().String()
	return listener.Addr().String()
}

// newWorld starts the services and logs Ada in.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, answers: make(map[string]answer), addresses: make(map[string]string), env: make(map[string]string),
		config: filepath.Join(t.TempDir(), "conf", "login.json"),
	}
	w.env["COUNTERFOIL_CONFIG"] = w.config
	for _, service := range []string{serviceAuth, serviceApp, serviceAdmin} {
		w.serve(service, w.fakeServer(service))
	}
	w.logIn("access-1", time.Now().Add(10*time.Minute))
	return w
}

// logIn writes the login as an earlier `login` did.
func (w *world) logIn(token string, expires time.Time) {
	w.t.Helper()
	text, err := json.Marshal(loginFile{
		Auth: w.addresses[serviceAuth], App: w.addresses[serviceApp], Admin: w.addresses[serviceAdmin],
		User: "users/" + userID, Email: "ada@example.com", AccessToken: token, AccessExpires: expires,
		RefreshToken: strings.Repeat("r", 43), RefreshExpires: time.Now().Add(24 * time.Hour),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(w.config), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.config, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) handle(service string, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	name := strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", ".")
	descriptor, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return status.Errorf(codes.Unimplemented, "%s is not in the contract", full)
	}
	method := descriptor.(protoreflect.MethodDescriptor)
	kind, err := protoregistry.GlobalTypes.FindMessageByName(method.Input().FullName())
	if err != nil {
		return err
	}
	request := kind.New().Interface()
	if err := stream.RecvMsg(request); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	call := received{service: service, method: string(method.Parent().Name()) + "/" + string(method.Name()), request: request, metadata: md}
	w.mu.Lock()
	w.calls = append(w.calls, call)
	respond := w.answers[service+":"+call.method]
	if respond == nil {
		respond = w.answers[call.method]
	}
	w.mu.Unlock()
	if err := protovalidate.Validate(request); err != nil {
		w.t.Errorf("%s: the request breaks the contract: %v", call.method, err)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if respond == nil {
		return status.Errorf(codes.Unimplemented, "the test has no answer for %s", call.method)
	}
	messages, err := respond(call)
	for _, m := range messages {
		if err := stream.SendMsg(m); err != nil {
			return err
		}
	}
	return err
}

// says makes the services answer a method with messages: one, or a stream's. The method may name the service that is asked:
// "app:OutboxService/GetOutboxStatus".
func (w *world) says(method string, messages ...proto.Message) {
	w.on(method, func(received) ([]proto.Message, error) { return messages, nil })
}

// fails makes the services refuse a method.
func (w *world) fails(method string, err error) {
	w.on(method, func(received) ([]proto.Message, error) { return nil, err })
}

func (w *world) on(method string, respond answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers[method] = respond
}

// asked returns the requests that a method got.
func (w *world) asked(method string) []received {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []received
	for _, c := range w.calls {
		if c.method == method {
			found = append(found, c)
		}
	}
	return found
}

// only returns the one request that a method got.
func only[T proto.Message](w *world, method string) T {
	w.t.Helper()
	calls := w.asked(method)
	if len(calls) != 1 {
		w.t.Fatalf("%s was called %d times, want once", method, len(calls))
	}
	return calls[0].request.(T)
}

// outcome is what a command did.
type outcome struct {
	code     int
	out, err string
}

// run runs a command without anything on its input.
func (w *world) run(args ...string) outcome {
	w.t.Helper()
	return w.runWith(strings.NewReader(""), args...)
}

// runWith runs a command with an input.
func (w *world) runWith(stdin io.Reader, args ...string) outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, stdin, &stdout, &stderr, func(name string) string { return w.env[name] })
	return outcome{code, stdout.String(), stderr.String()}
}

// must runs a command that has to succeed, and returns what it printed.
func (w *world) must(args ...string) string {
	w.t.Helper()
	o := w.run(args...)
	if o.code != exitOK {
		w.t.Fatalf("%v: exit code %d\n%s", args, o.code, o.err)
	}
	return o.out
}

// person is a terminal with somebody who types.
type person struct {
	io.Reader
	passwords []string
}

// ReadPassword implements terminal.
func (p *person) ReadPassword() (string, error) {
	if len(p.passwords) == 0 {
		return "", io.EOF
	}
	next := p.passwords[0]
	p.passwords = p.passwords[1:]
	return next, nil
}

func types(text string, passwords ...string) *person {
	return &person{Reader: strings.NewReader(text), passwords: passwords}
}

// refusal is an error as the services make them.
func refusal(code codes.Code, reason, message string, more ...protoadapt.MessageV1) error {
	s, err := status.New(code, message).WithDetails(append([]protoadapt.MessageV1{
		&errdetails.ErrorInfo{Reason: reason, Domain: "counterfoil.dev"},
	}, more...)...)
	if err != nil {
		panic(err)
	}
	return s.Err()
}

// withTLS is a server option.
func withTLS(certificate tls.Certificate) grpc.ServerOption {
	return grpc.Creds(credentials.NewServerTLSFromCert(&certificate))
}

// has fails the test unless text holds all parts.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("want %q in:\n%s", part, text)
		}
	}
}

// same fails the test unless got is want, but for a line break at want's beginning.
func same(t *testing.T, got, want string) {
	t.Helper()
	if want = strings.TrimPrefix(want, "\n"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
