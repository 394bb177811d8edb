-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- What may be done in the database of admin, whole: each run takes everything from
-- admin_service first. Applied after each migration, and after a database was created
-- or cloned, since a clone copies no database rights. Run it in one transaction, as
-- admin_owner or a superuser.
SELECT pg_catalog.pg_advisory_xact_lock(7164014002);

DO $$
BEGIN
    IF (SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database()) <> 'admin_owner'::regrole THEN
        EXECUTE format('ALTER DATABASE %I OWNER TO admin_owner', current_database());
    END IF;
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC, admin_service', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO admin_owner, admin_service', current_database());
END $$;
ALTER SCHEMA public OWNER TO admin_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC, admin_service;
GRANT USAGE ON SCHEMA public TO admin_service;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM PUBLIC, admin_service;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM PUBLIC, admin_service;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC, admin_service;

GRANT SELECT ON goose_db_version TO admin_service;

-- Takeover and proof: written once.
GRANT SELECT, INSERT, UPDATE ON ledger_positions TO admin_service;
GRANT SELECT, INSERT ON ledger_entries, inbox_events TO admin_service;

-- The work on an event. Finished rows are removed by inbox_prune and by nothing else.
GRANT SELECT ON consumer_inbox TO admin_service;
GRANT INSERT (event_id, consumer, received_at, next_retry_at) ON consumer_inbox TO admin_service;
GRANT UPDATE (next_retry_at, attempts, state, lease_owner, lease_token, lease_expires_at, finished_at, dead_at,
    last_error_code, last_error_at) ON consumer_inbox TO admin_service;
GRANT EXECUTE ON FUNCTION inbox_prune(interval, integer) TO admin_service;

-- Evidence: seen again, resolved or discarded, never rewritten or removed.
GRANT SELECT, INSERT ON inbox_poison TO admin_service;
GRANT UPDATE (last_entry_id, last_seen_at, seen_count, resolved_at, resolved_by, discarded_at, discarded_by,
    action_reason) ON inbox_poison TO admin_service;

-- The read model and admin's own ledger.
GRANT SELECT, INSERT ON audit_logs TO admin_service;
GRANT SELECT ON audit_ledger TO admin_service;
GRANT UPDATE (head, compact_range, system_identifier, timeline, database_oid, sealed_at, last_checkpoint_at)
    ON audit_ledger TO admin_service;

GRANT SELECT, INSERT ON security_observations, security_alerts TO admin_service;
GRANT UPDATE (severity, last_event_id, event_count, last_occur_time) ON security_alerts TO admin_service;
