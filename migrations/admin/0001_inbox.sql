-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- Takeover. The bridge writes these tables in one transaction and only then
-- acknowledges the stream entry: from that commit on, the event is Admin's.

-- +goose Up

-- A rule of one column is a domain and not a CHECK: Postgres prepares each CHECK
-- of a table anew for each statement that writes it.
CREATE DOMAIN inbox_state AS text CHECK (VALUE IN ('PENDING', 'PROCESSING', 'PROCESSED', 'DEAD'));
CREATE DOMAIN ledger_number AS bigint CHECK (VALUE >= 1);
CREATE DOMAIN leaf_hash AS bytea CHECK (octet_length(VALUE) = 32);

-- One row an owner, locked first by each takeover, so that takeovers of one
-- owner are serial and every check in them is final.
CREATE TABLE ledger_positions (
    owner         text        NOT NULL,
    stream        text        NOT NULL,
    last_entry_id text        NOT NULL DEFAULT '0-0',
    taken_over    bigint      NOT NULL DEFAULT 0,
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ledger_positions_pkey PRIMARY KEY (owner)
) WITH (fillfactor = 10);
COMMENT ON TABLE ledger_positions IS 'Written by the bridge at each takeover.';

-- What each owner's ledger holds, as taken over. Never ages and never changes,
-- so it decides duplicates and conflicts for ever.
CREATE TABLE ledger_entries (
    ledger_id  uuid          NOT NULL,
    ledger_seq ledger_number NOT NULL,
    event_id   uuid          NOT NULL,
    leaf_hash  leaf_hash     NOT NULL,
    owner      text          NOT NULL,
    CONSTRAINT ledger_entries_pkey PRIMARY KEY (ledger_id, ledger_seq)
);
CREATE INDEX ledger_entries_event_idx ON ledger_entries (event_id);
COMMENT ON TABLE ledger_entries IS 'Written by the bridge, read by the verifier. Append-only.';
COMMENT ON COLUMN ledger_entries.leaf_hash IS 'RFC 6962 leaf hash over the 16 id bytes and the payload.';

-- The event as it came, once, however many consumers want it.
CREATE TABLE inbox_events (
    event_id       uuid        NOT NULL,
    ledger_id      uuid        NOT NULL,
    ledger_seq     bigint      NOT NULL,
    received_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    schema_version integer     NOT NULL,
    owner          text        NOT NULL,
    event_type     text        NOT NULL,
    entry_id       text        NOT NULL,
    traceparent    text        NOT NULL DEFAULT '',
    tracestate     text        NOT NULL DEFAULT '',
    payload        bytea       NOT NULL,
    CONSTRAINT inbox_events_pkey PRIMARY KEY (event_id)
);
COMMENT ON TABLE inbox_events IS 'Written by the bridge, read by consumers; pruned with the last consumer_inbox row of the event.';

