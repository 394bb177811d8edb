// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
)

type alertsCmd struct {
	List alertsListCmd `cmd:"" help:"List security alerts, newest first."`
}

type alertsListCmd struct {
	Rule string `placeholder:"RULE" help:"Only repeated_login_failures, login_policy_weakened or privileged_role_granted."`
	pageFlags
}

// Help implements kong.HelpProvider.
func (alertsListCmd) Help() string {
	return examples("counterfoil alerts list", "counterfoil alerts list --rule repeated_login_failures -o json")
}

// Run lists the alerts.
func (c *alertsListCmd) Run(ctx context.Context, a *app) error {
	client := adminv1.NewSecurityAlertServiceClient(a.conn(serviceAdmin))
	return list[*adminv1.SecurityAlert]{
		what:   "alerts",
		header: []string{"RAISED (UTC)", "SEVERITY", "RULE", "ABOUT", "EVENTS", "LAST EVENT"},
		row: func(s *adminv1.SecurityAlert) []string {
			return []string{
				when(s.GetRaiseTime()), word(s.GetSeverity(), "ALERT_SEVERITY_"), s.GetRule(), s.GetSubject(),
				strconv.Itoa(int(s.GetEventCount())), s.GetLastEvent(),
			}
		},
		get: func(ctx context.Context, size int32, token string) ([]*adminv1.SecurityAlert, string, error) {
			r, err := client.ListSecurityAlerts(ctx, &adminv1.ListSecurityAlertsRequest{PageSize: size, PageToken: token, Rule: c.Rule})
			return r.GetSecurityAlerts(), r.GetNextPageToken(), err
		},
	}.show(ctx, a, c.pageFlags)
}
