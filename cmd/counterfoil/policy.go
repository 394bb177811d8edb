// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

type policyCmd struct {
	Get policyGetCmd `cmd:"" help:"Show the login policy."`
	Set policySetCmd `cmd:"" help:"Change the login policy."`
}

// policyName is the name of the one policy.
const policyName = "loginPolicy"

func (a *app) policies() authv1.LoginPolicyServiceClient {
	return authv1.NewLoginPolicyServiceClient(a.conn(serviceAuth))
}

func showPolicy(a *app, p *authv1.LoginPolicy) error {
	return a.out.result(p,
		[2]string{"minimum password length", strconv.Itoa(int(p.GetMinPasswordLength()))},
		[2]string{"attempts until lock-out", strconv.Itoa(int(p.GetMaxFailedAttempts()))},
		[2]string{"lock-out", p.GetLockoutDuration().AsDuration().String()},
		[2]string{"session", p.GetSessionDuration().AsDuration().String()},
		[2]string{"allowed networks", or(strings.Join(p.GetAllowedNetworks(), ", "), "all")},
		[2]string{"etag", p.GetEtag()},
		[2]string{"changed", whenUTC(p.GetUpdateTime())},
	)
}

type policyGetCmd struct{}

// Help implements kong.HelpProvider.
func (policyGetCmd) Help() string {
	return examples("counterfoil policy get", "counterfoil policy get -o json | jq -r .etag")
}

// Run shows the policy.
func (policyGetCmd) Run(ctx context.Context, a *app) error {
	r, err := a.policies().GetLoginPolicy(ctx, &authv1.GetLoginPolicyRequest{Name: policyName})
	if err != nil {
		return err
	}
	return showPolicy(a, r.GetLoginPolicy())
}

type policySetCmd struct {
	MinPasswordLength *int32         `placeholder:"N" help:"Characters that a new password must have at least: 8 to 128."`
	MaxFailedAttempts *int32         `placeholder:"N" help:"Failed attempts in a row that lock an account: 1 to 100."`
	Lockout           *time.Duration `placeholder:"DURATION" help:"How long a locked account stays locked: 1s to 24h."`
	Session           *time.Duration `placeholder:"DURATION" help:"How long a session lives: 1m to 8760h."`
	AllowNetwork      []string       `xor:"networks" placeholder:"CIDR" help:"The networks to log in from, instead of those before. Keep your own among them."`
	AllowAnyNetwork   bool           `xor:"networks" help:"Allow logins from everywhere."`
	etagFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (policySetCmd) Help() string {
	return "What is not given stays as it is.\n\n" + examples(
		"counterfoil policy set --min-password-length 14 --lockout 15m",
		"counterfoil policy set --allow-network 10.0.0.0/8 --allow-network 127.0.0.0/8 --etag 3",
		"counterfoil policy set --allow-any-network")
}

// Run changes what was given.
func (c *policySetCmd) Run(ctx context.Context, a *app) error {
	change := &authv1.LoginPolicy{Name: policyName, Etag: c.Etag}
	var mask maskBuilder
	mask.number("min_password_length", c.MinPasswordLength, &change.MinPasswordLength)
	mask.number("max_failed_attempts", c.MaxFailedAttempts, &change.MaxFailedAttempts)
	if c.Lockout != nil {
		change.LockoutDuration = durationpb.New(*c.Lockout)
		mask.add("lockout_duration")
	}
	if c.Session != nil {
		change.SessionDuration = durationpb.New(*c.Session)
		mask.add("session_duration")
	}
	if len(c.AllowNetwork) > 0 || c.AllowAnyNetwork {
		change.AllowedNetworks = c.AllowNetwork
		mask.add("allowed_networks")
	}
	if mask.empty() {
		return usage("nothing to change: give at least one flag, such as --min-password-length")
	}
	r, err := a.policies().UpdateLoginPolicy(ctx, &authv1.UpdateLoginPolicyRequest{
		LoginPolicy: change, UpdateMask: mask.mask(), RequestId: c.id(a),
	})
	if err != nil {
		return err
	}
	return showPolicy(a, r.GetLoginPolicy())
}
