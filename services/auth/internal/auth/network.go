// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"net/netip"
	"slices"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// networkAllowed says whether the policy lets the caller's address log in and refresh. An address that is not known is
// in no network.
func networkAllowed(ctx context.Context, p store.LoginPolicy) bool {
	if len(p.AllowedNetworks) == 0 {
		return true
	}
	address, err := netip.ParseAddr(grpcserver.RequestInfo(ctx).ClientAddress)
	if err != nil {
		return false
	}
	address = address.Unmap().WithZone("")
	return slices.ContainsFunc(p.AllowedNetworks, func(n netip.Prefix) bool { return n.Contains(address) })
}

func networkNotAllowed() error {
	return apperr.PermissionDenied(reasonNetwork, "the login policy does not allow the network that the call comes from")
}
