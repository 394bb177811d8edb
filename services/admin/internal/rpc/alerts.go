// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/pagetoken"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
)

type alertServer struct {
	adminv1.UnimplementedSecurityAlertServiceServer
	service *admin.Service
	tokens  *pagetoken.Codec
}

// alertCursor is the last alert of a page.
type alertCursor struct {
	RaiseTime time.Time `json:"t"`
	ID        uuid.UUID `json:"i"`
}

// ListSecurityAlerts serves a page of alerts.
func (s *alertServer) ListSecurityAlerts(ctx context.Context, r *adminv1.ListSecurityAlertsRequest) (*adminv1.ListSecurityAlertsResponse, error) {
	size, err := pagetoken.PageSize(r.GetPageSize(), admin.DefaultPageSize, admin.MaxPageSize)
	if err != nil {
		return nil, err
	}
	question := pagetoken.Binding{Method: adminv1.SecurityAlertService_ListSecurityAlerts_FullMethodName, Filter: r.GetRule()}
	var cursor alertCursor
	if _, err := s.tokens.Open(question, r.GetPageToken(), &cursor); err != nil {
		return nil, err
	}
	alerts, err := s.service.Alerts(ctx, r.GetRule(), admin.AlertCursor(cursor), size)
	if err != nil {
		return nil, err
	}
	page := &adminv1.ListSecurityAlertsResponse{SecurityAlerts: make([]*adminv1.SecurityAlert, len(alerts))}
	for i, a := range alerts {
		page.SecurityAlerts[i] = &adminv1.SecurityAlert{
			Name:           "securityAlerts/" + a.ID.String(),
			Rule:           a.Rule,
			Severity:       adminv1.AlertSeverity(adminv1.AlertSeverity_value["ALERT_SEVERITY_"+a.Severity]),
			Subject:        a.Subject,
			FirstEvent:     auditLogPrefix + a.FirstEventID.String(),
			LastEvent:      auditLogPrefix + a.LastEventID.String(),
			EventCount:     a.EventCount,
			FirstOccurTime: timestamp(a.FirstOccurTime),
			LastOccurTime:  timestamp(a.LastOccurTime),
			RaiseTime:      timestamp(a.RaiseTime),
		}
	}
	if len(alerts) == size {
		last := alerts[size-1]
		page.NextPageToken, err = s.tokens.Seal(question, alertCursor{RaiseTime: last.RaiseTime, ID: last.ID})
	}
	return page, err
}
