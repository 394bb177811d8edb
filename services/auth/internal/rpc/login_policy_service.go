// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/counterfoil/counterfoil/internal/apperr"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
)

type loginPolicyServer struct {
	authv1.UnimplementedLoginPolicyServiceServer
	api
}

// GetLoginPolicy implements LoginPolicyService.
func (s loginPolicyServer) GetLoginPolicy(ctx context.Context, _ *authv1.GetLoginPolicyRequest) (*authv1.GetLoginPolicyResponse, error) {
	policy, err := s.auth.Read().LoginPolicy(ctx)
	if err != nil {
		return nil, err
	}
	return &authv1.GetLoginPolicyResponse{LoginPolicy: policyMessage(policy)}, nil
}

// UpdateLoginPolicy implements LoginPolicyService.
func (s loginPolicyServer) UpdateLoginPolicy(ctx context.Context, r *authv1.UpdateLoginPolicyRequest) (*authv1.UpdateLoginPolicyResponse, error) {
	key, err := s.key(ctx, authv1.LoginPolicyService_UpdateLoginPolicy_FullMethodName, r)
	if err != nil {
		return nil, err
	}
	change, err := policyChange(r.GetLoginPolicy(), r.GetUpdateMask().GetPaths())
	if err != nil {
		return nil, err
	}
	policy, err := s.auth.UpdateLoginPolicy(ctx, key, r.GetLoginPolicy().GetEtag(), change)
	if err != nil {
		return nil, err
	}
	return &authv1.UpdateLoginPolicyResponse{LoginPolicy: policyMessage(policy)}, nil
}

// policyChange reads the fields that a mask names (AIP-134): none means those that are not empty.
func policyChange(p *authv1.LoginPolicy, mask []string) (auth.PolicyChange, error) {
	var c auth.PolicyChange
	if named(mask, "min_password_length", p.GetMinPasswordLength() != 0) {
		c.MinPasswordLength = number(p.GetMinPasswordLength())
	}
	if named(mask, "max_failed_attempts", p.GetMaxFailedAttempts() != 0) {
		c.MaxFailedAttempts = number(p.GetMaxFailedAttempts())
	}
	if named(mask, "lockout_duration", p.GetLockoutDuration() != nil) {
		c.Lockout = duration(p.GetLockoutDuration())
	}
	if named(mask, "session_duration", p.GetSessionDuration() != nil) {
		c.SessionLifetime = duration(p.GetSessionDuration())
	}
	if named(mask, "allowed_networks", len(p.GetAllowedNetworks()) > 0) {
		networks := []netip.Prefix{}
		for _, text := range p.GetAllowedNetworks() {
			n, err := netip.ParsePrefix(text)
			if err != nil {
				return c, apperr.InvalidField("login_policy.allowed_networks", "must be networks such as 10.0.0.0/8")
			}
			networks = append(networks, n.Masked())
		}
		c.AllowedNetworks = &networks
	}
	return c, nil
}

func number(n int32) *int {
	i := int(n)
	return &i
}

func duration(d *durationpb.Duration) *time.Duration {
	v := d.AsDuration() // of nil: zero, which the operation refuses
	return &v
}
