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
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
	"github.com/counterfoil/counterfoil/services/admin/internal/rpc"
)

// service is the name that logger, metrics, tracer and application_name derive from.
const service = "admin"

// settings is the complete list of what can be configured.
type settings struct {
	DatabaseURL    config.Secret  `env:"DATABASE_URL,required" doc:"Admin's Postgres database, as the role admin_service."`
	RedisURL       config.Secret  `env:"REDIS_URL,required" doc:"The broker, as Admin's user."`
	MACKeysAuth    config.Secret  `env:"MAC_KEYS_AUTH,required" doc:"Secrets shared with Auth: id:hex[,id:hex]. All verify."`
	MACKeysApp     config.Secret  `env:"MAC_KEYS_APP,required" doc:"Secrets shared with App: id:hex[,id:hex]. All verify."`
	JWKSFile       string         `env:"JWKS_FILE,required" doc:"The public keys that Auth writes. Read again when the file changes."`
	PageTokenKey   config.Secret  `env:"PAGE_TOKEN_KEY,required" doc:"Secret of at least 16 bytes, the same in every replica, that page tokens are made under."`
	ListenAddr     string         `env:"LISTEN_ADDR" envDefault:"127.0.0.1:7003" doc:"Where gRPC is served."`
	DebugAddr      string         `env:"DEBUG_ADDR" envDefault:"127.0.0.1:7103" doc:"Where /metrics, /healthz and /readyz are served, without authentication."`
	Reflection     bool           `env:"REFLECTION" envDefault:"false" doc:"Serve grpc.reflection.v1 to everybody."`
	Instance       string         `env:"INSTANCE" doc:"This replica's name as a reader of the streams: the same after a restart, and no other's. Default: host name and LISTEN_ADDR."`
	InboxRetention time.Duration  `env:"INBOX_RETENTION" envDefault:"168h" doc:"How long PROCESSED inbox rows are kept; at least 1h."`
	TrustedProxies []netip.Prefix `env:"TRUSTED_PROXIES" doc:"Networks, as CIDR, whose x-forwarded-for is believed. Default: none."`
	LogLevel       slog.Level     `env:"LOG_LEVEL" envDefault:"INFO" doc:"DEBUG, INFO, WARN or ERROR."`
	OTLPEndpoint   string         `env:"OTEL_EXPORTER_OTLP_ENDPOINT" doc:"Collector for traces, such as http://localhost:4317. Default: none."`
	SampleRatio    float64        `env:"TRACE_SAMPLE_RATIO" envDefault:"1" doc:"Share of new traces that is exported."`
	TimeScale      float64        `env:"TIME_SCALE" envDefault:"1" doc:"Divides every lease, backoff, poll and budget. For tests only."`

	command string // serve or healthcheck
	redis   *redis.Options
	keys    map[string]*envelope.Keyring // by owner
	tokens  *pagetoken.Codec
}

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
			DebugAddr string `env:"DEBUG_ADDR" envDefault:"127.0.0.1:7103"`
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
	options, err := redis.ParseURL(s.RedisURL.Reveal())
	if err != nil {
		problems = append(problems, errors.New("REDIS_URL: not a valid Redis URL (not shown: it may hold a password)"))
	}
	s.redis = options
	s.keys = map[string]*envelope.Keyring{}
	for _, link := range []struct {
		owner, variable string
		keys            config.Secret
	}{{"app", "MAC_KEYS_APP", s.MACKeysApp}, {"auth", "MAC_KEYS_AUTH", s.MACKeysAuth}} {
		ring, err := envelope.ParseKeyring(link.keys.Reveal())
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", link.variable, err))
		}
		s.keys[link.owner] = ring
	}
	if s.tokens, err = pagetoken.New(s.PageTokenKey); err != nil {
		problems = append(problems, fmt.Errorf("PAGE_TOKEN_KEY: %w", err))
	}
	if s.InboxRetention < time.Hour {
		problems = append(problems, errors.New("INBOX_RETENTION: must be at least 1h"))
	}
	if s.TimeScale < 1 {
		problems = append(problems, errors.New("TIME_SCALE: must be at least 1"))
	}
	if s.Instance == "" {
		host, err := os.Hostname()
		if err != nil {
			problems = append(problems, fmt.Errorf("INSTANCE: %w", err))
		}
		s.Instance = host + "/" + s.ListenAddr
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

// open makes two pools: one for calls, one for the loops that poll.
func (s *settings) open(ctx context.Context, tel *telemetry.Telemetry) (calls, movers *pgxpool.Pool, err error) {
	database := pgdb.Config{URL: s.DatabaseURL, ApplicationName: service, TracerProvider: tel.TracerProvider}
	if calls, err = pgdb.Open(ctx, database); err != nil {
		return nil, nil, err
	}
	if movers, err = pgdb.Open(ctx, pgdb.MoverConfig(database)); err != nil {
		calls.Close()
		return nil, nil, err
	}
	return calls, movers, nil
}

func (s *settings) intake(db *pgxpool.Pool, tel *telemetry.Telemetry) admin.IntakeOptions {
	return admin.IntakeOptions{
		DB: db, Redis: s.redis, Keys: s.keys, Instance: s.Instance, Retention: s.InboxRetention, Telemetry: tel,
		TimeScale: s.TimeScale,
	}
}

// access decides who may call: whoever shows a token of Auth's with a role that the policy asks for. Refusals are recorded.
func (s *settings) access(operations *admin.Service) (*authn.Verifier, *authn.Authenticator, error) {
	verifier, err := authn.NewVerifier(authn.VerifierConfig{Path: s.JWKSFile})
	if err != nil {
		return nil, nil, err
	}
	access, err := authn.NewAuthenticator(authn.AuthenticatorConfig{
		Verifier: verifier, Policy: rpc.Policy(), Refused: rpc.Refused(operations),
	})
	return verifier, access, err
}

func (s *settings) server(tel *telemetry.Telemetry, access *authn.Authenticator) (*grpcserver.Server, error) {
	return grpcserver.New(grpcserver.Config{
		Addr: s.ListenAddr, Logger: tel.Logger, TracerProvider: tel.TracerProvider, MeterProvider: tel.MeterProvider,
		Propagator: tel.Propagator, Authenticate: access.Authenticate, Translate: pgdb.AppError, Reflection: s.Reflection,
		TrustedProxies: s.TrustedProxies,
	})
}

// debug lists what readiness means: the database and the keys that tokens are checked with. The broker and the flow of
// events are shown beside them; trouble there does not take the read side away.
func (s *settings) debug(
	tel *telemetry.Telemetry, db *pgxpool.Pool, verifier *authn.Verifier, intake *admin.Intake,
) telemetry.DebugConfig {
	return telemetry.DebugConfig{
		Addr: s.DebugAddr, Registry: tel.Registry, Logger: tel.Logger,
		Checks: []telemetry.Check{
			{Name: "database", Probe: func(ctx context.Context) error { return pgdb.Ping(ctx, db) }},
			{Name: "keys", Probe: verifier.Ready},
			{Name: "broker", Probe: intake.Broker, Informational: true},
			{Name: "eviction", Probe: intake.Eviction, Informational: true},
			{Name: "flow", Probe: intake.Flow, Informational: true},
		},
	}
}
