// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/dispatch"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/redisstream"
	"github.com/counterfoil/counterfoil/services/app/internal/app"
	"github.com/counterfoil/counterfoil/services/app/internal/rpc"
)

// service is the name that logger, metrics, tracer and application_name derive from.
const service = "app"

// settings is the complete list of what can be configured.
type settings struct {
	DatabaseURL    config.Secret  `env:"DATABASE_URL,required" doc:"App's Postgres database, as the role app_service."`
	RedisURL       config.Secret  `env:"REDIS_URL,required" doc:"The broker, as App's user."`
	MACKeys        config.Secret  `env:"MAC_KEYS,required" doc:"Secrets shared with Admin: id:hex[,id:hex]. The first signs."`
	JWKSFile       string         `env:"JWKS_FILE,required" doc:"The public keys that Auth writes. Read again when the file changes."`
	PageTokenKey   config.Secret  `env:"PAGE_TOKEN_KEY,required" doc:"Secret of at least 16 bytes, the same in every replica, that page tokens and the hashes of requests are made under."`
	ListenAddr     string         `env:"LISTEN_ADDR" envDefault:"127.0.0.1:7002" doc:"Where gRPC is served."`
	DebugAddr      string         `env:"DEBUG_ADDR" envDefault:"127.0.0.1:7102" doc:"Where /metrics, /healthz and /readyz are served, without authentication."`
	MaxConns       int32          `env:"DATABASE_MAX_CONNS" envDefault:"20" doc:"Most connections to the database for calls; the dispatcher has 4 of its own."`
	Reflection     bool           `env:"REFLECTION" envDefault:"false" doc:"Serve grpc.reflection.v1 to everybody."`
	TrustedProxies []netip.Prefix `env:"TRUSTED_PROXIES" doc:"Networks, as CIDR, whose x-forwarded-for is believed. Default: none."`
	LogLevel       slog.Level     `env:"LOG_LEVEL" envDefault:"INFO" doc:"DEBUG, INFO, WARN or ERROR."`
	OTLPEndpoint   string         `env:"OTEL_EXPORTER_OTLP_ENDPOINT" doc:"Collector for traces, such as http://localhost:4317. Default: none."`
	SampleRatio    float64        `env:"TRACE_SAMPLE_RATIO" envDefault:"1" doc:"Share of new traces that is exported."`
	TimeScale      float64        `env:"TIME_SCALE" envDefault:"1" doc:"Divides every lease, backoff, poll and budget. For tests only."`

	command  string // serve or healthcheck
	redis    *redis.Options
	keys     *envelope.Keyring
	tokens   *pagetoken.Codec
	requests *idempotency.Hasher
}

// moverConns is how many connections the dispatcher and the sealer share.
const moverConns = 4

// load reads the subcommand and the settings. Its error names every variable that is wrong.
func load(args []string, getenv func(string) string) (settings, error) {
	s := settings{command: "serve"}
	if len(args) > 0 {
		s.command = args[0]
	}
	if len(args) > 1 || s.command != "serve" && s.command != "healthcheck" {
		return s, fmt.Errorf("unknown command %q: use serve or healthcheck", strings.Join(args, " "))
	}
	if s.command == "healthcheck" {
		var probe struct {
			DebugAddr string `env:"DEBUG_ADDR" envDefault:"127.0.0.1:7102"`
		}
		err := config.Load(getenv, &probe)
		s.DebugAddr = probe.DebugAddr
		return s, err
	}
	err := config.Load(getenv, &s, s.check)
	return s, err
}

// check reads what is more than a text, and refuses what cannot work.
func (s *settings) check() error {
	var problems []error
	add := func(variable string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", variable, err))
		}
	}
	options, err := redis.ParseURL(s.RedisURL.Reveal())
	if err != nil {
		add("REDIS_URL", errors.New("not a valid Redis URL (not shown: it may hold a password)"))
	} else {
		s.redis = redisstream.ClientOptions(*options)
	}
	s.keys, err = envelope.ParseKeyring(s.MACKeys.Reveal())
	add("MAC_KEYS", err)
	s.tokens, err = pagetoken.New(s.PageTokenKey)
	add("PAGE_TOKEN_KEY", err)
	s.requests, err = idempotency.NewHasher(s.PageTokenKey)
	add("PAGE_TOKEN_KEY", err)
	if s.MaxConns < 1 {
		add("DATABASE_MAX_CONNS", errors.New("must be at least 1"))
	}
	if s.TimeScale < 1 {
		add("TIME_SCALE", errors.New("must be at least 1"))
	}
	return errors.Join(problems...)
}

