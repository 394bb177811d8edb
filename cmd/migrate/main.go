// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command migrate brings the database of one owner to the newest schema and rights.
//
//	migrate -owner auth [up]     apply what is pending, then the rights (DATABASE_URL of the owner's role)
//	migrate -owner auth status   list the migrations and whether the database has them
//	migrate -owner auth init     make roles, their passwords and the database first (SUPERUSER_URL), then as up
//
// It runs as a job of its own before new code starts; services have no right to change the schema. Several may run at
// once, and one that was killed leaves nothing that the next one waits for. There is no way down: a released schema
// goes forward only.
//
// Environment: DATABASE_URL names the owner's role (up, status). SUPERUSER_URL names a superuser (init); the database
// made is DATABASE_NAME, by default the owner's name. OWNER_PASSWORD and SERVICE_PASSWORD, where set, become the
// passwords of the two roles (init). Each can be given as a file: NAME_FILE.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/migrations"
)

// environment is everything the command reads besides its arguments.
type environment struct {
	DatabaseURL     config.Secret `env:"DATABASE_URL"     doc:"The owner's role (up, status)."`
	SuperuserURL    config.Secret `env:"SUPERUSER_URL"    doc:"A superuser, any database of the server (init)."`
	DatabaseName    string        `env:"DATABASE_NAME"    doc:"The database that init makes; the owner's name if empty."`
	OwnerPassword   config.Secret `env:"OWNER_PASSWORD"   doc:"Password that init gives the owner's role; unchanged if empty."`
	ServicePassword config.Secret `env:"SERVICE_PASSWORD" doc:"Password that init gives the service's role; unchanged if empty."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "migrate: %v\n", err)
		os.Exit(1)
	}
}

// run does what args ask.
func run(ctx context.Context, args []string, getenv func(string) string, stdout io.Writer) error {
	flags := flag.NewFlagSet("migrate", flag.ContinueOnError)
	owner := flags.String("owner", "", "auth, app or admin")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("read arguments: %w", err)
	}
	if _, err := migrations.Files(*owner); err != nil {
		return fmt.Errorf("-owner: %w", err)
	}
	var env environment
	if err := config.Load(getenv, &env); err != nil {
		return fmt.Errorf("read environment: %w", err)
	}
	if flags.NArg() > 1 {
		return fmt.Errorf("one command at a time, not %q", flags.Args())
	}
	switch command := flags.Arg(0); command {
	case "", "up":
		return up(ctx, env, *owner)
	case "status":
		return status(ctx, env, *owner, stdout)
	case "init":
		return initialise(ctx, env, *owner)
	default:
		return fmt.Errorf("unknown command %q: up, status or init", command)
	}
}

// up applies what is pending and the rights, as the owner's role.
func up(ctx context.Context, env environment, owner string) error {
	if env.DatabaseURL == "" {
		return errors.New("DATABASE_URL is not set")
	}
	if err := migrations.Apply(ctx, env.DatabaseURL.Reveal(), owner); err != nil {
		return err
	}
	return withConn(ctx, env.DatabaseURL, func(conn *pgx.Conn) error { return migrations.Grants(ctx, conn, owner) })
}

// status prints a line for each migration.
func status(ctx context.Context, env environment, owner string, stdout io.Writer) error {
	if env.DatabaseURL == "" {
		return errors.New("DATABASE_URL is not set")
	}
	states, err := migrations.Status(ctx, env.DatabaseURL.Reveal(), owner)
	if err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("FILE\tAPPLIED\n")
	for _, s := range states {
		applied := "pending"
		if s.Applied {
			applied = s.AppliedAt.UTC().Format("2006-01-02T15:04:05Z")
		}
		text.WriteString(s.File + "\t" + applied + "\n")
	}
	table := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	_, err = io.WriteString(table, text.String())
	if err := errors.Join(err, table.Flush()); err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	return nil
}

// initialise makes everything from an empty server, as a superuser.
func initialise(ctx context.Context, env environment, owner string) error {
	if env.SuperuserURL == "" {
		return errors.New("SUPERUSER_URL is not set")
	}
	database := env.DatabaseName
	if database == "" {
		database = owner
	}
	if err := migrations.Setup(ctx, env.SuperuserURL.Reveal(), owner, database); err != nil {
		return err
	}
	return withConn(ctx, env.SuperuserURL, func(conn *pgx.Conn) error {
		for role, password := range map[string]config.Secret{
			migrations.OwnerRole(owner):   env.OwnerPassword,
			migrations.ServiceRole(owner): env.ServicePassword,
		} {
			if password == "" {
				continue
			}
			if err := migrations.SetPassword(ctx, conn, role, password.Reveal()); err != nil {
				return err
			}
		}
		return nil
	})
}

// withConn connects, calls work and closes the connection.
func withConn(ctx context.Context, url config.Secret, work func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url.Reveal())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return errors.Join(work(conn), conn.Close(context.WithoutCancel(ctx)))
}
