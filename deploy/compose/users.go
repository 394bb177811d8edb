// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package compose is what Docker Compose starts. To Go it gives the broker's access list, so that tests run under the rights
// of the deployment.
package compose

import (
	_ "embed"
	"strings"
)

//go:embed users.acl
var users string

// AccessList returns the lines of the broker's access list with each service's password in its place, as secrets.sh writes
// them.
func AccessList(passwords map[string]string) []string {
	var replace []string
	for service, password := range passwords {
		replace = append(replace, strings.ToUpper(service)+"_PASSWORD", password)
	}
	return strings.Split(strings.TrimSpace(strings.NewReplacer(replace...).Replace(users)), "\n")
}
