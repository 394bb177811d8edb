// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// settings are what every cluster gets before the caller's own. Durability is left at Postgres' defaults: fsync on.
func settings() map[string]string {
	return map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"max_connections":         "300",
		"shared_buffers":          "128MB",
		"max_wal_size":            "1GB",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"log_line_prefix":         "%m [%p] %q%u@%d %a ",
		"cluster_name":            "counterfoil",
	}
}

// dataDir returns where the cluster lies: below Dir, or, where the server's user could not get there (a checkout
// in root's home, a test's temporary directory), in a folder of its own below /var/tmp that is the same each time.
func (p *Postgres) dataDir() (string, error) {
	ok, err := p.user.reaches(p.opts.Dir)
	if err != nil {
		return "", err
	}
	if ok {
		dir, err := filepath.EvalSymlinks(p.opts.Dir)
		if err != nil {
			return "", fmt.Errorf("resolve directory: %w", err)
		}
		return filepath.Join(dir, "data"), nil
	}
	sum := sha256.Sum256([]byte(p.opts.Dir))
	return filepath.Join("/var/tmp", "counterfoil-postgres-"+hex.EncodeToString(sum[:6])), nil
}

// initialise makes the cluster if it is not there, and writes its configuration.
func (p *Postgres) initialise(ctx context.Context) error {
	if err := os.Mkdir(p.data, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make data directory: %w", err)
	} else if err == nil {
		if err := p.user.own(p.data); err != nil {
			return err
		}
	}
	if err := p.checkOwner(); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(p.data, "PG_VERSION")); errors.Is(err, os.ErrNotExist) {
		if err := p.initdb(ctx); err != nil {
			return err
		}
	}

	var conf strings.Builder
	all := settings()
	maps.Copy(all, p.opts.Settings)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	method := "trust"
	if p.opts.Passwords {
		method = "scram-sha-256"
	}
	hba := "host all " + Superuser + " 127.0.0.1/32 trust\n" +
		"host replication " + Superuser + " 127.0.0.1/32 trust\n" +
		"host all all 127.0.0.1/32 " + method + "\n"
	return errors.Join(p.write("postgresql.conf", conf.String()), p.write("pg_hba.conf", hba))
}

// checkOwner refuses a data directory that somebody else made: the place in /var/tmp has a name that can be guessed.
func (p *Postgres) checkOwner() error {
	info, err := os.Lstat(p.data)
	if err != nil {
		return fmt.Errorf("look at data directory: %w", err)
	}
	want := uint32(os.Geteuid())
	if p.user != nil {
		want = p.user.uid
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || stat.Uid != want {
		return fmt.Errorf("%s is not a directory of user %d", p.data, want)
	}
	return nil
}

// initdb makes the cluster: UTF-8, and the C locale, so that order does not depend on the machine.
func (p *Postgres) initdb(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, filepath.Join(p.opts.Bin, "initdb"), "-D", p.data, "-U", Superuser,
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
	cmd.Dir, cmd.Env = "/", environment()
	cmd.SysProcAttr = attributes(p.user, 0)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLines(out, 10))
	}
	return nil
}

// write puts a configuration file into the cluster, readable by the server.
func (p *Postgres) write(name, content string) error {
	path := filepath.Join(p.data, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return p.user.own(path)
}

// freeSharedMemory removes the few bytes of System V memory that a killed postmaster leaves. A restart would
// do it too; this is for a server that is not started again.
func (p *Postgres) freeSharedMemory() {
	pidFile, err := os.ReadFile(filepath.Join(p.data, "postmaster.pid"))
	if err != nil {
		return // removed by an orderly end
	}
	// The seventh line holds the key and the id of the segment.
	lines := bytes.Split(pidFile, []byte("\n"))
	if len(lines) < 7 {
		return
	}
	if fields := bytes.Fields(lines[6]); len(fields) == 2 {
		_ = exec.Command("ipcrm", "-m", string(fields[1])).Run() // best effort: it may be gone
	}
}
