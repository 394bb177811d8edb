// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"maps"

	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/outboxrpc"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
)

// roleAdmin is the role in a token that may do everything in every project.
const roleAdmin = "admin"

// Policy says which method needs what of a token. What a caller may do within a project is decided there, by their role in it.
func Policy() authn.Policy {
	policy := authn.Policy{
		appv1.ProjectService_CreateProject_FullMethodName:  authn.Authenticated(),
		appv1.ProjectService_GetProject_FullMethodName:     authn.Authenticated(), // VIEWER
		appv1.ProjectService_ListProjects_FullMethodName:   authn.Authenticated(), // one's own
		appv1.ProjectService_UpdateProject_FullMethodName:  authn.Authenticated(), // EDITOR
		appv1.ProjectService_ArchiveProject_FullMethodName: authn.Authenticated(), // OWNER
		appv1.ProjectService_RestoreProject_FullMethodName: authn.Authenticated(), // OWNER
		appv1.ProjectService_DeleteProject_FullMethodName:  authn.Authenticated(), // OWNER
		appv1.ProjectService_AddMember_FullMethodName:      authn.Authenticated(), // OWNER
		appv1.ProjectService_GetMember_FullMethodName:      authn.Authenticated(), // VIEWER
		appv1.ProjectService_ListMembers_FullMethodName:    authn.Authenticated(), // VIEWER
		appv1.ProjectService_UpdateMember_FullMethodName:   authn.Authenticated(), // OWNER
		appv1.ProjectService_RemoveMember_FullMethodName:   authn.Authenticated(), // OWNER
		appv1.ProjectService_ImportMembers_FullMethodName:  authn.Authenticated(), // OWNER
	}
	maps.Copy(policy, outboxrpc.Policy())
	return policy
}
