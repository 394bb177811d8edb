// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/test/demo/scenario"
	"github.com/counterfoil/counterfoil/test/harness"
)

// replicas is how many processes of each service run.
const replicas = 2

// startLocal starts Postgres, Redis and the built services below .dev/, on free ports.
func startLocal(ctx context.Context, scale float64, log func(string, ...any)) (*target, error) {
	root, err := repository()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(filepath.Join(root, ".dev", "demo"))
	if err != nil {
		return nil, err
	}
	log("looking for Postgres and Redis; Debian's packages are installed if they are missing")
	if _, err := devserver.FindPostgres(ctx); err != nil {
		return nil, err
	}
	if _, err := devserver.FindRedis(ctx); err != nil {
		return nil, err
	}
	log("building the services, cmd/migrate and cmd/counterfoil; the first time takes minutes")
	counts := map[string]int{}
	for _, name := range harness.Services() {
		counts[name] = replicas
	}
	sys, err := harness.Start(ctx, harness.Options{
		Dir: dir, Replicas: counts, CLI: true, TimeScale: scale, Log: log,
	})
	if err != nil {
		return nil, errors.Join(err, fmt.Errorf("the logs are in %s", dir), os.RemoveAll(filepath.Join(dir, "postgres", "data")))
	}
	log("two processes of each service run on ports of their own: %s", ports(sys))
	l := &local{sys: sys, dir: dir}
	t := &target{folder: dir, cli: sys.Bin("counterfoil"), logs: l.logs, close: l.close, addresses: map[string]string{}}
	t.System = scenario.System{
		Services: map[string]*grpc.ClientConn{}, Databases: map[string]*pgxpool.Pool{}, RedisAddr: sys.Redis.Addr(),
		Operator: sys.Operator, Power: l,
	}
	for _, name := range harness.Services() {
		t.Databases[name], t.addresses[name] = sys.DB(name), sys.Service(name, 0).Addr()
		if t.Services[name], err = sys.Conn(name); err != nil {
			return nil, errors.Join(err, l.close(true))
		}
	}
	return t, nil
}

// newFolder makes a folder for one run, which the servers' user can reach.
func newFolder(parent string) (string, error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	dir, err := os.MkdirTemp(parent, time.Now().UTC().Format("20060102-150405-"))
	if err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", fmt.Errorf("open folder: %w", err)
	}
	return dir, nil
}

func ports(sys *harness.System) string {
	var all []string
	for _, name := range harness.Services() {
		for _, replica := range sys.Replicas(name) {
			all = append(all, replica.String()+" "+replica.Addr())
		}
	}
	return strings.Join(all, ", ")
}

// local is a system of processes of this one.
type local struct {
	sys *harness.System
	dir string
}

// Kill implements scenario.Power.
func (l *local) Kill(_ context.Context, part string) (string, error) {
	if part == scenario.Redis {
		what := fmt.Sprintf("Redis (process %d)", l.sys.Redis.PID())
		l.sys.Redis.Kill()
		return what, nil
	}
	var killed []string
	for _, replica := range l.sys.Replicas(part) {
		killed = append(killed, fmt.Sprintf("%s (process %d)", replica, replica.PID()))
		replica.Kill()
	}
	return strings.Join(killed, " and "), nil
}

// Start implements scenario.Power.
func (l *local) Start(ctx context.Context, part string) error {
	if part == scenario.Redis {
		return l.sys.Redis.Start(ctx)
	}
	var all sync.WaitGroup
	problems := make([]error, replicas)
	for i, replica := range l.sys.Replicas(part) {
		all.Go(func() { problems[i] = replica.Start(ctx) })
	}
	all.Wait()
	return errors.Join(problems...)
}

// logs lists the log files.
func (l *local) logs() []string {
	var all []string
	_ = filepath.WalkDir(l.dir, func(path string, entry fs.DirEntry, err error) error { // what cannot be read is not listed
		if err == nil && !entry.IsDir() && filepath.Ext(path) == ".log" {
			all = append(all, path)
		}
		return nil
	})
	return all
}

// close ends everything and deletes the databases, and the logs unless they are to be kept.
func (l *local) close(keep bool) error {
	problems := []error{l.sys.Close()}
	postgres := l.sys.Postgres(harness.Services()[0])
	problems = append(problems, os.RemoveAll(postgres.DataDir()))
	if !keep {
		problems = append(problems, os.RemoveAll(l.dir))
	}
	return errors.Join(problems...)
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
