// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	insertProjectSQL = `
		INSERT INTO projects (id, version, slug, display_name, description, state, creator_id, create_time, update_time)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`
	// The version is checked although the row is locked: see oneRow.
	updateProjectSQL = `
		UPDATE projects
		SET version = $2, display_name = $3, description = $4, state = $5, update_time = $6
		WHERE id = $1 AND version = $2 - 1`
	deleteProjectSQL = `DELETE FROM projects WHERE id = $1 AND version = $2`

	lockProjectSQL = `SELECT ` + projectColumns + ` FROM projects p WHERE p.id = $1 FOR UPDATE`
	roleSQL        = `SELECT m.role FROM project_members m WHERE m.project_id = $1 AND m.user_id = $2`

	getProjectSQL = `
		SELECT ` + projectColumns + `, coalesce(m.role, '')
		FROM projects p
		LEFT JOIN project_members m ON m.project_id = p.id AND m.user_id = $2
		WHERE p.id = $1`
	// Ids are UUIDv7, so their order is that of creation.
	listProjectsSQL = `
		SELECT ` + projectColumns + `
		FROM projects p
		WHERE p.id > $1
		  AND ($2 OR p.state = 'ACTIVE')
		  AND ($3 = '' OR p.slug = $3)
		ORDER BY p.id
		LIMIT $4`
	// A statement of its own, which begins with the user's memberships: as a condition of the one above, they would be
	// looked for in every project there is.
	listMembersProjectsSQL = `
		SELECT ` + projectColumns + `
		FROM project_members m JOIN projects p ON p.id = m.project_id
		WHERE m.user_id = $5
		  AND m.project_id > $1
		  AND ($2 OR p.state = 'ACTIVE')
		  AND ($3 = '' OR p.slug = $3)
		ORDER BY m.project_id
		LIMIT $4`
)

// QueueInsertProject adds the insert of p to batch.
func QueueInsertProject(batch *pgx.Batch, p Project) {
	batch.Queue(insertProjectSQL, p.ID, p.Version, p.Slug, p.DisplayName, p.Description, p.State, p.CreatorID, p.CreateTime, p.UpdateTime)
}

// QueueUpdateProject adds the change to p to batch: p.Version is the new version, the row has the one before. Slug,
// creator and creation time never change.
func QueueUpdateProject(batch *pgx.Batch, p Project) {
	batch.Queue(updateProjectSQL, p.ID, p.Version, p.DisplayName, p.Description, p.State, p.UpdateTime).
		Exec(oneRow("update project"))
}

// DeleteProject deletes p, whose members must be gone.
func DeleteProject(ctx context.Context, tx pgx.Tx, p Project) error {
	tag, err := tx.Exec(ctx, deleteProjectSQL, p.ID, p.Version)
	if err != nil {
		return fmt.Errorf("delete project: %w", err)
	}
	return oneRow("delete project")(tag)
}

// LockProject locks a project until the transaction ends and returns it with the user's role in it. It is two
// statements in one round trip: the second has a snapshot taken after the lock was granted, so the role is that of now
// and not that of when the waiting began.
func LockProject(ctx context.Context, tx pgx.Tx, id, userID uuid.UUID) (Project, Role, error) {
	var batch pgx.Batch
	var project Project
	var role Role
	queueLock(&batch, id, userID, &project, &role)
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return Project{}, "", found(err, "lock project", ErrProjectNotFound())
	}
	return project, role, nil
}

// queueLock adds the lock of a project and the look at the user's role to batch.
func queueLock(batch *pgx.Batch, id, userID uuid.UUID, project *Project, role *Role) {
	batch.Queue(lockProjectSQL, id).QueryRow(func(row pgx.Row) (err error) {
		*project, err = scanProject(row)
		return err
	})
	batch.Queue(roleSQL, id, userID).QueryRow(func(row pgx.Row) error {
		if err := row.Scan(role); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	})
}

// GetProject returns a project and the user's role in it.
func GetProject(ctx context.Context, db Reader, id, userID uuid.UUID) (Project, Role, error) {
	var role Role
	project, err := scanProject(db.QueryRow(ctx, getProjectSQL, id, userID), &role)
	if err != nil {
		return Project{}, "", found(err, "get project", ErrProjectNotFound())
	}
	return project, role, nil
}

// ProjectFilter selects projects, oldest first.
type ProjectFilter struct {
	After        uuid.UUID  // id of the last one seen; the zero id is before all
	MemberID     *uuid.UUID // only those that this user is a member of
	ShowArchived bool
	Slug         string // only the one with this slug, if set
	Limit        int
}

// ListProjects returns the projects that f selects.
func ListProjects(ctx context.Context, db Reader, f ProjectFilter) ([]Project, error) {
	sql, args := listProjectsSQL, []any{f.After, f.ShowArchived, f.Slug, f.Limit}
	if f.MemberID != nil {
		sql, args = listMembersProjectsSQL, append(args, *f.MemberID)
	}
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("list projects: %w", err)
	}
	projects, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Project, error) { return scanProject(row) })
	if err != nil {
		return nil, fmt.Errorf("list projects: %w", err)
	}
	return projects, nil
}
