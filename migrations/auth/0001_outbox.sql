-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- The owner's own proof of what it did. The service appends here in the
-- transaction that changes a business row; the dispatcher carries it on.
-- Columns that never change come first and the payload stands between them and
-- the delivery state, so an update logs little more than the state it changes.

-- +goose Up

-- A rule of one column is a domain and not a CHECK: Postgres prepares each CHECK
-- of a table anew for each INSERT, and five of them cost a business transaction
-- more than the indexes do. No INSERT of a service can set the delivery state:
-- its rules are a trigger's, for UPDATE alone.
CREATE DOMAIN outbox_status AS text CHECK (VALUE IN
    ('PENDING', 'DELIVERED', 'DEFERRED', 'FAILED', 'RETRYABLE_FAILURE', 'DEAD_LETTERED'));
CREATE DOMAIN row_version AS bigint CHECK (VALUE >= 1);
CREATE DOMAIN event_payload AS bytea CHECK (octet_length(VALUE) <= 1048576);

CREATE TABLE audit_outbox (
    event_id           uuid        NOT NULL,
    tx                 xid8        NOT NULL DEFAULT pg_current_xact_id(),
    append_no          bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    occur_time         timestamptz NOT NULL,
    resource_version   row_version,
    schema_version     integer     NOT NULL,
    event_type         text        NOT NULL,
    operation          text        NOT NULL,
    resource_type      text        NOT NULL,
    resource_id        text        NOT NULL,
    traceparent        text        NOT NULL DEFAULT '',
    tracestate         text        NOT NULL DEFAULT '',
    payload            event_payload NOT NULL,

    ledger_id          uuid,
    ledger_seq         bigint,
    next_attempt_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts           integer     NOT NULL DEFAULT 0,
    max_attempts       integer     NOT NULL DEFAULT 10,
    claim_count        integer     NOT NULL DEFAULT 0,
    redelivery_count   integer     NOT NULL DEFAULT 0,
    status             outbox_status NOT NULL DEFAULT 'PENDING',
    claim_owner        text,
    claim_token        uuid,
    claimed_at         timestamptz,
    claim_expires_at   timestamptz,
    delivered_at       timestamptz,
    provider_name      text,
    provider_record_id text,
    last_error_code    text,
    last_error_at      timestamptz,
    dead_letter_reason text,

    CONSTRAINT audit_outbox_pkey PRIMARY KEY (event_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);

-- No claim column is indexed, so that taking a claim stays a heap-only update.
CREATE INDEX audit_outbox_unsealed_idx ON audit_outbox (append_no) WHERE ledger_seq IS NULL;
CREATE UNIQUE INDEX audit_outbox_number_key ON audit_outbox (ledger_id, ledger_seq) WHERE ledger_seq IS NOT NULL;
CREATE INDEX audit_outbox_open_idx ON audit_outbox (ledger_seq)
    WHERE status IN ('PENDING', 'DEFERRED', 'RETRYABLE_FAILURE');
CREATE UNIQUE INDEX audit_outbox_version_key ON audit_outbox (resource_type, resource_id, resource_version)
    WHERE resource_version IS NOT NULL;

COMMENT ON TABLE audit_outbox IS 'Written by the service in its business transactions; claimed, settled and pruned by its dispatcher. Read by nobody else.';
COMMENT ON COLUMN audit_outbox.tx IS 'The appending transaction. Services cannot set it.';
COMMENT ON COLUMN audit_outbox.append_no IS 'Drawn at INSERT: of two versions of one row the later draws the higher number.';
COMMENT ON COLUMN audit_outbox.ledger_seq IS 'Dense number within ledger_id, given after commit by the sealer. Goes from null to a value once.';

-- One row: the ledger that this database writes. Locked by each sealing pass.
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
COMMENT ON TABLE audit_ledger IS 'The head of this owner''s ledger. Written by the sealer only.';

-- How long finished rows stay. Only the owner role changes it.
CREATE TABLE audit_retention (
    singleton             boolean  NOT NULL DEFAULT true,
    finished_age          interval NOT NULL DEFAULT interval '7 days',
    requires_confirmation boolean  NOT NULL DEFAULT true,
    CONSTRAINT audit_retention_pkey PRIMARY KEY (singleton),
    CONSTRAINT audit_retention_singleton_check CHECK (singleton),
    CONSTRAINT audit_retention_age_check CHECK (finished_age >= interval '0')
);
INSERT INTO audit_retention DEFAULT VALUES;
INSERT INTO audit_ledger (owner) VALUES ('auth');
COMMENT ON TABLE audit_retention IS 'Read by outbox_prune. Services can read it and cannot change it.';

-- What became of each entry, beyond plain pending -> delivered. Append-only.
CREATE TABLE audit_lifecycle (
    lifecycle_no  bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    occurred_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    transition    text        NOT NULL,
    event_id      uuid,
    ledger_id     uuid,
    first_seq     bigint,
    last_seq      bigint,
    event_count   integer     NOT NULL DEFAULT 1,
    from_status   text,
    to_status     text,
    code          text,
    actor         text,
    reason        text,
    CONSTRAINT audit_lifecycle_pkey PRIMARY KEY (lifecycle_no),
    CONSTRAINT audit_lifecycle_subject_check CHECK (event_id IS NOT NULL OR first_seq IS NOT NULL)
);
CREATE INDEX audit_lifecycle_event_idx ON audit_lifecycle (event_id) WHERE event_id IS NOT NULL;
COMMENT ON TABLE audit_lifecycle IS 'One row for each transition other than pending to delivered; a bulk transition names a range of numbers. Never changed.';

-- Client request ids, inserted first in the business transaction, kept 24 hours.
CREATE TABLE requests (
    principal      text        NOT NULL,
    method         text        NOT NULL,
    request_id     uuid        NOT NULL,
    body_hash      bytea       NOT NULL,
    result_name    text        NOT NULL,
    result_version bigint      NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT requests_pkey PRIMARY KEY (principal, method, request_id)
);
CREATE INDEX requests_created_idx ON requests (created_at);
COMMENT ON TABLE requests IS 'Makes a repeated call safe: same id and body, same answer, nothing changed or recorded again.';

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused: it is append-only', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION refuse_renumbering() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'event % already has number % of ledger %', OLD.event_id, OLD.ledger_seq, OLD.ledger_id
        USING ERRCODE = 'insufficient_privilege';
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION refuse_halves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'event %: a number has a ledger, a claim has an owner, a token and an end', NEW.event_id
        USING ERRCODE = 'check_violation';
END $$;
-- +goose StatementEnd

CREATE TRIGGER audit_lifecycle_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_lifecycle
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER audit_outbox_no_truncate BEFORE TRUNCATE ON audit_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
-- AFTER: a trigger before the update would lock each row first, and log that.
CREATE TRIGGER audit_outbox_number_once AFTER UPDATE OF ledger_id, ledger_seq ON audit_outbox
    FOR EACH ROW WHEN (OLD.ledger_seq IS NOT NULL
        AND (OLD.ledger_id, OLD.ledger_seq) IS DISTINCT FROM (NEW.ledger_id, NEW.ledger_seq))
    EXECUTE FUNCTION refuse_renumbering();

CREATE TRIGGER audit_outbox_no_halves AFTER UPDATE OF ledger_id, ledger_seq, claim_owner, claim_token, claim_expires_at ON audit_outbox
    FOR EACH ROW WHEN ((NEW.ledger_id IS NULL) <> (NEW.ledger_seq IS NULL)
        OR (NEW.claim_token IS NULL) <> (NEW.claim_owner IS NULL) OR (NEW.claim_token IS NULL) <> (NEW.claim_expires_at IS NULL))
    EXECUTE FUNCTION refuse_halves();

-- Deletes finished rows past their age, oldest first, and nothing else. With
-- requires_confirmation a row is finished when the receiver's stored receipt
-- holds its number; no receipt is stored yet, so nothing is deleted.
-- +goose StatementBegin
CREATE FUNCTION outbox_prune(batch integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted bigint;
BEGIN
    IF batch IS NULL OR batch < 1 OR batch > 10000 THEN
        RAISE EXCEPTION 'outbox_prune: batch must be 1 to 10000, not %', batch USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH finished AS (
        SELECT o.event_id
        FROM public.audit_outbox o, public.audit_retention r
        WHERE o.status = 'DELIVERED' AND o.ledger_seq IS NOT NULL
          AND NOT r.requires_confirmation
          AND o.delivered_at < clock_timestamp() - r.finished_age
        ORDER BY o.event_id
        LIMIT batch
        FOR UPDATE OF o SKIP LOCKED
    )
    DELETE FROM public.audit_outbox o USING finished f WHERE o.event_id = f.event_id;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN deleted;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION outbox_prune(integer) FROM PUBLIC;

-- +goose Down
DROP FUNCTION outbox_prune(integer);
DROP TABLE requests, audit_lifecycle, audit_retention, audit_ledger, audit_outbox;
DROP FUNCTION refuse_halves();
DROP FUNCTION refuse_renumbering();
DROP FUNCTION refuse_change();
DROP DOMAIN event_payload, row_version, outbox_status;
