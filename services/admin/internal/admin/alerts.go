// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// Alert is what a security rule concluded.
type Alert = store.Alert

// AlertCursor is the last alert of a page; the zero value starts at the newest.
type AlertCursor = store.AlertCursor

// Alerts returns the newest alerts after the cursor, newest first; rule "" stands for any.
func (s *Service) Alerts(ctx context.Context, rule string, after AlertCursor, limit int) ([]Alert, error) {
	return store.New(s.db).ListAlerts(ctx, rule, after, limit)
}
