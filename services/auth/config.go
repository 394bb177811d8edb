// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"time"

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
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/rpc"
)

// service is the name that logger, metrics, tracer and application_name derive from.
const service = "auth"

// settings is the complete list of what can be configured.
type settings struct {
	DatabaseURL    config.Secret  `env:"DATABASE_URL,required" doc:"Auth's Postgres database, as the role auth_service."`
	RedisURL       config.Secret  `env:"REDIS_URL,required" doc:"The broker, as Auth's user."`
	MACKeys        config.Secret  `env:"MAC_KEYS,required" doc:"Secrets shared with Admin: id:hex[,id:hex]. The first signs."`
	SigningKeyFile string         `env:"SIGNING_KEY_FILE,required" doc:"PEM file of the Ed25519 keys that access tokens are signed with, the last one signing. Made if missing."`
	JWKSFile       string         `env:"JWKS_FILE,required" doc:"Where the public keys are written at start, for the services that check tokens."`
	PageTokenKey   config.Secret  `env:"PAGE_TOKEN_KEY,required" doc:"Secret of at least 16 bytes, the same in every replica, that page tokens, hashes of repeated requests and ids of unknown accounts are made under."`
	AccessTokenTTL time.Duration  `env:"ACCESS_TOKEN_TTL" envDefault:"5m" doc:"How long an access token works: the longest that other services honour a revoked one."`
	HashMemory     uint32         `env:"PASSWORD_HASH_MEMORY_KIB" envDefault:"19456" doc:"Memory of one argon2id hash, in KiB. Older hashes are renewed at login."`
	HashPasses     uint32         `env:"PASSWORD_HASH_PASSES" envDefault:"2" doc:"Passes of one argon2id hash."`
	HashConcurrent int            `env:"PASSWORD_HASH_CONCURRENCY" envDefault:"4" doc:"Hashes at once; more wait."`
	ListenAddr     string         `env:"LISTEN_ADDR" envDefault:"127.0.0.1:7001" doc:"Where gRPC is served."`
	DebugAddr      string         `env:"DEBUG_ADDR" envDefault:"127.0.0.1:7101" doc:"Where /metrics, /healthz and /readyz are served, without authentication."`
	MaxConns       int32          `env:"DATABASE_MAX_CONNS" envDefault:"20" doc:"Most connections to the database for calls; the dispatcher has 4 of its own."`
	Reflection     bool           `env:"REFLECTION" envDefault:"false" doc:"Serve grpc.reflection.v1 to everybody."`
	TrustedProxies []netip.Prefix `env:"TRUSTED_PROXIES" doc:"Networks, as CIDR, whose x-forwarded-for is believed. Default: none."`
	LogLevel       slog.Level     `env:"LOG_LEVEL" envDefault:"INFO" doc:"DEBUG, INFO, WARN or ERROR."`
	OTLPEndpoint   string         `env:"OTEL_EXPORTER_OTLP_ENDPOINT" doc:"Collector for traces, such as http://localhost:4317. Default: none."`
	SampleRatio    float64        `env:"TRACE_SAMPLE_RATIO" envDefault:"1" doc:"Share of new traces that is exported."`
	TimeScale      float64        `env:"TIME_SCALE" envDefault:"1" doc:"Divides every lease, backoff and poll. For tests only."`

	command   string // serve, bootstrap or healthcheck
	bootstrap bootstrapSettings
	redis     *redis.Options
	macs      *envelope.Keyring
}

// moverConns is how many connections the dispatcher and the sealer share.
const moverConns = 4

// bootstrapSettings is what the subcommand bootstrap needs, by variable or by flag.
type bootstrapSettings struct {
	DatabaseURL config.Secret `env:"DATABASE_URL,required" doc:"Auth's Postgres database, as the role auth_service."`
	Email       string        `env:"BOOTSTRAP_EMAIL,required" doc:"Address of the first operator. Flag -email."`
	DisplayName string        `env:"BOOTSTRAP_DISPLAY_NAME" envDefault:"Operator" doc:"Name of the first operator. Flag -display-name."`
	Password    config.Secret `env:"BOOTSTRAP_PASSWORD,required" doc:"Password of the first operator, of at least 12 characters. Flag -password-file names a file that holds it."`
}

