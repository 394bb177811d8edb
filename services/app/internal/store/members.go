// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	insertMemberSQL = `
		INSERT INTO project_members (id, version, project_id, user_id, role, create_time, update_time)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`
	updateMemberSQL = `
		UPDATE project_members SET version = $2, role = $3, update_time = $4
		WHERE id = $1 AND version = $2 - 1`
	deleteMemberSQL  = `DELETE FROM project_members WHERE id = $1 AND version = $2`
	deleteMembersSQL = `DELETE FROM project_members m WHERE m.project_id = $1 RETURNING ` + memberColumns

	// One statement whatever the number of rows; arrays, because a statement has at most 65 535 parameters. Who is a
	// member already is left out, and the caller sees who from what comes back.
	insertMembersSQL = `
		INSERT INTO project_members (id, version, project_id, user_id, role, create_time, update_time)
		SELECT n.id, 1, $1, n.user_id, n.role, $2, $2
		FROM unnest($3::uuid[], $4::uuid[], $5::text[]) AS n (id, user_id, role)
		ON CONFLICT ON CONSTRAINT project_members_project_user_key DO NOTHING
		RETURNING id`

	inProjectSQL = `SELECT ` + memberColumns + ` FROM project_members m WHERE m.project_id = $1 AND m.id = $2`
	ownersSQL    = `SELECT count(*) FROM project_members m WHERE m.project_id = $1 AND m.role = 'OWNER'`

	listMembersSQL = `
		SELECT ` + memberColumns + `
		FROM project_members m
		WHERE m.project_id = $1 AND m.id > $2
		ORDER BY m.id
		LIMIT $3`
)

// QueueInsertMember adds the insert of m to batch.
func QueueInsertMember(batch *pgx.Batch, m Member) {
	batch.Queue(insertMemberSQL, m.ID, m.Version, m.ProjectID, m.UserID, m.Role, m.CreateTime, m.UpdateTime)
}

// QueueUpdateMember adds the change to m to batch: m.Version is the new version, the row has the one before.
func QueueUpdateMember(batch *pgx.Batch, m Member) {
	batch.Queue(updateMemberSQL, m.ID, m.Version, m.Role, m.UpdateTime).Exec(oneRow("update member"))
}

// QueueDeleteMember adds the deletion of m to batch.
func QueueDeleteMember(batch *pgx.Batch, m Member) {
	batch.Queue(deleteMemberSQL, m.ID, m.Version).Exec(oneRow("delete member"))
}

// InsertMembers inserts members, all of one project and one time, in one statement. It returns the index of the first
// one whose user is a member of the project already, and -1 if there is none; the caller rolls back.
func InsertMembers(ctx context.Context, tx pgx.Tx, members []Member) (refused int, err error) {
	if len(members) == 0 {
		return -1, nil
	}
	ids, users, roles := make([]uuid.UUID, len(members)), make([]uuid.UUID, len(members)), make([]string, len(members))
	for i, m := range members {
		ids[i], users[i], roles[i] = m.ID, m.UserID, string(m.Role)
	}
	rows, err := tx.Query(ctx, insertMembersSQL, members[0].ProjectID, members[0].CreateTime, ids, users, roles)
	if err != nil {
		return -1, fmt.Errorf("insert members: %w", err)
	}
	inserted, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return -1, fmt.Errorf("insert members: %w", err)
	}
	if len(inserted) == len(members) {
		return -1, nil
	}
	return firstMissing(ids, inserted), nil
}

// firstMissing returns the index of the first of all that is not in some.
func firstMissing(all, some []uuid.UUID) int {
	in := make(map[uuid.UUID]bool, len(some))
	for _, id := range some {
		in[id] = true
	}
	for i, id := range all {
		if !in[id] {
			return i
		}
	}
	return -1
}

// DeleteMembers deletes all members of a project and returns them as they were.
func DeleteMembers(ctx context.Context, tx pgx.Tx, projectID uuid.UUID) ([]Member, error) {
	rows, err := tx.Query(ctx, deleteMembersSQL, projectID)
	if err != nil {
		return nil, fmt.Errorf("delete members: %w", err)
	}
	members, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Member, error) { return scanMember(row) })
	if err != nil {
		return nil, fmt.Errorf("delete members: %w", err)
	}
	return members, nil
}

// LockedMember is a member whose project is locked, and what a change to it must know.
type LockedMember struct {
	Project    Project
	CallerRole Role
	Found      bool // false: the project has no such member
	Member     Member
	Owners     int // how many owners the project has
}

// LockMember locks the project of a member until the transaction ends; see LockProject for the order of the statements.
func LockMember(ctx context.Context, tx pgx.Tx, projectID, memberID, userID uuid.UUID) (LockedMember, error) {
	var batch pgx.Batch
	var l LockedMember
	queueLock(&batch, projectID, userID, &l.Project, &l.CallerRole)
	batch.Queue(inProjectSQL, projectID, memberID).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var err error
			if l.Member, err = scanMember(rows); err != nil {
				return err
			}
			l.Found = true
		}
		return rows.Err()
	})
	batch.Queue(ownersSQL, projectID).QueryRow(func(row pgx.Row) error { return row.Scan(&l.Owners) })
	if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
		return LockedMember{}, found(err, "lock member", ErrProjectNotFound())
	}
	return l, nil
}

// GetMember returns a member of a project.
func GetMember(ctx context.Context, db Reader, projectID, memberID uuid.UUID) (Member, error) {
	member, err := scanMember(db.QueryRow(ctx, inProjectSQL, projectID, memberID))
	if err != nil {
		return Member{}, found(err, "get member", ErrMemberNotFound())
	}
	return member, nil
}

// ListMembers returns up to limit members of a project, in the order they were added, that come after the id after.
func ListMembers(ctx context.Context, db Reader, projectID, after uuid.UUID, limit int) ([]Member, error) {
	rows, err := db.Query(ctx, listMembersSQL, projectID, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	members, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Member, error) { return scanMember(row) })
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	return members, nil
}
