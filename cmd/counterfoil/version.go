// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "runtime"

type versionCmd struct{}

// Help implements kong.HelpProvider.
func (versionCmd) Help() string {
	return examples("counterfoil version", "counterfoil version -o json")
}

// Run prints the version.
func (versionCmd) Run(a *app) error {
	if a.out.json {
		return a.out.value(map[string]string{"version": buildVersion(), "go": runtime.Version()})
	}
	return a.out.text("counterfoil " + buildVersion() + " (" + runtime.Version() + ")\n")
}