-- One consumer's work on one event.
CREATE TABLE consumer_inbox (
    event_id         uuid        NOT NULL,
    inbox_no         bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    received_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    consumer         text        NOT NULL,
    next_retry_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempts         integer     NOT NULL DEFAULT 0,
    state            inbox_state NOT NULL DEFAULT 'PENDING',
    lease_owner      text,
    lease_token      uuid,
    lease_expires_at timestamptz,
    finished_at      timestamptz,
    dead_at          timestamptz,
    last_error_code  text,
    last_error_at    timestamptz,
    CONSTRAINT consumer_inbox_pkey PRIMARY KEY (event_id, consumer),
    CONSTRAINT consumer_inbox_finished_check CHECK ((finished_at IS NULL) = (state IN ('PENDING', 'PROCESSING'))),
    CONSTRAINT consumer_inbox_dead_check CHECK ((dead_at IS NULL) = (state <> 'DEAD')),
    CONSTRAINT consumer_inbox_lease_check CHECK
        ((state = 'PROCESSING') = (lease_token IS NOT NULL) AND (lease_token IS NULL) = (lease_expires_at IS NULL)
         AND (lease_token IS NULL) = (lease_owner IS NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
-- The predicates name times and not state, so that taking a lease stays a heap-only update.
CREATE INDEX consumer_inbox_open_idx ON consumer_inbox (consumer, inbox_no) WHERE finished_at IS NULL;
CREATE INDEX consumer_inbox_dead_idx ON consumer_inbox (consumer, event_id) WHERE dead_at IS NOT NULL;
COMMENT ON TABLE consumer_inbox IS 'Written by the bridge (PENDING) and by the consumer (everything after). Unique by (consumer, event_id); the event is written in the same transaction, so no foreign key checks it.';

-- What could not be taken over as an event. Unique by the bytes, not by the
-- entry id: a loop does not fill the disk, and evidence is kept when ids repeat.
CREATE TABLE inbox_poison (
    id             uuid        NOT NULL DEFAULT gen_random_uuid(),
    stream         text        NOT NULL,
    fields_hash    bytea       NOT NULL,
    kind           text        NOT NULL,
    reason         text        NOT NULL,
    owner          text        NOT NULL,
    event_id       uuid,
    ledger_id      uuid,
    ledger_seq     bigint,
    claimed_type   text        NOT NULL DEFAULT '',
    first_entry_id text        NOT NULL,
    last_entry_id  text        NOT NULL,
    seen_count     bigint      NOT NULL DEFAULT 1,
    first_seen_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    raw_fields     bytea       NOT NULL,
    raw_size       bigint      NOT NULL,
    resolved_at    timestamptz,
    resolved_by    text,
    discarded_at   timestamptz,
    discarded_by   text,
    action_reason  text,
    CONSTRAINT inbox_poison_pkey PRIMARY KEY (id),
    CONSTRAINT inbox_poison_fields_key UNIQUE (stream, fields_hash),
    CONSTRAINT inbox_poison_kind_check CHECK (kind IN ('FORGED', 'PARKED', 'CONFLICT')),
    CONSTRAINT inbox_poison_one_end_check CHECK (resolved_at IS NULL OR discarded_at IS NULL)
);
CREATE INDEX inbox_poison_open_idx ON inbox_poison (kind, first_seen_at) WHERE resolved_at IS NULL AND discarded_at IS NULL;
CREATE INDEX inbox_poison_event_idx ON inbox_poison (event_id) WHERE event_id IS NOT NULL;
COMMENT ON TABLE inbox_poison IS 'Written by the bridge; resolved or discarded by an operator with a reason. Rows are never deleted.';

-- +goose StatementBegin
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% on % is refused: it is append-only', TG_OP, TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END $$;
-- +goose StatementEnd
CREATE TRIGGER ledger_entries_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER inbox_poison_kept BEFORE DELETE OR TRUNCATE ON inbox_poison
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

-- Deletes PROCESSED rows older than age, oldest first, and then events that no
-- consumer row needs any more. Dead, pending and running rows stay. One call works
-- at a time and the others return 0: of two that each deleted another consumer's
-- row, both would see the other's row and leave the event behind.
-- +goose StatementBegin
CREATE FUNCTION inbox_prune(age interval, batch integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    pruned uuid[];
BEGIN
    IF batch IS NULL OR batch < 1 OR batch > 10000 THEN
        RAISE EXCEPTION 'inbox_prune: batch must be 1 to 10000, not %', batch USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF age IS NULL OR age < interval '1 hour' THEN
        RAISE EXCEPTION 'inbox_prune: age must be at least an hour, not %', age USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT pg_try_advisory_xact_lock(7164014004) THEN
        RETURN 0;
    END IF;
    WITH finished AS (
        SELECT c.consumer, c.event_id
        FROM public.consumer_inbox c
        WHERE c.state = 'PROCESSED' AND c.finished_at < clock_timestamp() - age
        ORDER BY c.event_id
        LIMIT batch
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM public.consumer_inbox c USING finished f
        WHERE c.consumer = f.consumer AND c.event_id = f.event_id
        RETURNING c.event_id
    )
    SELECT array_agg(event_id) INTO pruned FROM gone;
    DELETE FROM public.inbox_events e
    WHERE e.event_id = ANY (pruned)
      AND NOT EXISTS (SELECT FROM public.consumer_inbox c WHERE c.event_id = e.event_id);
    RETURN coalesce(array_length(pruned, 1), 0);
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION inbox_prune(interval, integer) FROM PUBLIC;

-- +goose Down
DROP FUNCTION inbox_prune(interval, integer);
DROP TABLE inbox_poison, consumer_inbox, inbox_events, ledger_entries, ledger_positions;
DROP FUNCTION refuse_change();
DROP DOMAIN leaf_hash, ledger_number, inbox_state;
