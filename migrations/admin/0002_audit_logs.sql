-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- The read model: one row an event, byte for byte as its owner appended it.
-- Columns hold opaque ids only; whatever is personal stays in the payload and
-- is read from there when served.

-- +goose Up
CREATE TABLE audit_logs (
    event_id         uuid        NOT NULL,
    ledger_id        uuid        NOT NULL,
    ledger_seq       bigint      NOT NULL,
    occur_time       timestamptz NOT NULL,
    record_time      timestamptz NOT NULL DEFAULT clock_timestamp(),
    resource_version bigint,
    schema_version   integer     NOT NULL,
    owner            text        NOT NULL,
    event_type       text        NOT NULL,
    action           text        NOT NULL,
    operation        text        NOT NULL,
    outcome          text        NOT NULL,
    reason           text        NOT NULL DEFAULT '',
    actor_type       text        NOT NULL,
    actor_id         text        NOT NULL,
    resource_type    text        NOT NULL,
    resource_id      text        NOT NULL,
    correlation_id   text        NOT NULL DEFAULT '',
    trace_id         text        NOT NULL DEFAULT '',
    payload          bytea       NOT NULL,
    CONSTRAINT audit_logs_pkey PRIMARY KEY (event_id)
);
CREATE INDEX audit_logs_actor_idx ON audit_logs (actor_id, event_id);
CREATE INDEX audit_logs_resource_idx ON audit_logs (resource_id, event_id);
CREATE INDEX audit_logs_action_idx ON audit_logs (action text_pattern_ops, event_id);
CREATE INDEX audit_logs_correlation_idx ON audit_logs (correlation_id, event_id) WHERE correlation_id <> '';
CREATE INDEX audit_logs_trace_idx ON audit_logs (trace_id, event_id) WHERE trace_id <> '';
COMMENT ON TABLE audit_logs IS 'Written by the audit-log consumer, and by admin''s own operator actions. Append-only.';

CREATE TRIGGER audit_logs_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_logs
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Admin's own actions take their number in their own transaction, under this row.
CREATE TABLE audit_ledger (
    singleton          boolean     NOT NULL DEFAULT true,
    owner              text        NOT NULL,
    ledger_id          uuid        NOT NULL DEFAULT gen_random_uuid(),
    head               bigint      NOT NULL DEFAULT 0,
    compact_range      bytea[]     NOT NULL DEFAULT '{}',
    system_identifier  text,
    timeline           text,
    database_oid       oid,
    opened_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    sealed_at          timestamptz,
    last_checkpoint_at timestamptz,
    CONSTRAINT audit_ledger_pkey PRIMARY KEY (singleton),
    CONSTRAINT audit_ledger_singleton_check CHECK (singleton),
    CONSTRAINT audit_ledger_head_check CHECK (head >= 0)
) WITH (fillfactor = 10);
INSERT INTO audit_ledger (owner) VALUES ('admin');
COMMENT ON TABLE audit_ledger IS 'The head of admin''s own ledger. Locked last in an operator''s transaction.';

-- +goose Down
DROP TABLE audit_ledger, audit_logs;
