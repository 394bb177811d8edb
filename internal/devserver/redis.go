// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// RedisOptions says how to run a server. Only Dir must be set.
type RedisOptions struct {
	// Dir holds the server's configuration, data and log (Dir/redis.log).
	Dir string
	// Program is the path of redis-server. Default: what FindRedis finds or installs.
	Program string
	// Port on 127.0.0.1. Default: a free one, kept over Stop and Start.
	Port int
	// Settings are written to redis.conf after the package's own: no persistence, no eviction, loopback only.
	// For data that outlives Stop and Kill: {"appendonly": "yes", "appendfsync": "always"}.
	Settings map[string]string
	// ACL are lines of an ACL file, such as "user auth on >secret ~audit:{auth} +xadd +ping". They are loaded at each start.
	// Default: the default user may do everything without a password. With lines, it is what the lines make of it.
	ACL []string
}

// Redis is a private Redis server. Its methods may be called from several goroutines, but those that start and end the
// server wait for each other.
type Redis struct {
	opts RedisOptions
	port int

	mu   sync.Mutex // held while starting and ending
	proc *process
}

// StartRedis starts a server in opts.Dir and returns when it answers. An end of ctx during the call stops the
// attempt; afterwards ctx has no meaning. If the program is missing the error is a *MissingError.
func StartRedis(ctx context.Context, opts RedisOptions) (*Redis, error) {
	var err error
	if opts.Program == "" {
		if opts.Program, err = FindRedis(ctx); err != nil {
			return nil, err
		}
	}
	if opts.Dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, fmt.Errorf("redis directory: %w", err)
	}
	if err := os.MkdirAll(opts.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make redis directory: %w", err)
	}
	r := &Redis{opts: opts, port: opts.Port}
	if err := r.configure(); err != nil {
		return nil, err
	}
	if err := r.Start(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// Start starts a server that was stopped or killed, on its old port and directory, and returns when it answers.
// Without persistence it is empty.
func (r *Redis) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc.running() {
		return fmt.Errorf("start redis: %w", errRunning)
	}
	if err := startOnPort(&r.port, func() error { return r.start(ctx) }); err != nil {
		return fmt.Errorf("start redis: %w", err)
	}
	return nil
}

// Stop ends the server in order (SIGTERM: it writes what its persistence asks for). If ctx ends first, the server is
// killed and ctx's error returned. On a stopped server it does nothing.
func (r *Redis) Stop(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc.stop(ctx, syscall.SIGTERM)
}

// Kill ends the server with SIGKILL and waits until it is gone.
func (r *Redis) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proc.kill()
}

// Pause freezes the server (SIGSTOP): connections stay open and nothing answers.
func (r *Redis) Pause() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc == nil {
		return errors.New("pause redis: not running")
	}
	return r.proc.pause()
}

// Resume lets a frozen server go on.
func (r *Redis) Resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc != nil {
		r.proc.resume()
	}
}

// Running tells whether the server's process exists, frozen or not.
func (r *Redis) Running() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proc.running()
}

// PID returns the process id of the last run.
func (r *Redis) PID() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proc == nil {
		return 0
	}
	return r.proc.pid
}

// Port returns the server's port on 127.0.0.1.
func (r *Redis) Port() int { return r.port }

// Addr returns host:port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// LogPath returns the file that holds the server's log.
func (r *Redis) LogPath() string { return filepath.Join(r.opts.Dir, "redis.log") }

// URL returns redis://user:password@host:port/0; an empty user gives a URL without credentials.
func (r *Redis) URL(user, password string) string {
	u := url.URL{Scheme: "redis", Host: r.Addr(), Path: "/0"}
	if user != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// configure writes redis.conf and the ACL file.
func (r *Redis) configure() error {
	all := map[string]string{
		"bind":             "127.0.0.1",
		"protected-mode":   "no",
		"daemonize":        "no",
		"save":             "",
		"appendonly":       "no",
		"maxmemory-policy": "noeviction",
		"dir":              r.opts.Dir,
		// Tests ask a server to misbehave (DEBUG SLEEP, DEBUG RELOAD).
		"enable-debug-command": "local",
	}
	if len(r.opts.ACL) > 0 {
		path := filepath.Join(r.opts.Dir, "users.acl")
		all["aclfile"] = path
		if err := os.WriteFile(path, []byte(strings.Join(r.opts.ACL, "\n")+"\n"), 0o600); err != nil {
			return fmt.Errorf("write ACL: %w", err)
		}
	}
	maps.Copy(all, r.opts.Settings)
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&conf, "%s %s\n", name, strconv.Quote(all[name]))
	}
	if err := os.WriteFile(r.confPath(), []byte(conf.String()), 0o600); err != nil {
		return fmt.Errorf("write redis.conf: %w", err)
	}
	return nil
}

func (r *Redis) confPath() string { return filepath.Join(r.opts.Dir, "redis.conf") }

// start makes one attempt on the port that is set.
func (r *Redis) start(ctx context.Context) error {
	offset := fileSize(r.LogPath())
	proc, err := run(spec{
		name: "redis", path: r.opts.Program,
		args: []string{r.confPath(), "--port", strconv.Itoa(r.port)},
		dir:  r.opts.Dir, env: environment(), logPath: r.LogPath(),
		onDeath: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	if err := waitReady(ctx, proc, func(ctx context.Context) error { return r.answers(ctx, proc.pid) }); err != nil {
		proc.kill()
		log := logSince(r.LogPath(), offset)
		if bytes.Contains(log, []byte("Address already in use")) {
			return errPortTaken
		}
		return fmt.Errorf("%w\n%s", err, lastLines(log, 20))
	}
	r.proc = proc
	return nil
}

// answers checks that our server accepts commands. The port may be another server's as long as ours does not say that it is
// ready; and a refusal for want of rights is an answer, but one that a server gives while it still loads, too.
func (r *Redis) answers(ctx context.Context, pid int) error {
	ready := regexp.MustCompile(`(?m)^` + strconv.Itoa(pid) + `:[MS] .*Ready to accept connections`)
	if log, err := os.ReadFile(r.LogPath()); err != nil || !ready.Match(log) {
		return errors.New("it does not say that it is ready")
	}
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", r.Addr())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	for _, answer := range []string{"+PONG", "-NOAUTH", "-NOPERM"} {
		if strings.HasPrefix(reply, answer) {
			return nil
		}
	}
	return fmt.Errorf("ping: %s", strings.TrimSpace(reply))
}
