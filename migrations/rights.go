// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Roles makes the six roles of the server with their settings and corrects them if they differ. conn is a superuser's,
// connected to the database `postgres`, where its lock is. It may be called again, and by many processes at once. It
// sets no passwords: see SetPassword.
func Roles(ctx context.Context, conn *pgx.Conn) error {
	if err := script(ctx, conn, "roles.sql"); err != nil {
		return fmt.Errorf("make roles: %w", err)
	}
	return nil
}

// SetPassword sets the password of a role, encrypted on this side, so that no log of the server holds it.
func SetPassword(ctx context.Context, conn *pgx.Conn, role, password string) error {
	if password == "" {
		return fmt.Errorf("set password of %s: it is empty", role)
	}
	verifier, err := scramVerifier(password)
	if err != nil {
		return fmt.Errorf("set password of %s: %w", role, err)
	}
	if _, err := conn.Exec(ctx, "ALTER ROLE "+pgx.Identifier{role}.Sanitize()+" PASSWORD '"+verifier+"'"); err != nil {
		return fmt.Errorf("set password of %s: %w", role, err)
	}
	return nil
}

// CreateDatabase makes a database that owner's role owns. It is no error if it exists or is being made by another.
func CreateDatabase(ctx context.Context, conn *pgx.Conn, owner, name string) error {
	var exists bool
	err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = $1)", name).Scan(&exists)
	if err != nil {
		return fmt.Errorf("look for database %s: %w", name, err)
	}
	if exists {
		return nil
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" OWNER "+pgx.Identifier{OwnerRole(owner)}.Sanitize())
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "42P04" || pgErr.Code == "23505") {
		return nil // another process was faster
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Grants gives the service's role what owner's grants.sql says in the database of conn, and takes everything else
// away. conn is the owner's role or a superuser. One transaction: a running service never sees less than before or
// after. It must follow each migration, each CREATE DATABASE and each clone.
func Grants(ctx context.Context, conn *pgx.Conn, owner string) error {
	if _, err := Files(owner); err != nil {
		return err
	}
	if err := script(ctx, conn, owner+"/grants.sql"); err != nil {
		return fmt.Errorf("apply grants of %s: %w", owner, err)
	}
	return nil
}

// Setup makes a database of owner from nothing: roles, database, schema and rights. url is a superuser's, to any
// database of the server. It may be called again.
func Setup(ctx context.Context, url, owner, database string) error {
	dir, err := Files(owner)
	if err != nil {
		return err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("parse superuser url: %w", err)
	}
	config.Database = "postgres"
	err = withConn(ctx, config, func(conn *pgx.Conn) error {
		if err := Roles(ctx, conn); err != nil {
			return err
		}
		return CreateDatabase(ctx, conn, owner, database)
	})
	if err != nil {
		return err
	}
	config.Database = database
	if err := apply(ctx, config, owner, dir); err != nil {
		return err
	}
	return withConn(ctx, config, func(conn *pgx.Conn) error { return Grants(ctx, conn, owner) })
}

// script runs a whole file as one transaction in one round trip.
func script(ctx context.Context, conn *pgx.Conn, name string) error {
	text, err := files.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	// Several statements in one simple message are one implicit transaction.
	if _, err := conn.PgConn().Exec(ctx, string(text)).ReadAll(); err != nil {
		return fmt.Errorf("run %s: %w", name, err)
	}
	return nil
}

// withConn connects, calls work and closes the connection.
func withConn(ctx context.Context, config *pgx.ConnConfig, work func(*pgx.Conn) error) error {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return errors.Join(work(conn), conn.Close(context.WithoutCancel(ctx)))
}
