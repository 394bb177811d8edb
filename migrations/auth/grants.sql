-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- What may be done in the database of auth, whole: each run takes everything from
-- auth_service first. Applied after each migration, and after a database was created
-- or cloned, since a clone copies no database rights. Run it in one transaction, as
-- auth_owner or a superuser.
SELECT pg_catalog.pg_advisory_xact_lock(7164014002);

DO $$
BEGIN
    IF (SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database()) <> 'auth_owner'::regrole THEN
        EXECUTE format('ALTER DATABASE %I OWNER TO auth_owner', current_database());
    END IF;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC, auth_service', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO auth_owner, auth_service', current_database());
END $$;
ALTER SCHEMA public OWNER TO auth_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC, auth_service;
GRANT USAGE ON SCHEMA public TO auth_service;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, auth_service;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, auth_service;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC, auth_service;

GRANT SELECT ON goose_db_version TO auth_service;

-- The service states what happened and moves the delivery state on. It can neither
-- name the transaction nor the order nor a status when it appends, nor change or
-- remove what it appended.
GRANT SELECT ON audit_outbox TO auth_service;
GRANT INSERT (event_id, occur_time, resource_version, schema_version, event_type, operation, resource_type,
    resource_id, traceparent, tracestate, payload) ON audit_outbox TO auth_service;
GRANT UPDATE (ledger_id, ledger_seq, next_attempt_at, attempts, claim_count, redelivery_count, status, claim_owner,
    claim_token, claimed_at, claim_expires_at, delivered_at, provider_name, provider_record_id, last_error_code,
    last_error_at, dead_letter_reason) ON audit_outbox TO auth_service;
GRANT EXECUTE ON FUNCTION outbox_prune(integer) TO auth_service;
GRANT SELECT ON audit_retention, audit_deleted TO auth_service;
GRANT EXECUTE ON FUNCTION check_version(uuid, text, text, bigint, bigint, xid) TO auth_service;
GRANT SELECT, INSERT ON audit_lifecycle TO auth_service;
GRANT SELECT ON audit_ledger TO auth_service;
GRANT UPDATE (head, tree_size, compact_range, system_identifier, timeline, database_oid, sealed_at, last_checkpoint_at)
    ON audit_ledger TO auth_service;

GRANT SELECT, INSERT, UPDATE, DELETE ON
    requests, users, role_grants, sessions, credentials, login_attempts, session_activity, refresh_tokens
    TO auth_service;
GRANT SELECT, INSERT, UPDATE ON login_policies TO auth_service;
