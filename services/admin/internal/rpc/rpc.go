// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpc is Admin's gRPC face: it turns requests into calls of package admin and answers into messages, keeps the
// page tokens, and says who may call what. It decides nothing else, and generated types of Admin's API go no further.
package rpc

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/pagetoken"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
	"github.com/counterfoil/counterfoil/services/admin/internal/admin"
)

// The roles that Admin's methods ask for. An operator may read what an auditor may.
const (
	roleAuditor  = "auditor"
	roleOperator = "operator"
)

// Policy says who may call which method. A method that is not in it is refused.
func Policy() authn.Policy {
	read, act := authn.AnyRole(roleAuditor, roleOperator), authn.AnyRole(roleOperator)
	return authn.Policy{
		adminv1.AuditLogService_ListAuditLogs_FullMethodName:           read,
		adminv1.AuditLogService_GetAuditLog_FullMethodName:             read,
		adminv1.AuditLogService_ExportAuditLogs_FullMethodName:         read,
		adminv1.AuditLogService_TraceEvent_FullMethodName:              read,
		adminv1.InboxService_GetInboxStatus_FullMethodName:             read,
		adminv1.InboxService_ListInboxEntries_FullMethodName:           read,
		adminv1.InboxService_GetInboxEntry_FullMethodName:              read,
		adminv1.InboxService_RequeueInboxEntries_FullMethodName:        act,
		adminv1.InboxService_ReplayInboxEntries_FullMethodName:         act,
		adminv1.PoisonService_ListPoison_FullMethodName:                read,
		adminv1.PoisonService_GetPoison_FullMethodName:                 read,
		adminv1.PoisonService_ReplayPoison_FullMethodName:              act,
		adminv1.PoisonService_DiscardPoison_FullMethodName:             act,
		adminv1.SecurityAlertService_ListSecurityAlerts_FullMethodName: read,
	}
}

// Register adds Admin's four services to a server.
func Register(server grpc.ServiceRegistrar, service *admin.Service, tokens *pagetoken.Codec) {
	adminv1.RegisterAuditLogServiceServer(server, &auditLogs{service: service, tokens: tokens})
	adminv1.RegisterInboxServiceServer(server, &inboxServer{service: service, tokens: tokens})
	adminv1.RegisterPoisonServiceServer(server, &poisonServer{service: service, tokens: tokens})
	adminv1.RegisterSecurityAlertServiceServer(server, &alertServer{service: service, tokens: tokens})
}

// Refused records the calls that the policy refuses to known callers.
func Refused(service *admin.Service) func(context.Context, authn.Refusal) {
	return func(ctx context.Context, r authn.Refusal) {
		if r.Known {
			service.Refused(ctx, caller(authn.WithPrincipal(ctx, r.Principal)), r.Method, r.Reason)
		}
	}
}

// caller gathers what Admin's own events say about who asked.
func caller(ctx context.Context) admin.Caller {
	principal, _ := authn.PrincipalFrom(ctx)
	info := grpcserver.RequestInfo(ctx)
	return admin.Caller{
		UserID:               principal.UserID,
		SessionID:            principal.SessionID,
		DisplayName:          principal.DisplayName,
		CorrelationID:        info.CorrelationID,
		TraceID:              info.TraceID,
		ClientAddress:        info.ClientAddress,
		ClientAddressClaimed: info.ClientAddressClaimed,
		UserAgent:            info.UserAgent,
	}
}

// lastID reads the UUID at the end of a resource name. The request was validated: anything else is the zero id.
func lastID(name string) uuid.UUID {
	id, err := uuid.Parse(name[strings.LastIndexByte(name, '/')+1:])
	if err != nil {
		return uuid.Nil
	}
	return id
}

func lastIDs(names []string) []uuid.UUID {
	ids := make([]uuid.UUID, len(names))
	for i, name := range names {
		ids[i] = lastID(name)
	}
	return ids
}

// namesOf puts a prefix before each id.
func namesOf(prefix string, ids []uuid.UUID) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = prefix + id.String()
	}
	return names
}

// refusals says for each id why it was left as it was.
func refusals(prefix string, refused []inbox.Refusal) []*adminv1.Refusal {
	out := make([]*adminv1.Refusal, len(refused))
	for i, r := range refused {
		out[i] = &adminv1.Refusal{Name: prefix + r.ID.String(), Reason: r.Reason, Detail: r.Detail}
	}
	return out
}
