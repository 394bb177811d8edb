// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"net"
	"sync"
	"testing"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The test service: two methods with one message, whose only field, name, has 1 to 100 characters by protovalidate.
const (
	testService  = "test.v1.Test"
	doMethod     = "/test.v1.Test/Do"
	streamMethod = "/test.v1.Test/Stream"
)

// message makes the descriptor of the test message at run time: no generated code for a test.
var message = sync.OnceValue(func() protoreflect.MessageDescriptor {
	options := &descriptorpb.FieldOptions{}
	proto.SetExtension(options, validate.E_Field, validate.FieldRules_builder{
		String: validate.StringRules_builder{MinLen: proto.Uint64(1), MaxLen: proto.Uint64(100)}.Build(),
	}.Build())
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("test.proto"), Package: new("test.v1"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: new("Message"),
			Field: []*descriptorpb.FieldDescriptorProto{{
				Name: new("name"), JsonName: new("name"), Number: proto.Int32(1), Options: options,
				Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}},
		}},
	}, nil)
	if err != nil {
		panic(err)
	}
	return file.Messages().Get(0)
})

func named(name string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(message())
	m.Set(message().Fields().Get(0), protoreflect.ValueOfString(name))
	return m
}

func nameOf(m *dynamicpb.Message) string { return m.Get(message().Fields().Get(0)).String() }

// handlers is the test service; do answers Do, stream serves Stream.
type handlers struct {
	do     func(ctx context.Context, name string) (string, error)
	stream func(grpc.ServerStream) error
}

func (h *handlers) register(s grpc.ServiceRegistrar) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: testService, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Do", Handler: h.unary}},
		Streams: []grpc.StreamDesc{{
			StreamName: "Stream", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return h.stream(s) },
		}},
	}, h)
}

func (h *handlers) unary(srv any, ctx context.Context, dec func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // the order is gRPC's
	in := named("")
	if err := dec(in); err != nil {
		return nil, err
	}
	return intercept(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: doMethod}, func(ctx context.Context, req any) (any, error) {
		out, err := h.do(ctx, nameOf(req.(*dynamicpb.Message)))
		return named(out), err
	})
}

// running is a server under test and a client of it.
type running struct {
	*Server
	conn *grpc.ClientConn
	stop func() error // ends Run and returns what it returned
}

// start runs a server with h until the test ends.
func start(t *testing.T, cfg Config, h handlers) *running {
	t.Helper()
	if cfg.Authenticate == nil {
		cfg.Authenticate = AllowAll
	}
	if cfg.Addr == "" && cfg.Listener == nil {
		cfg.Addr = "127.0.0.1:0"
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	h.register(s)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return &running{Server: s, conn: dial(t, s.Addr()), stop: stop}
}

func dial(t *testing.T, addr net.Addr, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr.String(), append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *running) do(ctx context.Context, name string, options ...grpc.CallOption) (string, error) {
	out := named("")
	err := r.conn.Invoke(ctx, doMethod, named(name), out, options...)
	return nameOf(out), err
}

func (r *running) open(t *testing.T, ctx context.Context) grpc.ClientStream {
	t.Helper()
	s, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
