// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/test/demo/scenario"
	"github.com/counterfoil/counterfoil/test/harness"
)

// containers is a system under Docker Compose.
type containers struct {
	folder  string   // of compose.yaml and the secrets
	command []string // of Compose: v2 or Debian's v1
	scratch string
	open    []func()
}

// address is where `make up` publishes something: each port is moved by its variable.
func address(what string) string {
	at := map[string]struct{ variable, port string }{
		"auth": {"AUTH_PORT", "7001"}, "app": {"APP_PORT", "7002"}, "admin": {"ADMIN_PORT", "7003"},
		"admin debug": {"ADMIN_DEBUG_PORT", "7103"}, "redis": {"REDIS_PORT", "7210"},
		"auth db": {"AUTH_DB_PORT", "7201"}, "app db": {"APP_DB_PORT", "7202"}, "admin db": {"ADMIN_DB_PORT", "7203"},
	}[what]
	if moved := os.Getenv(at.variable); moved != "" {
		at.port = moved
	}
	return net.JoinHostPort("127.0.0.1", at.port)
}

// startCompose connects to the system that `make up` started. Its times are those of production: scale is ignored.
func startCompose(ctx context.Context, _ float64, log func(string, ...any)) (_ *target, err error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	c := &containers{folder: filepath.Join(root, "deploy", "compose")}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(false))
		}
	}()
	if c.command, err = findCompose(ctx); err != nil {
		return nil, err
	}
	if c.scratch, err = os.MkdirTemp("", "counterfoil-demo-"); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	t := &target{
		suffix: "-" + hex.EncodeToString(id[:]), folder: c.scratch, cli: filepath.Join(c.scratch, "counterfoil"),
		addresses: map[string]string{}, logs: c.logs, close: c.close,
		System: scenario.System{
			Services: map[string]*grpc.ClientConn{}, Databases: map[string]*pgxpool.Pool{}, RedisAddr: address("redis"), Power: c,
		},
	}
	log("building cmd/counterfoil")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", t.cli, "./cmd/counterfoil")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if t.Operator, err = c.operator(); err != nil {
		return nil, err
	}
	password, err := c.secret("superuser_password")
	if err != nil {
		return nil, err
	}
	log("connecting to the containers of `make up`")
	for _, name := range harness.Services() {
		t.addresses[name] = address(name)
		conn, err := harness.Dial(t.addresses[name])
		if err != nil {
			return nil, err
		}
		c.open = append(c.open, func() { _ = conn.Close() }) // the process ends soon after
		at := url.URL{Scheme: "postgres", User: url.UserPassword("postgres", password), Host: address(name + " db"), Path: name, RawQuery: "sslmode=disable"}
		db, err := pgxpool.New(ctx, at.String())
		if err != nil {
			return nil, fmt.Errorf("open database of %s: %w", name, err)
		}
		c.open = append(c.open, db.Close)
		t.Services[name], t.Databases[name] = conn, db
	}
	if _, err := t.Look(ctx); err != nil {
		return nil, fmt.Errorf("%w; did `make up` end well?", err)
	}
	return t, nil
}

// findCompose returns the command of Docker Compose, as deploy/compose/engine.sh does.
func findCompose(ctx context.Context) ([]string, error) {
	if err := exec.CommandContext(ctx, "docker", "info").Run(); err != nil {
		return nil, errors.New("no Docker engine answers: start it, or try `make demo`, which needs none")
	}
	if exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}, nil
	}
	if _, err := exec.LookPath("docker-compose"); err != nil {
		return nil, errors.New("install Docker Compose: the package docker-compose-plugin or docker-compose")
	}
	return []string{"docker-compose"}, nil
}

// compose runs a command of Compose and returns its output.
func (c *containers) compose(ctx context.Context, args ...string) (string, error) {
	project := os.Getenv("COMPOSE_PROJECT_NAME")
	if project == "" {
		project = "counterfoil"
	}
	all := append(append(append([]string{}, c.command[1:]...), "-f", "compose.yaml", "-p", project), args...)
	cmd := exec.CommandContext(ctx, c.command[0], all...)
	cmd.Dir = c.folder
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", strings.Join(c.command, " "), strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// Kill implements scenario.Power. An engine does not restart what was killed through it, whatever the restart policy says.
func (c *containers) Kill(ctx context.Context, part string) (string, error) {
	id, err := c.compose(ctx, "ps", "-q", part)
	if err != nil {
		return "", err
	}
	lines := strings.Fields(id)
	if len(lines) == 0 {
		return "", fmt.Errorf("no container of %s runs; did `make up` end well?", part)
	}
	container := lines[len(lines)-1]
	if out, err := exec.CommandContext(ctx, "docker", "kill", "--signal", "KILL", container).CombinedOutput(); err != nil {
		return "", fmt.Errorf("docker kill: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return fmt.Sprintf("the container of %s (%.12s)", part, container), nil
}

// Start implements scenario.Power.
func (c *containers) Start(ctx context.Context, part string) error {
	if _, err := c.compose(ctx, "start", part); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return harness.Poll(ctx, func() error {
		if part == scenario.Admin {
			return telemetry.CheckReady(ctx, address("admin debug"))
		}
		if !scenario.RedisAnswers(ctx, address(part)) {
			return errors.New("redis does not answer")
		}
		return nil
	})
}

// operator returns the first operator's login, as up.sh made it.
func (c *containers) operator() (harness.Credentials, error) {
	email := os.Getenv("BOOTSTRAP_EMAIL")
	if email == "" {
		email = "operator@example.com"
	}
	password, err := c.secret("bootstrap_password")
	return harness.Credentials{Email: email, Password: password}, err
}

func (c *containers) secret(name string) (string, error) {
	dir := os.Getenv("SECRETS_DIR")
	if dir == "" {
		dir = filepath.Join(c.folder, "secrets")
	}
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return "", fmt.Errorf("read secret: %w; run `make up` first", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func (c *containers) logs() []string {
	return []string{"cd " + c.folder + " && " + strings.Join(c.command, " ") + " -p counterfoil logs"}
}

// close starts again what is down, so that a demo that failed in the middle leaves the system as it found it.
func (c *containers) close(keep bool) error {
	for _, end := range c.open {
		end()
	}
	var problems []error
	if keep {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, err := c.compose(ctx, "start", scenario.Redis, scenario.Admin)
		problems = append(problems, err)
	}
	if c.scratch != "" {
		problems = append(problems, os.RemoveAll(c.scratch))
	}
	return errors.Join(problems...)
}
