// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"slices"
	"strings"

	"google.golang.org/grpc"
)

// Rule says who may call a method. The zero value lets nobody in.
type Rule struct {
	access access
	roles  []string
}

type access int

const (
	denied access = iota
	public
	authenticated
	withRole
)

// Public lets everybody call. A valid token that comes along still gives a Principal; an invalid one is ignored.
func Public() Rule { return Rule{access: public} }

// Authenticated lets everybody call who has a valid token.
func Authenticated() Rule { return Rule{access: authenticated} }

// AnyRole lets callers in who have at least one of roles. Without roles it lets nobody in.
func AnyRole(roles ...string) Rule { return Rule{access: withRole, roles: slices.Clone(roles)} }

// Policy is the table from full method name ("/package.Service/Method") to rule. What it does not name is refused.
type Policy map[string]Rule

// Missing lists the methods in services, as grpc.Server.GetServiceInfo gives them, that p does not name, sorted. Those
// of gRPC itself (health, reflection) are left out. It is for a test: a forgotten method is refused, not open.
func (p Policy) Missing(services map[string]grpc.ServiceInfo) []string {
	var missing []string
	for name, info := range services {
		if strings.HasPrefix(name, "grpc.") {
			continue
		}
		for _, m := range info.Methods {
			full := "/" + name + "/" + m.Name
			if _, ok := p[full]; !ok {
				missing = append(missing, full)
			}
		}
	}
	slices.Sort(missing)
	return missing
}
