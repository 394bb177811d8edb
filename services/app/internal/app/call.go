// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/services/app/internal/store"
)

// Call is one call as the service sees it: who makes it, from where, and under which request id.
type Call struct {
	// UserID is the caller, as Auth knows them; DisplayName is their name at this time.
	UserID      uuid.UUID
	DisplayName string
	SessionID   string
	// Admin says that the caller may do everything in every project.
	Admin bool
	// Info is the method and where the call comes from.
	Info grpcserver.Info
	// Request makes a repeated call safe; the zero Key is a call without a request id.
	Request idempotency.Key
}

// ProjectName returns a project's resource name.
func ProjectName(id uuid.UUID) string { return "projects/" + id.String() }

// MemberName returns a member's resource name.
func MemberName(projectID, memberID uuid.UUID) string {
	return ProjectName(projectID) + "/members/" + memberID.String()
}

var errName = errors.New("not a resource name")

// ParseProjectName returns the id in projects/{id}.
func ParseProjectName(name string) (uuid.UUID, error) {
	id, ok := strings.CutPrefix(name, "projects/")
	if !ok {
		return uuid.Nil, fmt.Errorf("project name: %w", errName)
	}
	return uuid.Parse(id)
}

// ParseMemberName returns the ids in projects/{id}/members/{id}.
func ParseMemberName(name string) (projectID, memberID uuid.UUID, err error) {
	project, member, ok := strings.Cut(name, "/members/")
	if !ok {
		return uuid.Nil, uuid.Nil, fmt.Errorf("member name: %w", errName)
	}
	if projectID, err = ParseProjectName(project); err != nil {
		return uuid.Nil, uuid.Nil, err
	}
	memberID, err = uuid.Parse(member)
	return projectID, memberID, err
}

// projectResult and memberResult are what is remembered under a call's request id.
func projectResult(p store.Project) idempotency.Result {
	return idempotency.Result{Name: ProjectName(p.ID), Version: p.Version}
}

func memberResult(m store.Member) idempotency.Result {
	return idempotency.Result{Name: MemberName(m.ProjectID, m.ID), Version: m.Version}
}
