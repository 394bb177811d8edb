// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// MissingError says that a program is not on this machine and could not be installed.
type MissingError struct {
	// Program is what was looked for, such as "redis-server".
	Program string
	// Package is Debian's package that holds it.
	Package string
	// Cause says why it was not installed: not root, not Debian, or apt-get's own error.
	Cause error
}

// Error says what is missing and the command that brings it.
func (e *MissingError) Error() string {
	return fmt.Sprintf("%s was not found and not installed (%v); install it with: sudo apt-get update && sudo apt-get install %s (or your system's package of it)",
		e.Program, e.Cause, e.Package)
}

// Unwrap gives the cause.
func (e *MissingError) Unwrap() error { return e.Cause }

// errNotFound says that a look-up found nothing; Find… turn it into a MissingError.
var errNotFound = errors.New("not found")

// FindPostgres returns the folder of Postgres' programs (postgres, initdb, pg_dump, …), installing the package
// if it must and may. Debian's versioned folders come first, highest version first: what lies on PATH can be a
// wrapper that picks a version or a user of its own. The error is a *MissingError.
func FindPostgres(ctx context.Context) (string, error) {
	return findOrInstall(ctx, "postgres", "postgresql", lookForPostgres)
}

// FindRedis returns the path of redis-server, installing the package if it must and may. The error is a
// *MissingError.
func FindRedis(ctx context.Context) (string, error) {
	return findOrInstall(ctx, "redis-server", "redis-server", func(context.Context) (string, error) {
		return lookUp("redis-server", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")
	})
}

// FindGCC returns the path of the C compiler that the race detector needs, installing Debian's gcc if it must and
// may. The error is a *MissingError.
func FindGCC(ctx context.Context) (string, error) {
	return findOrInstall(ctx, "gcc", "gcc libc6-dev", func(context.Context) (string, error) {
		return lookUp("gcc", "/usr/bin", "/usr/local/bin")
	})
}

// findOrInstall looks, installs if that found nothing, and looks again.
func findOrInstall(ctx context.Context, program, pkg string, look func(context.Context) (string, error)) (string, error) {
	path, err := look(ctx)
	if err == nil {
		return path, nil
	}
	if err := install(ctx, strings.Fields(pkg), func() bool { _, err := look(ctx); return err == nil }); err != nil {
		return "", &MissingError{Program: program, Package: pkg, Cause: err}
	}
	if path, err = look(ctx); err != nil {
		return "", &MissingError{Program: program, Package: pkg, Cause: err}
	}
	return path, nil
}

// lookForPostgres searches Debian's folders, then what pg_config names, then the folders of other systems.
func lookForPostgres(ctx context.Context) (string, error) {
	folders, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", fmt.Errorf("list Postgres versions: %w", err)
	}
	sort.SliceStable(folders, func(i, j int) bool { return version(folders[i]) > version(folders[j]) })
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		folders = append(folders, strings.TrimSpace(string(out)))
	}
	folders = append(folders, "/usr/pgsql/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql/bin")
	if path, err := exec.LookPath("postgres"); err == nil {
		folders = append(folders, filepath.Dir(path))
	}
	for _, dir := range folders {
		if executable(filepath.Join(dir, "postgres")) && executable(filepath.Join(dir, "initdb")) {
			return dir, nil
		}
	}
	return "", errNotFound
}

// version takes 15 out of /usr/lib/postgresql/15/bin.
func version(bin string) float64 {
	v, err := strconv.ParseFloat(filepath.Base(filepath.Dir(bin)), 64)
	if err != nil {
		return 0
	}
	return v
}

// lookUp searches PATH and then the folders, which a daemon's short PATH may lack.
func lookUp(program string, folders ...string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	for _, dir := range folders {
		if path := filepath.Join(dir, program); executable(path) {
			return path, nil
		}
	}
	return "", errNotFound
}

// executable tells whether path is a file that somebody may execute.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}
