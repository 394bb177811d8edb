-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- Accounts. Audited tables have an id made fresh for each insert, which is never
-- changed or used again, and a version that starts at 1 and rises by one with
-- each change. What changes without being an action of its own (credentials,
-- counters, last use) lives in tables beside them, listed in unaudited.txt.

-- +goose Up
CREATE TABLE users (
    id           uuid        NOT NULL,
    version      bigint      NOT NULL,
    email        text        NOT NULL,
    display_name text        NOT NULL,
    state        text        NOT NULL DEFAULT 'ACTIVE',
    create_time  timestamptz NOT NULL,
    update_time  timestamptz NOT NULL,
    CONSTRAINT users_pkey PRIMARY KEY (id),
    CONSTRAINT users_email_key UNIQUE (email),
    CONSTRAINT users_email_check CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    CONSTRAINT users_state_check CHECK (state IN ('ACTIVE', 'DISABLED')),
    CONSTRAINT users_version_check CHECK (version >= 1)
) WITH (fillfactor = 90);
COMMENT ON TABLE users IS 'Audited. Written by auth; one event for each version.';

CREATE TABLE role_grants (
    id          uuid        NOT NULL,
    version     bigint      NOT NULL,
    user_id     uuid        NOT NULL,
    role        text        NOT NULL,
    create_time timestamptz NOT NULL,
    CONSTRAINT role_grants_pkey PRIMARY KEY (id),
    CONSTRAINT role_grants_user_role_key UNIQUE (user_id, role),
    CONSTRAINT role_grants_user_fkey FOREIGN KEY (user_id) REFERENCES users (id),
    CONSTRAINT role_grants_role_check CHECK (role IN ('admin', 'auditor', 'operator')),
    CONSTRAINT role_grants_version_check CHECK (version >= 1)
);
COMMENT ON TABLE role_grants IS 'Audited. A role withdrawn and granted again is a new row.';

CREATE TABLE login_policies (
    id                    uuid        NOT NULL,
    version               bigint      NOT NULL,
    singleton             boolean     NOT NULL DEFAULT true,
    min_password_length   integer     NOT NULL,
    max_failed_attempts   integer     NOT NULL,
    lockout_seconds       integer     NOT NULL,
    session_seconds       integer     NOT NULL,
    allowed_networks      cidr[]      NOT NULL DEFAULT '{}',
    update_time           timestamptz NOT NULL,
    CONSTRAINT login_policies_pkey PRIMARY KEY (id),
    CONSTRAINT login_policies_singleton_key UNIQUE (singleton),
    CONSTRAINT login_policies_singleton_check CHECK (singleton),
    CONSTRAINT login_policies_version_check CHECK (version >= 1),
    CONSTRAINT login_policies_min_password_length_check CHECK (min_password_length BETWEEN 8 AND 128),
    CONSTRAINT login_policies_max_failed_attempts_check CHECK (max_failed_attempts BETWEEN 1 AND 100),
    CONSTRAINT login_policies_lockout_seconds_check CHECK (lockout_seconds BETWEEN 1 AND 86400),
    CONSTRAINT login_policies_session_seconds_check CHECK (session_seconds BETWEEN 60 AND 31536000)
);
COMMENT ON TABLE login_policies IS 'Audited. One row, made by bootstrap.';

CREATE TABLE sessions (
    id           uuid        NOT NULL,
    version      bigint      NOT NULL,
    user_id      uuid        NOT NULL,
    state        text        NOT NULL DEFAULT 'ACTIVE',
    create_time  timestamptz NOT NULL,
    expire_time  timestamptz NOT NULL,
    end_time     timestamptz,
    end_reason   text        NOT NULL DEFAULT '',
    CONSTRAINT sessions_pkey PRIMARY KEY (id),
    CONSTRAINT sessions_user_fkey FOREIGN KEY (user_id) REFERENCES users (id),
    CONSTRAINT sessions_state_check CHECK (state IN ('ACTIVE', 'ENDED', 'REVOKED', 'EXPIRED')),
    CONSTRAINT sessions_version_check CHECK (version >= 1)
);
CREATE INDEX sessions_user_idx ON sessions (user_id, create_time DESC);
CREATE INDEX sessions_expire_idx ON sessions (expire_time) WHERE state = 'ACTIVE';
COMMENT ON TABLE sessions IS 'Audited. A session is a family of refresh tokens: revoking it revokes them all.';

CREATE TABLE credentials (
    user_id       uuid        NOT NULL,
    password_hash text        NOT NULL,
    update_time   timestamptz NOT NULL,
    CONSTRAINT credentials_pkey PRIMARY KEY (user_id),
    CONSTRAINT credentials_user_fkey FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
COMMENT ON TABLE credentials IS 'argon2id hashes in PHC form. Changing one changes the user''s version, which is what is audited.';

CREATE TABLE login_attempts (
    user_id      uuid        NOT NULL,
    failed_count integer     NOT NULL DEFAULT 0,
    locked_until timestamptz,
    last_failure timestamptz,
    CONSTRAINT login_attempts_pkey PRIMARY KEY (user_id),
    CONSTRAINT login_attempts_user_fkey FOREIGN KEY (user_id) REFERENCES users (id) ON DELETE CASCADE
);
COMMENT ON TABLE login_attempts IS 'Counter behind lock-out. Each attempt is recorded as an event of its own.';

CREATE TABLE session_activity (
    session_id uuid        NOT NULL,
    last_seen  timestamptz NOT NULL,
    CONSTRAINT session_activity_pkey PRIMARY KEY (session_id),
    CONSTRAINT session_activity_session_fkey FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
COMMENT ON TABLE session_activity IS 'When a session was last used.';

CREATE TABLE refresh_tokens (
    token_hash  bytea       NOT NULL,
    session_id  uuid        NOT NULL,
    create_time timestamptz NOT NULL,
    expire_time timestamptz NOT NULL,
    use_time    timestamptz,
    CONSTRAINT refresh_tokens_pkey PRIMARY KEY (token_hash),
    CONSTRAINT refresh_tokens_session_fkey FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE INDEX refresh_tokens_session_idx ON refresh_tokens (session_id);
COMMENT ON TABLE refresh_tokens IS 'SHA-256 of each token. Using one twice revokes its session.';

-- +goose Down
DROP TABLE refresh_tokens, session_activity, login_attempts, credentials, sessions, login_policies, role_grants, users;
