// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package harness runs the whole system as it is shipped: the built binaries as processes, a Postgres database and an
// own role for each service, Redis with an access list for each service. End-to-end tests, kill tests, the demo and
// the benchmark start it, drive it over gRPC, and break it from outside.
//
// It also holds the oracle (Check): what must be true of the three databases once the system is quiet, as SQL of its
// own that shares nothing with the product.
//
// Everything a System starts ends with it, and with this process, however that ends (Linux; elsewhere a caller that is
// killed leaves processes behind). It promises no security beyond loopback.
package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/migrations"
)

// stopPatience bounds an orderly end of one part; what has not ended by then is killed.
const stopPatience = 30 * time.Second

// Options says what to run. The zero value runs one replica of each service on one Postgres server, in a directory that
// is deleted at the end.
type Options struct {
	// Dir holds data, keys and logs, and is kept. Default: a temporary directory.
	Dir string
	// Replicas is the number of processes of each service; 0 starts none of it. A service that is not named gets 1.
	Replicas map[string]int
	// Clusters starts a Postgres server for each database instead of one for all three.
	Clusters bool
	// TimeScale divides every lease, backoff, poll, budget and role time-out. Default: 1.
	TimeScale float64
	// Env is given to every service on top of what the harness sets.
	Env map[string]string
	// ServiceEnv is given to one service, by name, on top of Env.
	ServiceEnv map[string]map[string]string
	// Postgres are server settings on top of the defaults, which leave fsync on.
	Postgres map[string]string
	// Redis are server settings on top of those of the deployment: appendonly, appendfsync always, noeviction.
	Redis map[string]string
	// BuildTags are passed to go build, such as "failpoints".
	BuildTags string
	// CLI builds the operator's CLI, too; Bin("counterfoil") is its path.
	CLI bool
	// Log receives a line for each step of the start. Default: none.
	Log func(format string, args ...any)
}

// Credentials are what a user logs in with.
type Credentials struct {
	Email, Password string
}

// System is a running system. Its methods may be called from several goroutines.
type System struct {
	// Dir holds data, keys and logs.
	Dir string
	// Redis is the broker: Kill, Stop, Start, Pause, Resume.
	Redis *devserver.Redis
	// RedisClient connects to it with all rights and does not repeat a failed command.
	RedisClient *redis.Client
	// Operator is the first operator, who may do everything.
	Operator Credentials

	opts     Options
	scratch  *devserver.Scratch
	bin      string
	secrets  secrets
	servers  map[string]*devserver.Postgres // by owner; with one cluster three times the same
	pools    map[string]*pgxpool.Pool       // by owner, as the superuser
	services map[string][]*Service

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// Services lists the names of the services in the order in which they are started.
func Services() []string { return migrations.Owners() }

// Start builds the binaries, starts the servers, makes the databases, and starts the services; it returns when all are
// ready. If it fails, or ctx ends, nothing is left running. A program that is missing is a *devserver.MissingError.
func Start(ctx context.Context, opts Options) (s *System, err error) {
	if opts.TimeScale == 0 {
		opts.TimeScale = 1
	}
	if opts.Log == nil {
		opts.Log = func(string, ...any) {}
	}
	s = &System{
		Dir: opts.Dir, opts: opts, secrets: newSecrets(), servers: map[string]*devserver.Postgres{},
		pools: map[string]*pgxpool.Pool{}, services: map[string][]*Service{}, conns: map[string]*grpc.ClientConn{},
		Operator: Credentials{Email: "root@example.com", Password: "correct horse battery staple"},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	if s.Dir == "" {
		if s.scratch, err = devserver.NewScratch("system"); err != nil {
			return s, err
		}
		s.Dir = s.scratch.Dir
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"build the binaries", s.build},
		{"start Postgres", s.startPostgres},
		{"start Redis", s.startRedis},
		{"make the databases", s.migrate},
		{"start the services", s.startServices},
	} {
		begin := time.Now()
		if err := step.do(ctx); err != nil {
			return s, fmt.Errorf("%s: %w", step.name, err)
		}
		opts.Log("%s (%d ms)", step.name, time.Since(begin).Milliseconds())
	}
	return s, nil
}

// Close ends everything, the services in order first, and deletes a temporary directory. A second call does nothing.
func (s *System) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*stopPatience)
	defer cancel()
	s.mu.Lock()
	var problems []error
	for _, conn := range s.conns {
		problems = append(problems, conn.Close())
	}
	s.conns = map[string]*grpc.ClientConn{}
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, replicas := range s.services {
		for _, service := range replicas {
			all.Go(func() { _ = service.Stop(ctx) }) // what did not end in order was killed, and its log says why
		}
	}
	all.Wait()
	for _, pool := range s.pools {
		pool.Close()
	}
	if s.RedisClient != nil {
		_ = s.RedisClient.Close() // a second time it says that it is closed
	}
	if s.Redis != nil {
		problems = append(problems, s.Redis.Stop(ctx))
	}
	for _, server := range s.servers {
		problems = append(problems, server.Stop(ctx))
	}
	if s.scratch != nil {
		problems = append(problems, s.scratch.Close())
	}
	return errors.Join(problems...)
}

