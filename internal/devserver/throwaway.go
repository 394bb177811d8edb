// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"errors"
	"path/filepath"
	"time"
)

// EnvTestPostgres names the environment variable that holds the superuser URL of the Postgres server that tests shall
// use. Without it each test process starts one of its own.
const EnvTestPostgres = "COUNTERFOIL_TEST_POSTGRES"

// StartThrowaway starts a Postgres whose data is worth nothing: in a scratch directory and without fsync, so that a
// database per test is cheap. Everything visible to SQL is as by default; synchronous_commit stays on. stop ends the
// server and deletes its data; if it is not called, both happen when this process ends.
func StartThrowaway(ctx context.Context) (p *Postgres, stop func() error, err error) {
	scratch, err := NewScratch("test")
	if err != nil {
		return nil, nil, err
	}
	p, err = StartPostgres(ctx, PostgresOptions{
		Dir: filepath.Join(scratch.Dir, "postgres"),
		Settings: map[string]string{
			"fsync":            "off",
			"full_page_writes": "off",
			"max_connections":  "500",
			// A database is made and dropped for each test: checkpoints should not be what tests wait for.
			"checkpoint_timeout": "30min",
		},
	})
	if err != nil {
		return nil, nil, errors.Join(err, scratch.Close())
	}
	return p, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return errors.Join(p.Stop(ctx), scratch.Close())
	}, nil
}
