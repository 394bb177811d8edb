// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	"github.com/counterfoil/counterfoil/test/harness"
)

// WriteAlerts reads the security alerts raised since begin through Admin's API, prints them, and returns how many there are.
func (t *Trail) WriteAlerts(ctx context.Context, w io.Writer, admin *grpc.ClientConn, token string, begin time.Time) (int, error) {
	answer, err := adminv1.NewSecurityAlertServiceClient(admin).ListSecurityAlerts(harness.WithToken(ctx, token),
		&adminv1.ListSecurityAlertsRequest{PageSize: 1000})
	if err != nil {
		return 0, fmt.Errorf("list security alerts: %w", err)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	Printf(table, "  RAISED (UTC)\tSEVERITY\tRULE\tABOUT\tEVENTS\tFIRST\tLAST\n")
	count := 0
	for _, a := range slices.Backward(answer.GetSecurityAlerts()) { // oldest first
		if a.GetRaiseTime().AsTime().Before(begin) {
			continue
		}
		count++
		about := t.name(a.GetSubject())
		if strings.HasPrefix(a.GetRule(), "login_policy") {
			about = "the login policy"
		}
		Printf(table, "  %s\t%s\t%s\t%s\t%d\t%s\t%s\n", clock(a.GetRaiseTime().AsTime()), strings.TrimPrefix(a.GetSeverity().String(), "ALERT_SEVERITY_"),
			clean(a.GetRule()), about, a.GetEventCount(), clock(a.GetFirstOccurTime().AsTime()), clock(a.GetLastOccurTime().AsTime()))
	}
	return count, table.Flush()
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