// Service returns replica i of a service, counted from 0. It panics if there is none.
func (s *System) Service(name string, i int) *Service {
	return s.services[name][i]
}

// Replicas returns all replicas of a service.
func (s *System) Replicas(name string) []*Service {
	return slices.Clone(s.services[name])
}

// Postgres returns the server that holds the database of a service.
func (s *System) Postgres(owner string) *devserver.Postgres { return s.servers[owner] }

// DB returns a pool to the database of a service, as the superuser: for looking, and for breaking things.
func (s *System) DB(owner string) *pgxpool.Pool { return s.pools[owner] }

// Bin returns the path of a built program, such as "auth" or "migrate".
func (s *System) Bin(name string) string { return filepath.Join(s.bin, name) }

// startServices starts Auth first, which writes the keys that the others read, and makes the first operator.
func (s *System) startServices(ctx context.Context) error {
	for _, name := range Services() {
		count, given := s.opts.Replicas[name]
		if !given {
			count = 1
		}
		for i := range count {
			s.services[name] = append(s.services[name], s.newService(name, i))
		}
	}
	if len(s.services["auth"]) > 0 {
		if err := s.bootstrap(ctx); err != nil {
			return err
		}
	}
	for _, name := range Services() {
		var all sync.WaitGroup
		problems := make([]error, len(s.services[name]))
		for i, service := range s.services[name] {
			all.Go(func() { problems[i] = service.Start(ctx) })
		}
		all.Wait()
		if err := errors.Join(problems...); err != nil {
			return err
		}
	}
	return nil
}

// bootstrap makes the first operator, once a directory.
func (s *System) bootstrap(ctx context.Context) error {
	var users int
	if err := s.pools["auth"].QueryRow(ctx, "SELECT count(*) FROM users").Scan(&users); err != nil {
		return fmt.Errorf("count users: %w", err)
	}
	if users > 0 {
		return nil
	}
	env := s.environment("auth", 0, "127.0.0.1:0", "127.0.0.1:0")
	env["BOOTSTRAP_EMAIL"] = s.Operator.Email
	env["BOOTSTRAP_PASSWORD"] = s.Operator.Password
	env["BOOTSTRAP_DISPLAY_NAME"] = "First Operator"
	return runProgram(ctx, s.Bin("auth"), env, "bootstrap")
}

// environment is what one replica of a service is started with.
func (s *System) environment(name string, replica int, listen, debug string) map[string]string {
	env := map[string]string{
		"DATABASE_URL":   s.servers[name].URLWithPassword(name, migrations.ServiceRole(name), s.secrets.database),
		"REDIS_URL":      s.Redis.URL(name, s.secrets.redis[name]),
		"LISTEN_ADDR":    listen,
		"DEBUG_ADDR":     debug,
		"INSTANCE":       name + "-" + strconv.Itoa(replica),
		"PAGE_TOKEN_KEY": s.secrets.pageToken,
		"JWKS_FILE":      filepath.Join(s.Dir, "jwks.json"),
		"REFLECTION":     "true",
		"TIME_SCALE":     strconv.FormatFloat(s.opts.TimeScale, 'g', -1, 64),
		"GOTRACEBACK":    "single",
	}
	switch name {
	case "admin":
		env["MAC_KEYS_AUTH"], env["MAC_KEYS_APP"] = s.secrets.mac["auth"], s.secrets.mac["app"]
	case "auth":
		env["SIGNING_KEY_FILE"] = filepath.Join(s.Dir, "signing-key.pem")
		env["MAC_KEYS"] = s.secrets.mac[name]
	default:
		env["MAC_KEYS"] = s.secrets.mac[name]
	}
	maps.Copy(env, s.opts.Env)
	maps.Copy(env, s.opts.ServiceEnv[name])
	return env
}

// repository returns the folder of go.mod, above the working directory.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the repository: no go.mod above the working directory")
		}
	}
}
