-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- Projects and their members. Both are audited: an id made fresh for each
-- insert, and a version that starts at 1 and rises by one with each change.

-- +goose Up
CREATE TABLE projects (
    id           uuid        NOT NULL,
    version      bigint      NOT NULL,
    slug         text        NOT NULL,
    display_name text        NOT NULL,
    description  text        NOT NULL DEFAULT '',
    state        text        NOT NULL DEFAULT 'ACTIVE',
    creator_id   uuid        NOT NULL,
    create_time  timestamptz NOT NULL,
    update_time  timestamptz NOT NULL,
    CONSTRAINT projects_pkey PRIMARY KEY (id),
    CONSTRAINT projects_slug_key UNIQUE (slug),
    CONSTRAINT projects_slug_check CHECK (slug ~ '^[a-z][a-z0-9-]{1,61}[a-z0-9]$'),
    CONSTRAINT projects_state_check CHECK (state IN ('ACTIVE', 'ARCHIVED')),
    CONSTRAINT projects_version_check CHECK (version >= 1)
) WITH (fillfactor = 90);
COMMENT ON TABLE projects IS 'Audited. Written by app; one event for each version.';

CREATE TABLE project_members (
    id          uuid        NOT NULL,
    version     bigint      NOT NULL,
    project_id  uuid        NOT NULL,
    user_id     uuid        NOT NULL,
    role        text        NOT NULL,
    create_time timestamptz NOT NULL,
    update_time timestamptz NOT NULL,
    CONSTRAINT project_members_pkey PRIMARY KEY (id),
    CONSTRAINT project_members_project_user_key UNIQUE (project_id, user_id),
    CONSTRAINT project_members_project_fkey FOREIGN KEY (project_id) REFERENCES projects (id),
    CONSTRAINT project_members_role_check CHECK (role IN ('OWNER', 'EDITOR', 'VIEWER')),
    CONSTRAINT project_members_version_check CHECK (version >= 1)
);
CREATE INDEX project_members_user_idx ON project_members (user_id, project_id);
COMMENT ON TABLE project_members IS 'Audited. A member removed and added again is a new row. user_id names a user of auth; no key can check it.';

-- +goose Down
DROP TABLE project_members, projects;