// The methods below turn the settings into what the parts of the service take.

// telemetry logs the effective settings, too, secrets hidden.
func (s *settings) telemetry(ctx context.Context, stderr io.Writer) (*telemetry.Telemetry, error) {
	tel, err := telemetry.Setup(ctx, telemetry.Config{
		Service: service, Stderr: stderr, Level: s.LogLevel, OTLPEndpoint: s.OTLPEndpoint, SampleRatio: s.SampleRatio,
	})
	if err == nil {
		tel.Logger.InfoContext(ctx, "configuration", slog.Any("config", config.Redacted(s)))
	}
	return tel, err
}

// open makes two pools: one for calls, one for the dispatcher.
func (s *settings) open(ctx context.Context, tel *telemetry.Telemetry) (calls, movers *pgxpool.Pool, err error) {
	database := pgdb.Config{URL: s.DatabaseURL, ApplicationName: service, MaxConns: s.MaxConns, TracerProvider: tel.TracerProvider}
	if calls, err = pgdb.Open(ctx, database); err != nil {
		return nil, nil, err
	}
	database.MaxConns = moverConns
	if movers, err = pgdb.Open(ctx, pgdb.MoverConfig(database)); err != nil {
		calls.Close()
		return nil, nil, err
	}
	return calls, movers, nil
}

// dispatcher numbers what is committed and carries it to the broker, with metrics and spans.
func (s *settings) dispatcher(movers *pgxpool.Pool, broker *redis.Client, tel *telemetry.Telemetry) (*outbox.Dispatcher, error) {
	return dispatch.New(dispatch.Config{
		Owner: service, DB: movers, Broker: broker, Keys: s.keys, Telemetry: tel, TimeScale: s.TimeScale,
	})
}

// access decides who may call: whoever shows a token of Auth's, with a role where the policy asks for one. Refusals are
// recorded.
func (s *settings) access(projects *app.Service) (*authn.Verifier, *authn.Authenticator, error) {
	verifier, err := authn.NewVerifier(authn.VerifierConfig{Path: s.JWKSFile})
	if err != nil {
		return nil, nil, err
	}
	access, err := authn.NewAuthenticator(authn.AuthenticatorConfig{
		Verifier: verifier, Policy: rpc.Policy(), Refused: projects.CallRefused,
	})
	return verifier, access, err
}

func (s *settings) server(tel *telemetry.Telemetry, access *authn.Authenticator) (*grpcserver.Server, error) {
	return grpcserver.New(grpcserver.Config{
		Addr: s.ListenAddr, Logger: tel.Logger, TracerProvider: tel.TracerProvider, MeterProvider: tel.MeterProvider,
		Propagator: tel.Propagator, Authenticate: access.Authenticate, Enrich: outboxrpc.Trace, Translate: pgdb.AppError,
		Reflection: s.Reflection, TrustedProxies: s.TrustedProxies,
	})
}

// api is what the service serves beside health and reflection.
func (s *settings) api(db *pgxpool.Pool, projects *app.Service, dispatcher *outbox.Dispatcher) rpc.Config {
	return rpc.Config{DB: db, App: projects, Tokens: s.tokens, Requests: s.requests, Wake: dispatcher.Wake}
}

// debug lists what readiness means: the database and the keys that tokens are checked with. The broker is shown beside
// them; while it is away, the service works and the outbox keeps what it would have got.
func (s *settings) debug(
	tel *telemetry.Telemetry, db *pgxpool.Pool, verifier *authn.Verifier, broker *redis.Client,
) telemetry.DebugConfig {
	return telemetry.DebugConfig{
		Addr: s.DebugAddr, Registry: tel.Registry, Logger: tel.Logger,
		Checks: []telemetry.Check{
			{Name: "database", Probe: func(ctx context.Context) error { return pgdb.Ping(ctx, db) }},
			{Name: "keys", Probe: verifier.Ready},
			{Name: "broker", Probe: func(ctx context.Context) error { return broker.Ping(ctx).Err() }, Informational: true},
		},
	}
}
