// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/internal/testdb"
)

// TestAMembersProjectsCostNoMoreThanTheyAre: a user's few projects are found without reading everybody else's.
func TestAMembersProjectsCostNoMoreThanTheyAre(t *testing.T) {
	t.Parallel()
	db, ctx := testdb.New(t, testdb.App).WithoutGuard(t), t.Context()
	user := uuid.New()
	for _, sql := range []string{
		`INSERT INTO projects SELECT gen_random_uuid(), 1, 'p-' || i || '-x', 'p', '', 'ACTIVE', $1, now(), now() FROM generate_series(1, 20000) i`,
		`INSERT INTO project_members SELECT gen_random_uuid(), 1, id, gen_random_uuid(), 'OWNER', now(), now() FROM projects WHERE $1::uuid IS NOT NULL`,
		`INSERT INTO project_members SELECT gen_random_uuid(), 1, id, $1, 'VIEWER', now(), now()
			FROM projects WHERE slug IN ('p-7-x', 'p-77-x', 'p-777-x')`,
	} {
		if _, err := db.Owner.Exec(ctx, sql, user); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Owner.Exec(ctx, `ANALYZE projects, project_members`); err != nil {
		t.Fatal(err)
	}
	projects, err := ListProjects(ctx, db.Service, ProjectFilter{MemberID: &user, Limit: 10})
	if err != nil || len(projects) != 3 || !slices.IsSortedFunc(projects, func(a, b Project) int { return slices.Compare(a.ID[:], b.ID[:]) }) {
		t.Fatalf("%d projects, %v, want 3 by id", len(projects), err)
	}
	rest, err := ListProjects(ctx, db.Service, ProjectFilter{MemberID: &user, After: projects[0].ID, Limit: 1})
	if err != nil || len(rest) != 1 || rest[0].ID != projects[1].ID {
		t.Errorf("the second page holds %v, %v", rest, err)
	}

	var plan []byte
	err = db.Service.QueryRow(ctx, `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+listMembersProjectsSQL, uuid.Nil, false, "", 10, user).Scan(&plan)
	if err != nil {
		t.Fatal(err)
	}
	var explained []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(plan, &explained); err != nil {
		t.Fatal(err)
	}
	if blocks := explained[0].Plan.Hit + explained[0].Plan.Read; blocks == 0 || blocks > 60 {
		t.Errorf("three projects cost %d blocks: %s", blocks, plan)
	}
}
