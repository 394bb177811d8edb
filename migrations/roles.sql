-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- The six roles of the system, two for each owner: <owner>_owner owns the database
-- and migrates it, <owner>_service is what the service connects as. Roles belong to
-- the whole server, so this script stands beside the migrations and not among them.
--
-- Run it as a superuser, connected to the database `postgres`: advisory locks hold
-- within one database only. It can be run again at any time and changes only what
-- differs. Passwords are set separately.
DO $$
DECLARE
    owner    text;
    kind     text;
    name     text;
    role     pg_catalog.pg_roles;
    setting  text[];
    wanted   text;
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(7164014001);
    FOREACH owner IN ARRAY ARRAY['auth', 'app', 'admin'] LOOP
        FOREACH kind IN ARRAY ARRAY['owner', 'service'] LOOP
            name := owner || '_' || kind;
            SELECT * INTO role FROM pg_catalog.pg_roles r WHERE r.rolname = name;
            IF NOT FOUND THEN
                EXECUTE pg_catalog.format('CREATE ROLE %I LOGIN', name);
                SELECT * INTO role FROM pg_catalog.pg_roles r WHERE r.rolname = name;
            END IF;
            -- An owner role inherits, because owning a database acts through membership in
            -- pg_database_owner. A service role inherits nothing, whatever it is granted.
            IF role.rolsuper OR role.rolcreaterole OR role.rolcreatedb OR role.rolreplication OR role.rolbypassrls
                OR NOT role.rolcanlogin OR role.rolinherit <> (kind = 'owner') THEN
                EXECUTE pg_catalog.format(
                    'ALTER ROLE %I LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS %s',
                    name, CASE kind WHEN 'owner' THEN 'INHERIT' ELSE 'NOINHERIT' END);
            END IF;
            CONTINUE WHEN kind = 'owner';
            -- A worker that freezes inside a transaction loses its locks before its lease of
            -- 30 s ends; nothing waits for a lock longer than a handler may run.
            FOREACH setting SLICE 1 IN ARRAY ARRAY[
                ['idle_in_transaction_session_timeout', '20s'],
                ['lock_timeout', '5s'],
                ['default_transaction_isolation', 'read committed']
            ] LOOP
                wanted := setting[1] || '=' || setting[2];
                IF role.rolconfig IS NULL OR NOT wanted = ANY (role.rolconfig) THEN
                    EXECUTE pg_catalog.format('ALTER ROLE %I SET %I = %L', name, setting[1], setting[2]);
                END IF;
            END LOOP;
        END LOOP;
    END LOOP;
END $$;
