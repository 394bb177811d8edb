// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package testdb

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/migrations"
)

// shared is the server of this process. It is the one package variable here: tests of a package have nothing else in
// common that could own it.
var shared = sync.OnceValues(func() (*server, error) {
	super := os.Getenv(devserver.EnvTestPostgres)
	if super == "" {
		// Never stopped: it ends with this process (see package devserver), and only then are all tests done.
		p, _, err := devserver.StartThrowaway(context.Background())
		if err != nil {
			return nil, err
		}
		super = p.URL("postgres", devserver.Superuser)
	}
	return newServer(super)
})

// server is a Postgres server on which databases are made.
type server struct {
	super     *url.URL
	roles     func() error
	templates map[Schema]func() (string, error)
}

// newServer prepares nothing yet: roles and templates are made when first asked for.
func newServer(super string) (*server, error) {
	u, err := url.Parse(super)
	if err != nil || u.User == nil {
		return nil, fmt.Errorf("%s must be a URL with a user", devserver.EnvTestPostgres)
	}
	u.Path = "/postgres"
	s := &server{super: u, templates: make(map[Schema]func() (string, error))}
	s.roles = sync.OnceValue(func() error { return s.connected(makeRoles) })
	for _, schema := range []Schema{Auth, App, Admin} {
		s.templates[schema] = sync.OnceValues(func() (string, error) { return s.makeTemplate(schema) })
	}
	return s, nil
}

// requireServer returns the shared server or ends the test.
func requireServer(t testing.TB) *server {
	t.Helper()
	requireServers(t)
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// connected calls work with a connection of the superuser to the database postgres.
func (s *server) connected(work func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.super.String())
	if err != nil {
		return fmt.Errorf("connect to test server: %w", err)
	}
	return errors.Join(work(ctx, conn), conn.Close(ctx))
}

// makeRoles makes the cluster's roles and gives those without a password ours, for a server that asks for one.
func makeRoles(ctx context.Context, conn *pgx.Conn) error {
	if err := migrations.Roles(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtext('counterfoil test passwords'))"); err != nil {
		return fmt.Errorf("lock roles: %w", err)
	}
	for _, owner := range migrations.Owners() {
		for _, role := range []string{migrations.OwnerRole(owner), migrations.ServiceRole(owner)} {
			var has bool
			err := conn.QueryRow(ctx, "SELECT rolpassword IS NOT NULL FROM pg_authid WHERE rolname = $1", role).Scan(&has)
			if err != nil {
				return fmt.Errorf("look for password: %w", err)
			}
			if has {
				continue
			}
			if err := migrations.SetPassword(ctx, conn, role, password); err != nil {
				return err
			}
		}
	}
	return nil // the lock goes with the connection
}

// template returns the name of the schema's migrated template.
func (s *server) template(schema Schema) (string, error) {
	of, ok := s.templates[schema]
	if !ok {
		return "", fmt.Errorf("no schema %q", schema)
	}
	return of()
}

// makeTemplate migrates a database once for all processes that use the server. Its name holds a hash of the migrations,
// so a changed migration makes another. It counts as made when it is marked as a template: what a killed process left
// half done is made again.
func (s *server) makeTemplate(schema Schema) (string, error) {
	if err := s.roles(); err != nil {
		return "", err
	}
	hash, err := hashFiles(schema)
	if err != nil {
		return "", err
	}
	name := "template_" + string(schema) + "_" + hash
	quoted := pgx.Identifier{name}.Sanitize()
	err = s.connected(func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", name); err != nil {
			return fmt.Errorf("lock template: %w", err)
		}
		var made bool
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", name).Scan(&made)
		if err != nil || made {
			return err
		}
		if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+quoted+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("drop half-made template: %w", err)
		}
		if err := migrations.Setup(ctx, s.super.String(), string(schema), name); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "ALTER DATABASE "+quoted+" IS_TEMPLATE true"); err != nil {
			return fmt.Errorf("mark template: %w", err)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("make template of %s: %w", schema, err)
	}
	return name, nil
}

// hashFiles is the first half of a SHA-256 over the schema's migrations and grants, names included.
func hashFiles(schema Schema) (string, error) {
	dir, err := migrations.Files(string(schema))
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	err = fs.WalkDir(dir, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(dir, path)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(hash, "%s %d\n%s", path, len(text), text) // a hash takes everything
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("hash migrations of %s: %w", schema, err)
	}
	return hex.EncodeToString(hash.Sum(nil)[:8]), nil
}

// open makes the test's pools. They connect when first used, so the database may be made afterwards.
func (s *server) open(t testing.TB, schema Schema, name string) *DB {
	t.Helper()
	db := &DB{Name: name, Schema: schema, server: s.super}
	pool := func(role string) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(db.URL(role))
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns = poolSize
		config.ConnConfig.RuntimeParams["application_name"] = "testdb"
		p, err := pgxpool.NewWithConfig(context.Background(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	db.Owner = pool(migrations.OwnerRole(string(schema)))
	db.Service = pool(migrations.ServiceRole(string(schema)))
	db.Super = pool(s.super.User.Username())
	return db
}

// freshName is a name that no other test has.
func freshName(schema Schema) string {
	return "test_" + string(schema) + "_" + strings.ToLower(rand.Text())
}

// create makes the database and drops it when the test ends.
func (s *server) create(t testing.TB, db *DB, from string) {
	t.Helper()
	quoted := pgx.Identifier{db.Name}.Sanitize()
	owner := pgx.Identifier{migrations.OwnerRole(string(db.Schema))}.Sanitize()
	err := s.connected(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+quoted+" OWNER "+owner+" "+from)
		return err
	})
	if err != nil {
		t.Fatalf("create database: %v", err)
	}
	t.Cleanup(func() {
		for _, pool := range []*pgxpool.Pool{db.Owner, db.Service, db.Super} {
			pool.Close()
		}
		err := s.connected(func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+quoted+" WITH (FORCE)")
			return err
		})
		if err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
}
