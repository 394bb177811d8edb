// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/counterfoil/counterfoil/test/demo/scenario"
)

// tracer follows an event and returns what a person would see.
type tracer func(ctx context.Context, event string) (string, error)

// follow logs the operator in with the CLI and returns what traces events as they do.
func (t *target) follow(ctx context.Context, who *scenario.Person, script *scenario.Script) (tracer, error) {
	correlation, done := script.Outside("counterfoil.auth.v1.AuthService/Login", "auth.login.succeeded")
	_, err := t.counterfoil(ctx, correlation, who.Password+"\n", "login", who.Email,
		"--auth", t.addresses["auth"], "--app", t.addresses["app"], "--admin", t.addresses["admin"])
	done(err)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, event string) (string, error) {
		return t.counterfoil(ctx, "trace-"+event, "", "trace", event)
	}, nil
}

// counterfoil runs the operator's CLI and returns what it printed.
func (t *target) counterfoil(ctx context.Context, correlation, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, t.cli, append([]string{
		"--config", filepath.Join(t.folder, "login.json"), "--correlation-id", correlation,
	}, args...)...)
	cmd.Env = []string{"HOME=" + t.folder}
	cmd.Stdin = strings.NewReader(stdin)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("counterfoil %s: %w: %s", args[0], err, strings.TrimSpace(problems.String()))
	}
	return out.String(), nil
}