// commands are the subcommands.
func commands() []string { return []string{"serve", "bootstrap", "healthcheck"} }

// load reads the subcommand and its settings. Its error names every variable that is wrong.
func load(args []string, getenv func(string) string) (settings, error) {
	s := settings{command: "serve"}
	if len(args) > 0 {
		s.command, args = args[0], args[1:]
	}
	if !slices.Contains(commands(), s.command) || s.command != "bootstrap" && len(args) > 0 {
		return s, fmt.Errorf("unknown command %q: use serve, bootstrap or healthcheck, with flags for bootstrap only", append([]string{s.command}, args...))
	}
	switch s.command {
	case "healthcheck":
		var probe struct {
			DebugAddr string `env:"DEBUG_ADDR" envDefault:"127.0.0.1:7101"`
		}
		err := config.Load(getenv, &probe)
		s.DebugAddr = probe.DebugAddr
		return s, err
	case "bootstrap":
		given, err := bootstrapFlags(args)
		if err != nil {
			return s, err
		}
		return s, config.Load(func(name string) string {
			if v := given[name]; v != "" {
				return v
			}
			return getenv(name)
		}, &s.bootstrap)
	default:
		return s, config.Load(getenv, &s, s.check)
	}
}

// bootstrapFlags returns the variables that flags stand for. There is none for the password itself: others can read a
// command line.
func bootstrapFlags(args []string) (map[string]string, error) {
	flags := flag.NewFlagSet(service+" bootstrap", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	email := flags.String("email", "", "")
	name := flags.String("display-name", "", "")
	file := flags.String("password-file", "", "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		return nil, errors.Join(errors.New("usage: auth bootstrap [-email ADDRESS] [-display-name NAME] [-password-file FILE], or the variables BOOTSTRAP_…"), err)
	}
	return map[string]string{"BOOTSTRAP_EMAIL": *email, "BOOTSTRAP_DISPLAY_NAME": *name, "BOOTSTRAP_PASSWORD_FILE": *file}, nil
}

// check reads what is more than a text, and refuses what cannot work.
func (s *settings) check() error {
	var problems []error
	options, err := redis.ParseURL(s.RedisURL.Reveal())
	if err != nil {
		problems = append(problems, errors.New("REDIS_URL: not a valid Redis URL (not shown: it may hold a password)"))
	} else {
		s.redis = redisstream.ClientOptions(*options)
	}
	if s.macs, err = envelope.ParseKeyring(s.MACKeys.Reveal()); err != nil {
		problems = append(problems, fmt.Errorf("MAC_KEYS: %w", err))
	}
	if s.MaxConns < 1 {
		problems = append(problems, errors.New("DATABASE_MAX_CONNS: must be at least 1"))
	}
	if s.TimeScale < 1 {
		problems = append(problems, errors.New("TIME_SCALE: must be at least 1"))
	}
	return errors.Join(problems...)
}

// once runs a subcommand that is no service.
func (s *settings) once(ctx context.Context, stderr io.Writer) error {
	if s.command == "healthcheck" {
		return telemetry.CheckReady(ctx, s.DebugAddr)
	}
	return s.bootstrap.run(ctx, stderr)
}

// run is the subcommand bootstrap.
func (b bootstrapSettings) run(ctx context.Context, stderr io.Writer) error {
	db, err := pgdb.Open(ctx, pgdb.Config{URL: b.DatabaseURL, ApplicationName: service})
	if err != nil {
		return err
	}
	defer db.Close()
	hasher, err := auth.NewHasher(auth.HashParams{}, 1)
	if err != nil {
		return err
	}
	accounts, err := auth.New(auth.Options{DB: db, Hasher: hasher, Logger: slog.New(slog.NewTextHandler(stderr, nil))})
	if err != nil {
		return err
	}
	user, err := accounts.Bootstrap(ctx, auth.NewUser{Email: b.Email, DisplayName: b.DisplayName, Password: b.Password.Reveal()})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stderr, "%s: made the first operator, %s, with the roles admin, auditor and operator\n", service, user.Name())
	return err
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

// keys is what secrets and key files are made into.
type keys struct {
	hasher   *auth.Hasher
	signer   *authn.Signer
	verifier *authn.Verifier
	pages    *pagetoken.Codec
	requests *idempotency.Hasher
}

// openKeys reads or makes the signing keys and writes their public halves for others.
func (s *settings) openKeys() (k keys, err error) {
	signing, err := authn.LoadOrCreateKey(s.SigningKeyFile)
	if err != nil {
		return k, err
	}
	if k.signer, err = authn.NewSigner(authn.SignerConfig{Keys: signing, TTL: s.AccessTokenTTL}); err != nil {
		return k, err
	}
	if err := k.signer.WriteJWKS(s.JWKSFile); err != nil {
		return k, err
	}
	if k.verifier, err = authn.NewVerifier(authn.VerifierConfig{Path: s.JWKSFile}); err != nil {
		return k, err
	}
	if k.pages, err = pagetoken.New(s.PageTokenKey); err != nil {
		return k, err
	}
	if k.requests, err = idempotency.NewHasher(s.PageTokenKey); err != nil {
		return k, err
	}
	k.hasher, err = auth.NewHasher(auth.HashParams{MemoryKiB: s.HashMemory, Passes: s.HashPasses}, s.HashConcurrent)
	return k, err
}

// dispatcher numbers what is committed and carries it to the broker, with metrics and spans.
func (s *settings) dispatcher(movers *pgxpool.Pool, broker *redis.Client, tel *telemetry.Telemetry) (*outbox.Dispatcher, error) {
	return dispatch.New(dispatch.Config{
		Owner: auth.Owner, DB: movers, Broker: broker, Keys: s.macs, Telemetry: tel, TimeScale: s.TimeScale,
	})
}

func (s *settings) accounts(db *pgxpool.Pool, k keys, d *outbox.Dispatcher, tel *telemetry.Telemetry) auth.Options {
	return auth.Options{DB: db, Hasher: k.hasher, Signer: k.signer, Secret: s.PageTokenKey, Wake: d.Wake, Logger: tel.Logger}
}

// server serves the API to whoever shows a token of ours whose session is not over, with a role where the method asks for
// one.
func (s *settings) server(tel *telemetry.Telemetry, k keys, api rpc.Config) (*grpcserver.Server, error) {
	access, err := rpc.Authenticator(k.verifier, api.Auth)
	if err != nil {
		return nil, err
	}
	server, err := grpcserver.New(grpcserver.Config{
		Addr: s.ListenAddr, Logger: tel.Logger, TracerProvider: tel.TracerProvider, MeterProvider: tel.MeterProvider,
		Propagator: tel.Propagator, Authenticate: access.Authenticate, Enrich: outboxrpc.Trace, Translate: pgdb.AppError,
		Reflection: s.Reflection, TrustedProxies: s.TrustedProxies,
	})
	if err != nil {
		return nil, err
	}
	api.Tokens, api.Requests = k.pages, k.requests
	return server, rpc.Register(server, api)
}

// debug lists what readiness means: the database, with the tables that the outbox needs. The broker is shown beside it;
// while it is away, the service works and the outbox keeps what it would have got.
func (s *settings) debug(tel *telemetry.Telemetry, db *pgxpool.Pool, broker *redis.Client) telemetry.DebugConfig {
	return telemetry.DebugConfig{
		Addr: s.DebugAddr, Registry: tel.Registry, Logger: tel.Logger,
		Checks: []telemetry.Check{
			{Name: "database", Probe: func(ctx context.Context) error { return pgdb.Ping(ctx, db) }},
			{Name: "schema", Probe: func(ctx context.Context) error { return outbox.CheckSchema(ctx, db) }},
			{Name: "broker", Probe: func(ctx context.Context) error { return broker.Ping(ctx).Err() }, Informational: true},
		},
	}
}
