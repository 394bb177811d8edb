// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/deploy/compose"
	"github.com/counterfoil/counterfoil/internal/devserver"
	"github.com/counterfoil/counterfoil/migrations"
)

// secrets are made anew for each start: nothing that outlives a System knows them.
type secrets struct {
	database, pageToken string
	redis, mac          map[string]string // by service
}

// redisRoot is the broker's user that may do everything.
const redisRoot = "root"

func newSecrets() secrets {
	s := secrets{database: random(), pageToken: random(), redis: map[string]string{redisRoot: random()}, mac: map[string]string{}}
	for _, name := range Services() {
		s.redis[name] = random()
		s.mac[name] = name + "-1:" + random()
	}
	return s
}

// random returns 32 random bytes in hexadecimal.
func random() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// startPostgres starts one server, or one for each database.
func (s *System) startPostgres(ctx context.Context) error {
	settings := map[string]string{"max_prepared_transactions": "0"}
	maps.Copy(settings, s.opts.Postgres)
	for _, owner := range Services() {
		folder := "postgres"
		if s.opts.Clusters {
			folder += "-" + owner
		} else if owner != Services()[0] {
			s.servers[owner] = s.servers[Services()[0]]
			continue
		}
		server, err := devserver.StartPostgres(ctx, devserver.PostgresOptions{
			Dir: filepath.Join(s.Dir, folder), Settings: settings, Passwords: true,
		})
		if err != nil {
			return err
		}
		s.servers[owner] = server
	}
	return nil
}

// startRedis starts the broker with the design's settings.
func (s *System) startRedis(ctx context.Context) error {
	settings := map[string]string{"appendonly": "yes", "appendfsync": "always", "proto-max-bulk-len": "2mb"}
	maps.Copy(settings, s.opts.Redis)
	var err error
	s.Redis, err = devserver.StartRedis(ctx, devserver.RedisOptions{
		Dir: filepath.Join(s.Dir, "redis"), Settings: settings, ACL: accessList(s.secrets.redis),
	})
	if err != nil {
		return err
	}
	s.RedisClient = redis.NewClient(&redis.Options{
		Addr: s.Redis.Addr(), Username: redisRoot, Password: s.secrets.redis[redisRoot], MaxRetries: -1,
	})
	return nil
}

// accessList is the deployment's, with a user more who may do everything.
func accessList(passwords map[string]string) []string {
	return append(compose.AccessList(passwords), "user "+redisRoot+" on >"+passwords[redisRoot]+" ~* &* +@all")
}

// migrate makes roles, databases, schema and rights as cmd/migrate does, and opens the superuser's pools.
func (s *System) migrate(ctx context.Context) error {
	for _, owner := range Services() {
		server := s.servers[owner]
		err := runProgram(ctx, s.Bin("migrate"), map[string]string{
			"SUPERUSER_URL":  server.URL("postgres", devserver.Superuser),
			"OWNER_PASSWORD": s.secrets.database, "SERVICE_PASSWORD": s.secrets.database,
		}, "-owner", owner, "init")
		if err != nil {
			return err
		}
		config, err := pgxpool.ParseConfig(server.URL(owner, devserver.Superuser))
		if err != nil {
			return fmt.Errorf("parse url: %w", err)
		}
		config.MaxConns = 8
		config.ConnConfig.RuntimeParams["application_name"] = "harness"
		if s.pools[owner], err = pgxpool.NewWithConfig(ctx, config); err != nil {
			return fmt.Errorf("open database: %w", err)
		}
		if err := s.scaleRole(ctx, owner); err != nil {
			return err
		}
	}
	return nil
}

// scaleRole divides the time-outs of a service's role like every other time.
func (s *System) scaleRole(ctx context.Context, owner string) error {
	if s.opts.TimeScale == 1 {
		return nil
	}
	role := pgx.Identifier{migrations.ServiceRole(owner)}.Sanitize()
	for setting, full := range map[string]time.Duration{
		"idle_in_transaction_session_timeout": 20 * time.Second,
		"lock_timeout":                        5 * time.Second,
	} {
		scaled := max(1, int64(float64(full.Milliseconds())/s.opts.TimeScale))
		if _, err := s.pools[owner].Exec(ctx, fmt.Sprintf("ALTER ROLE %s SET %s = '%dms'", role, setting, scaled)); err != nil {
			return fmt.Errorf("scale %s: %w", setting, err)
		}
	}
	return nil
}

// WipeRedis deletes everything that the broker holds, as if it had been replaced by an empty one.
func (s *System) WipeRedis(ctx context.Context) error {
	if err := s.RedisClient.FlushAll(ctx).Err(); err != nil {
		return fmt.Errorf("wipe redis: %w", err)
	}
	return nil
}

// RestartPostgres kills the server that holds the database of owner and starts it again; pools of the harness recover by
// themselves.
func (s *System) RestartPostgres(ctx context.Context, owner string) error {
	s.servers[owner].Kill()
	if err := s.servers[owner].Start(ctx); err != nil {
		return err
	}
	return Poll(ctx, func() error {
		err := s.pools[owner].Ping(ctx)
		if err != nil {
			return errors.Join(errors.New("not back yet"), err)
		}
		return nil
	})
}
