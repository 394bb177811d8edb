-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- What may be done in the database of app, whole: each run takes everything from
-- app_service first. Applied after each migration, and after a database was created
-- or cloned, since a clone copies no database rights. Run it in one transaction, as
-- app_owner or a superuser.
SELECT pg_catalog.pg_advisory_xact_lock(7164014002);

DO $$
BEGIN
    IF (SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database()) <> 'app_owner'::regrole THEN
        EXECUTE format('ALTER DATABASE %I OWNER TO app_owner', current_database());
    END IF;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC, app_service', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO app_owner, app_service', current_database());
END $$;
ALTER SCHEMA public OWNER TO app_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC, app_service;
GRANT USAGE ON SCHEMA public TO app_service;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, app_service;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, app_service;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC, app_service;

GRANT SELECT ON goose_db_version TO app_service;

-- The service states what happened and moves the delivery state on. It can neither
-- name the transaction nor the order nor a status when it appends, nor change or
-- remove what it appended.
GRANT SELECT ON audit_outbox TO app_service;
GRANT INSERT (event_id, occur_time, resource_version, schema_version, event_type, operation, resource_type,
    resource_id, traceparent, tracestate, payload) ON audit_outbox TO app_service;
GRANT UPDATE (ledger_id, ledger_seq, next_attempt_at, attempts, claim_count, redelivery_count, status, claim_owner,
    claim_token, claimed_at, claim_expires_at, delivered_at, provider_name, provider_record_id, last_error_code,
    last_error_at, dead_letter_reason) ON audit_outbox TO app_service;
GRANT EXECUTE ON FUNCTION outbox_prune(integer) TO app_service;
GRANT SELECT ON audit_retention, audit_deleted TO app_service;
GRANT EXECUTE ON FUNCTION check_version(uuid, text, text, bigint, bigint, xid) TO app_service;
GRANT SELECT, INSERT ON audit_lifecycle TO app_service;
GRANT SELECT ON audit_ledger TO app_service;
GRANT UPDATE (head, tree_size, compact_range, system_identifier, timeline, database_oid, sealed_at, last_checkpoint_at)
    ON audit_ledger TO app_service;

GRANT SELECT, INSERT, UPDATE, DELETE ON requests, projects, project_members TO app_service;
