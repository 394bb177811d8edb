// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// scratch makes a directory for one test. Without servers there is nothing to test here: -short skips.
func scratch(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Postgres and Redis")
	}
	s, err := NewScratch("devserver-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.Dir
}

// eventually waits until check returns nil.
func eventually(t *testing.T, patience time.Duration, check func() error) {
	t.Helper()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		<-ticks.C
	}
}

func TestPostgresKeepsCommittedDataOverKillAndStop(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := scratch(t)
	p, err := StartPostgres(ctx, PostgresOptions{Dir: dir, Settings: map[string]string{"fsync": "off", "cluster_name": "it's ours"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	exec1(t, p.URL("postgres", Superuser), "CREATE TABLE kept (n int)")
	exec1(t, p.URL("postgres", Superuser), "INSERT INTO kept VALUES (1)")

	port := p.Port()
	idle, err := pgx.Connect(ctx, p.URL("postgres", Superuser)) // a backend that must die too
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if p.Running() {
		t.Error("runs after Kill")
	}
	if err := idle.Ping(ctx); err == nil {
		t.Error("a backend outlived Kill")
	}
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if p.Port() != port {
		t.Errorf("port moved from %d to %d", port, p.Port())
	}
	exec1(t, p.URL("postgres", Superuser), "INSERT INTO kept VALUES (2)")
	if err := p.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(ctx); err != nil {
		t.Errorf("second Stop: %v", err)
	}
	if err := p.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(ctx); !errors.Is(err, errRunning) {
		t.Errorf("Start of a running server: %v", err)
	}
	if got := query1[int](t, p.URL("postgres", Superuser), "SELECT count(*) FROM kept"); got != 2 {
		t.Errorf("%d rows, want 2", got)
	}
	if got := query1[string](t, p.URL("postgres", Superuser), "SHOW cluster_name"); got != "it's ours" {
		t.Errorf("setting is %q", got)
	}
	if got := query1[string](t, p.URL("postgres", Superuser), "SHOW synchronous_commit"); got != "on" {
		t.Errorf("synchronous_commit is %s", got)
	}
}

func TestPostgresIsDurableByDefaultAndAsksRolesForPasswords(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p, err := StartPostgres(ctx, PostgresOptions{Dir: scratch(t), Passwords: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	if got := query1[string](t, p.URL("postgres", Superuser), "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	exec1(t, p.URL("postgres", Superuser), "CREATE ROLE svc LOGIN PASSWORD 'p w'")
	if conn, err := pgx.Connect(ctx, p.URL("postgres", "svc")); err == nil {
		_ = conn.Close(ctx)
		t.Error("a role got in without its password")
	}
	if got := query1[string](t, p.URLWithPassword("postgres", "svc", "p w"), "SELECT current_user"); got != "svc" {
		t.Errorf("current_user is %s", got)
	}
}

func TestPauseFreezesPostgresAndItsBackends(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p, err := StartPostgres(ctx, PostgresOptions{Dir: scratch(t), Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	conn, err := pgx.Connect(ctx, p.URL("postgres", Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		var one int
		answered <- conn.QueryRow(ctx, "SELECT 1").Scan(&one)
	}()
	select {
	case err := <-answered:
		t.Errorf("a frozen backend answered: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	p.Resume()
	if err := <-answered; err != nil {
		t.Errorf("after Resume: %v", err)
	}
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(ctx); err != nil {
		t.Errorf("Stop of a frozen server: %v", err)
	}
}

func TestPostgresInAFolderThatItsUserCannotReach(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(scratch(t), "closed", "deeper")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := StartPostgres(t.Context(), PostgresOptions{Dir: dir, Settings: map[string]string{"fsync": "off"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(p.DataDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("data is still there after Remove: %v", err)
	}
}

func TestATakenPortIsReported(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if _, err := StartRedis(t.Context(), RedisOptions{Dir: dir, Port: port}); !errors.Is(err, errPortTaken) {
		t.Errorf("got %v, want errPortTaken", err)
	}
}

// The kernel's death signal follows the thread that forked. A server must survive the end of the thread that its
// caller ran on.
func TestAServerSurvivesTheThreadThatAskedForIt(t *testing.T) {
	t.Parallel()
	dir := scratch(t)
	got := make(chan *Redis, 1)
	go func() {
		defer close(got)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		r, err := StartRedis(context.Background(), RedisOptions{Dir: dir})
		if err != nil {
			t.Error(err)
			return
		}
		got <- r
	}()
	r := <-got
	if r == nil {
		return
	}
	t.Cleanup(r.Kill)
	<-got
	for range 50 {
		if err := client(t, r, "", "").Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// child is what the process in TestNothingOutlivesAKilledProcess reports.
type child struct {
	PIDs []int
	Dir  string
}

func TestNothingOutlivesAKilledProcess(t *testing.T) {
	t.Parallel()
	scratch(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperStartsServersAndWaits$", "-test.v")
	cmd.Env = append(os.Environ(), "DEVSERVER_TEST_CHILD=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var c child
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "child: "); ok {
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	if len(c.PIDs) < 8 { // two postmasters with at least two children each, two servers of Redis
		t.Errorf("child started too little: %v", c.PIDs)
	}
	for _, pid := range c.PIDs {
		if !alive(pid) {
			t.Errorf("process %d does not run yet", pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed: the error says so

	eventually(t, 10*time.Second, func() error {
		for _, pid := range c.PIDs {
			if alive(pid) {
				return fmt.Errorf("process %d outlived its parent", pid)
			}
		}
		if _, err := os.Stat(c.Dir); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s is still there: %w", c.Dir, err)
		}
		return nil
	})
}

// TestHelperStartsServersAndWaits is the other process of TestNothingOutlivesAKilledProcess, and does nothing
// by itself: it starts two servers of each kind, freezes one of each, and waits to be killed.
func TestHelperStartsServersAndWaits(t *testing.T) {
	if os.Getenv("DEVSERVER_TEST_CHILD") == "" {
		return
	}
	s, err := NewScratch("devserver-child")
	if err != nil {
		t.Fatal(err)
	}
	c := child{Dir: s.Dir}
	for _, name := range []string{"running", "frozen"} {
		p, err := StartPostgres(t.Context(), PostgresOptions{Dir: filepath.Join(s.Dir, "pg-"+name), Settings: map[string]string{"fsync": "off"}})
		if err != nil {
			t.Fatal(err)
		}
		r, err := StartRedis(t.Context(), RedisOptions{Dir: filepath.Join(s.Dir, "redis-"+name)})
		if err != nil {
			t.Fatal(err)
		}
		c.PIDs = append(append(c.PIDs, p.PID(), r.PID()), descendants(p.PID())...)
		if name == "frozen" {
			if err := errors.Join(p.Pause(), r.Pause()); err != nil {
				t.Fatal(err)
			}
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(os.Stdout, "child: %s\n", text); err != nil {
		t.Fatal(err)
	}
	select {} // until SIGKILL
}

func TestInstallSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	err := error(&MissingError{Program: "redis-server", Package: "redis-server", Cause: errors.New("not running as root")})
	if !strings.Contains(err.Error(), "sudo apt-get install redis-server") || !strings.Contains(err.Error(), "not running as root") {
		t.Errorf("unhelpful: %v", err)
	}
}

// A process that never closes its scratch directory drops its last reference to it; the directory must stay.
func TestScratchStaysWhileItsProcessRuns(t *testing.T) {
	t.Parallel()
	dir := func() string {
		s, err := NewScratch("forgotten")
		if err != nil {
			t.Fatal(err)
		}
		return s.Dir
	}()
	file := filepath.Join(dir, "kept")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		runtime.GC()
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
		<-time.After(20 * time.Millisecond) // the shell that would delete it is another process
	}
}

func TestScratchGoesOnClose(t *testing.T) {
	t.Parallel()
	s, err := NewScratch("o'clock")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Access(s.Dir, 7); err != nil {
		t.Errorf("not writable: %v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func client(t *testing.T, r *Redis, user, password string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: user, Password: password, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func query1[T any](t *testing.T, url, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var v T
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
