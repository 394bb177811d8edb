// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcserver makes the gRPC server that every service runs: tracing, request information, error mapping,
// recovery, deadlines, authentication, validation, health, and an orderly stop.
//
// Handlers return plain errors; the server turns them into statuses and logs what is internal, once. It promises to
// stop within the grace period. It does not rate-limit, and it does not say whether the service can work: readiness is
// telemetry's.
package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

const (
	defaultDeadline  = 30 * time.Second
	defaultGrace     = 10 * time.Second
	defaultMinTime   = 10 * time.Second
	defaultRecv      = 4 << 20
	defaultSend      = 16 << 20
	maxHeaderList    = 16 << 10
	maxStreams       = 1000 // per connection
	handshakeTimeout = 20 * time.Second
	serverPing       = time.Minute
	serverPingWait   = 20 * time.Second
)

// Config says how to serve. Authenticate is required, and Addr or Listener; the zero value of every other field works.
type Config struct {
	// Addr is host:port to listen on; port 0 takes a free one. Listener, if set, is used instead.
	Addr     string
	Listener net.Listener
	// Logger gets internal errors and panics; default: none.
	Logger *slog.Logger
	// TracerProvider, MeterProvider and Propagator come from telemetry; nil means none.
	TracerProvider trace.TracerProvider
	MeterProvider  metric.MeterProvider
	Propagator     propagation.TextMapPropagator
	// Domain is the ErrorInfo domain; default apperr.Domain.
	Domain string
	// Authenticate says who calls and whether they may: authn.Authenticator has it. Health and reflection skip it.
	Authenticate func(ctx context.Context, fullMethod string) (context.Context, error)
	// Enrich may add to the context of each call, after the caller is known and before the request is validated: such as
	// the trace context for what the handler appends. Health and reflection skip it.
	Enrich func(ctx context.Context) context.Context
	// Translate turns errors of drivers into apperr ones before they are mapped: pgdb.AppError.
	Translate func(error) error
	// Deadline is given to unary calls that come without one; default 30 s.
	Deadline time.Duration
	// StreamDeadline is given to streams that come without one; default none.
	StreamDeadline time.Duration
	// MaxRecvBytes and MaxSendBytes bound one message; default 4 MiB and 16 MiB.
	MaxRecvBytes, MaxSendBytes int
	// KeepaliveMinTime is the shortest interval at which clients may ping, with or without a call; default 10 s. Those
	// that ping more often are disconnected with ENHANCE_YOUR_CALM.
	KeepaliveMinTime time.Duration
	// Grace bounds the stop: unary calls may finish within it, streams within half of it; default 10 s.
	Grace time.Duration
	// Reflection serves grpc.reflection.v1 to everybody.
	Reflection bool
	// TrustedProxies may name the client's address in x-forwarded-for.
	TrustedProxies []netip.Prefix
	// Credentials are for TLS; default none.
	Credentials credentials.TransportCredentials
	// NewID makes correlation ids; default UUIDv7.
	NewID func() string
}

// Server is a gRPC server and the listener that it serves.
type Server struct {
	cfg       Config
	listener  net.Listener
	server    *grpc.Server
	health    *health.Server
	validator protovalidate.Validator

	draining chan struct{}   // closed when the stop begins
	streams  context.Context //nolint:containedctx // the life of all streams, cancelled half-way through the grace period
	cut      context.CancelCauseFunc

	mu      sync.Mutex
	serving map[string]bool // what SetServing said
}

// AllowAll is an Authenticate that lets everybody in, for tests.
func AllowAll(ctx context.Context, _ string) (context.Context, error) { return ctx, nil }

// New checks cfg, fills its defaults and listens, so that Addr is known before Run. Register the services, then Run.
func New(cfg Config) (*Server, error) {
	if cfg.Authenticate == nil {
		return nil, errors.New("grpc server: Authenticate is not set")
	}
	cfg.fill()
	validator, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("grpc server: %w", err)
	}
	listener := cfg.Listener
	if listener == nil {
		if listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", cfg.Addr); err != nil {
			return nil, fmt.Errorf("grpc server: %w", err)
		}
	}
	s := &Server{
		cfg: cfg, listener: listener, health: health.NewServer(), validator: validator,
		draining: make(chan struct{}), serving: map[string]bool{},
	}
	s.streams, s.cut = context.WithCancelCause(context.Background())
	s.server = grpc.NewServer(s.options()...)
	healthpb.RegisterHealthServer(s.server, s.health)
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING) // until Run
	if cfg.Reflection {
		reflection.Register(s.server)
	}
	return s, nil
}

