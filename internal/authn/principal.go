// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package authn makes and checks short-lived access tokens (JWT, EdDSA over Ed25519) and decides, per gRPC method, who
// may call it.
//
// Auth signs and publishes its public keys as a JWKS file; every service verifies offline by that file. A method that
// the policy does not name is refused. The package does not revoke: a token is good until it expires, unless a service
// adds a check of its own.
package authn

import (
	"context"
	"slices"
)

// Principal is an authenticated caller, as the token states it.
type Principal struct {
	UserID      string
	SessionID   string
	DisplayName string
	Roles       []string
}

// HasRole says whether p has at least one of roles.
func (p Principal) HasRole(roles ...string) bool {
	return slices.ContainsFunc(roles, func(role string) bool { return slices.Contains(p.Roles, role) })
}

type principalKey struct{}

// WithPrincipal returns ctx with p as the caller.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the caller; false means that the call is anonymous.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}
