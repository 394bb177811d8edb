// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Superuser is the name of the superuser in each cluster made here. It connects without a password.
const Superuser = "postgres"

// startPatience bounds the wait for a server's first answer. Recovery after a kill is within it.
const startPatience = time.Minute

// PostgresOptions says how to run a server. Only Dir must be set.
type PostgresOptions struct {
	// Dir holds the cluster (Dir/data) and its log (Dir/postgres.log). A cluster that lies there is used again.
	Dir string
	// Bin is the folder of Postgres' programs. Default: what FindPostgres finds or installs.
	Bin string
	// Port on 127.0.0.1. Default: a free one, kept over Stop and Start.
	Port int
	// Settings are written to postgresql.conf after the package's own (postgres.go, settings). Values are quoted here.
	Settings map[string]string
	// Passwords makes every role but the superuser log in by SCRAM. Default: loopback is trusted.
	Passwords bool
}

// Postgres is a private Postgres server. Its methods may be called from several goroutines, but those that start and
// end the server wait for each other.
type Postgres struct {
	opts PostgresOptions
	user *credential
	data string
	port int

	mu     sync.Mutex // held while starting and ending
	proc   *process
	killed bool // the last run ended without clearing its shared memory
}

// StartPostgres makes a cluster in opts.Dir, unless one lies there, starts it and returns when it accepts
// connections. As root it runs as user postgres, or nobody if there is none; where that user cannot
// reach Dir the data lies below /var/tmp instead (DataDir). An end of ctx during the call stops the attempt; afterwards ctx has no
// meaning. If the programs are missing the error is a *MissingError.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	var err error
	if opts.Bin == "" {
		if opts.Bin, err = FindPostgres(ctx); err != nil {
			return nil, err
		}
	}
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, fmt.Errorf("postgres directory: %w", err)
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make postgres directory: %w", err)
	}
	p := &Postgres{opts: opts, port: opts.Port}
	if p.user, err = unprivileged(); err != nil { // after FindPostgres: the package brings the user
		return nil, err
	}
	if p.data, err = p.dataDir(); err != nil {
		return nil, err
	}
	if err := p.initialise(ctx); err != nil {
		return nil, err
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

// Start starts a server that was stopped or killed, on its old port and data, and returns when it accepts
// connections.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc.running() {
		return fmt.Errorf("start postgres: %w", errRunning)
	}
	err := startOnPort(&p.port, func() error { return p.start(ctx) })
	if err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	p.killed = false
	return nil
}

// Stop ends the server in order (a fast shutdown: open transactions are rolled back, data is flushed). If ctx ends
// first, the server is killed and ctx's error returned. On a stopped server it does nothing.
func (p *Postgres) Stop(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.proc.stop(ctx, syscall.SIGINT, syscall.SIGQUIT); err != nil {
		p.killed = true
		return err
	}
	if p.killed {
		p.freeSharedMemory()
	}
	return nil
}

// Kill ends the server and its backends with SIGKILL and waits until they are gone: what a power cut leaves, but for the
// operating system's own buffers.
func (p *Postgres) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc.running() {
		p.proc.kill()
		p.killed = true
	}
}

// Pause freezes the server and its backends (SIGSTOP): connections stay open and nothing answers. Backends started
// later cannot be: the postmaster is frozen too.
func (p *Postgres) Pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return errors.New("pause postgres: not running")
	}
	return p.proc.pause()
}

// Resume lets a frozen server go on.
func (p *Postgres) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil {
		p.proc.resume()
	}
}

// Running tells whether the server's process exists, frozen or not.
func (p *Postgres) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc.running()
}

// PID returns the process id of the last run's postmaster.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return 0
	}
	return p.proc.pid
}

// Port returns the server's port on 127.0.0.1.
func (p *Postgres) Port() int { return p.port }

// DataDir returns the cluster's directory.
func (p *Postgres) DataDir() string { return p.data }

// LogPath returns the file that holds the server's log.
func (p *Postgres) LogPath() string { return filepath.Join(p.opts.Dir, "postgres.log") }

// URL returns a connection string for a database and a role; put a password in with URLWithPassword.
func (p *Postgres) URL(db, user string) string {
	return p.url(db, url.User(user))
}

// URLWithPassword returns a connection string with a password.
func (p *Postgres) URLWithPassword(db, user, password string) string {
	return p.url(db, url.UserPassword(user, password))
}

func (p *Postgres) url(db string, user *url.Userinfo) string {
	u := url.URL{Scheme: "postgres", User: user, Host: p.addr(), Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

func (p *Postgres) addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))
}

// Remove kills the server if it runs and deletes its data and log.
func (p *Postgres) Remove() error {
	p.Kill()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.killed {
		p.freeSharedMemory()
	}
	return errors.Join(os.RemoveAll(p.data), os.Remove(p.LogPath()))
}

// start makes one attempt on the port that is set.
func (p *Postgres) start(ctx context.Context) error {
	offset := fileSize(p.LogPath())
	proc, err := run(spec{
		name: "postgres", path: filepath.Join(p.opts.Bin, "postgres"),
		args: []string{"-D", p.data, "-c", "port=" + strconv.Itoa(p.port)},
		dir:  "/", env: environment(), logPath: p.LogPath(), user: p.user,
		onDeath: syscall.SIGQUIT,
	})
	if err != nil {
		return err
	}
	if err := waitReady(ctx, proc, p.answers); err != nil {
		proc.kill()
		log := logSince(p.LogPath(), offset)
		if bytes.Contains(log, []byte("could not bind")) || bytes.Contains(log, []byte("Address already in use")) {
			return errPortTaken
		}
		return fmt.Errorf("%w\n%s", err, lastLines(log, 20))
	}
	p.proc = proc
	return nil
}

// answers checks that the server on our port accepts connections and is ours.
func (p *Postgres) answers(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL("postgres", Superuser))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(ctx)
	var dir string
	if err := conn.QueryRow(ctx, "SELECT pg_catalog.current_setting('data_directory')").Scan(&dir); err != nil {
		return fmt.Errorf("ask for data directory: %w", err)
	}
	if dir != p.data {
		return fmt.Errorf("port %d is served from %s", p.port, dir)
	}
	return nil
}
