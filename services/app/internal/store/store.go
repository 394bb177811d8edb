// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps projects and their members in Postgres: their types, every SQL statement of the service, and the
// one table that turns a violated constraint into an error for people.
//
// What must be atomic takes a pgx.Tx or is queued into a pgx.Batch; nothing here begins or ends a transaction, decides
// who may do what, or records anything. Whoever changes a project or its members locks the project's row first
// (LockProject, LockMember), so that all that hangs together changes one after the other.
package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// State is whether a project can be worked on.
type State string

// The states of a project.
const (
	Active   State = "ACTIVE"
	Archived State = "ARCHIVED"
)

// Role is what a member may do; the empty Role is that of somebody who is no member.
type Role string

// The roles of a member.
const (
	Viewer Role = "VIEWER"
	Editor Role = "EDITOR"
	Owner  Role = "OWNER"
)

// Includes says whether r may do all that other may.
func (r Role) Includes(other Role) bool { return r.rank() >= other.rank() }

func (r Role) rank() int {
	switch r {
	case Viewer:
		return 1
	case Editor:
		return 2
	case Owner:
		return 3
	default:
		return 0
	}
}

// Project is a row of projects.
type Project struct {
	ID          uuid.UUID
	Version     int64
	Slug        string
	DisplayName string
	Description string
	State       State
	CreatorID   uuid.UUID
	CreateTime  time.Time
	UpdateTime  time.Time
}

// Member is a row of project_members.
type Member struct {
	ID         uuid.UUID
	Version    int64
	ProjectID  uuid.UUID
	UserID     uuid.UUID // a user of auth; nothing here can check it
	Role       Role
	CreateTime time.Time
	UpdateTime time.Time
}

// Reader is a pool or a transaction that can read.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const (
	projectColumns = `p.id, p.version, p.slug, p.display_name, p.description, p.state, p.creator_id, p.create_time, p.update_time`
	memberColumns  = `m.id, m.version, m.project_id, m.user_id, m.role, m.create_time, m.update_time`
)

// scanProject reads projectColumns, followed by more.
func scanProject(row pgx.Row, more ...any) (Project, error) {
	var p Project
	into := append([]any{&p.ID, &p.Version, &p.Slug, &p.DisplayName, &p.Description, &p.State, &p.CreatorID, &p.CreateTime, &p.UpdateTime}, more...)
	if err := row.Scan(into...); err != nil {
		return Project{}, err
	}
	p.CreateTime, p.UpdateTime = p.CreateTime.UTC(), p.UpdateTime.UTC()
	return p, nil
}

// scanMember reads memberColumns, followed by more.
func scanMember(row pgx.Row, more ...any) (Member, error) {
	var m Member
	into := append([]any{&m.ID, &m.Version, &m.ProjectID, &m.UserID, &m.Role, &m.CreateTime, &m.UpdateTime}, more...)
	if err := row.Scan(into...); err != nil {
		return Member{}, err
	}
	m.CreateTime, m.UpdateTime = m.CreateTime.UTC(), m.UpdateTime.UTC()
	return m, nil
}