func (c *Config) fill() {
	setDefault(&c.Domain, apperr.Domain)
	setDefault(&c.Deadline, defaultDeadline)
	setDefault(&c.Grace, defaultGrace)
	setDefault(&c.KeepaliveMinTime, defaultMinTime)
	setDefault(&c.MaxRecvBytes, defaultRecv)
	setDefault(&c.MaxSendBytes, defaultSend)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Translate == nil {
		c.Translate = func(err error) error { return err }
	}
	if c.NewID == nil {
		c.NewID = func() string { return uuid.Must(uuid.NewV7()).String() }
	}
}

func setDefault[T comparable](field *T, standard T) {
	var zero T
	if *field == zero {
		*field = standard
	}
}

func (s *Server) options() []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.StatsHandler(otelgrpc.NewServerHandler(s.telemetry()...)),
		grpc.ChainUnaryInterceptor(s.unaryInfo, s.unaryErrors, s.unaryRecover, s.unaryDeadline, s.unaryAuthenticate, s.unaryValidate),
		grpc.ChainStreamInterceptor(s.streamInfo, s.streamErrors, s.streamRecover, s.streamDeadline, s.streamAuthenticate, s.streamValidate),
		grpc.MaxRecvMsgSize(s.cfg.MaxRecvBytes),
		grpc.MaxSendMsgSize(s.cfg.MaxSendBytes),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: s.cfg.KeepaliveMinTime, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: serverPing, Timeout: serverPingWait}),
	}
	if s.cfg.Credentials != nil {
		options = append(options, grpc.Creds(s.cfg.Credentials))
	}
	return options
}

func (s *Server) telemetry() []otelgrpc.Option {
	options := []otelgrpc.Option{
		// Health checks come every few seconds, for ever: they would be most of the spans of an idle system (BC-72).
		otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool { return !infrastructure(info.FullMethodName) }),
	}
	if s.cfg.TracerProvider != nil {
		options = append(options, otelgrpc.WithTracerProvider(s.cfg.TracerProvider))
	}
	if s.cfg.MeterProvider != nil {
		options = append(options, otelgrpc.WithMeterProvider(s.cfg.MeterProvider))
	}
	if s.cfg.Propagator != nil {
		options = append(options, otelgrpc.WithPropagators(s.cfg.Propagator))
	}
	return options
}

// RegisterService makes Server a grpc.ServiceRegistrar, for the generated Register functions. Call it before Run.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.server.RegisterService(desc, impl)
}

// ServiceInfo lists what is registered, for authn.Policy.Missing.
func (s *Server) ServiceInfo() map[string]grpc.ServiceInfo { return s.server.GetServiceInfo() }

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// SetServing sets the health status of a registered service, or of the whole server with "". Without it everything is
// SERVING while Run runs. A stop overrides it. It is not for a broker that is away: the service still works then.
func (s *Server) SetServing(service string, serving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving[service] = serving
	s.health.SetServingStatus(service, statusOf(serving))
}

func statusOf(serving bool) healthpb.HealthCheckResponse_ServingStatus {
	if serving {
		return healthpb.HealthCheckResponse_SERVING
	}
	return healthpb.HealthCheckResponse_NOT_SERVING
}

// announce makes every registered service and the server itself SERVING, except where SetServing said otherwise.
func (s *Server) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{""}
	for name := range s.server.GetServiceInfo() {
		names = append(names, name)
	}
	for _, name := range names {
		if _, said := s.serving[name]; !said {
			s.health.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
		}
	}
}

// Run serves until ctx ends, then stops in order: health says NOT_SERVING, no new call is taken, calls in progress
// finish; streams are cancelled with UNAVAILABLE after half the grace period; after all of it every connection is
// closed, and a handler that still runs is left behind (BC-69). A stop is nil; an error is that of the listener. Run may
// be called once.
func (s *Server) Run(ctx context.Context) error {
	s.announce()
	failed := make(chan error, 1)
	go func() { failed <- s.server.Serve(s.listener) }()
	select {
	case err := <-failed:
		s.cut(errDraining)
		s.server.Stop()
		return fmt.Errorf("grpc server: %w", err)
	case <-ctx.Done():
	}
	s.stop()
	if err := <-failed; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("grpc server: %w", err)
	}
	return nil
}

// stop does not wait for GracefulStop for ever: that waits for handlers, even for those whose connection Stop has cut.
func (s *Server) stop() {
	s.health.Shutdown()
	close(s.draining)
	cut := time.AfterFunc(s.cfg.Grace/2, func() { s.cut(errDraining) })
	defer cut.Stop()
	defer s.cut(errDraining)
	force := time.NewTimer(s.cfg.Grace)
	defer force.Stop()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		s.server.GracefulStop()
	}()
	select {
	case <-graceful:
	case <-force.C:
		s.server.Stop()
	}
}
