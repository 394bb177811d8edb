-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- The guard: the database refuses a change of an audited table without its event,
-- and an event with a version without its change, whoever wrote the SQL. Both are
-- checked when the transaction commits. Names are qualified, so that nothing in a
-- search path, temporary tables above all, comes in their way.

-- +goose Up
-- A row that is gone cannot be looked up, and the event of its last version may
-- have aged out of the outbox: this is what an event of a deletion is held against.
-- It is also why an id is never used again.
CREATE TABLE audit_deleted (
    resource_type text   NOT NULL,
    resource_id   uuid   NOT NULL,
    version       bigint NOT NULL,
    tx            xid8   NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT audit_deleted_pkey PRIMARY KEY (resource_type, resource_id)
);
COMMENT ON TABLE audit_deleted IS 'Ids of deleted audited rows, with the version of the deletion. Written by triggers only.';

-- +goose StatementBegin
CREATE FUNCTION remember_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO public.audit_deleted (resource_type, resource_id, version) VALUES (TG_ARGV[0], OLD.id, OLD.version + 1);
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- No change without its event. Checked at commit, so that either may come first:
-- one look-up, and if it finds nothing, what was wrong.
-- +goose StatementBegin
CREATE FUNCTION require_event() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    kind     text := TG_ARGV[0];
    row_id   uuid;
    expected bigint;
    recorded text;
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM FROM public.audit_outbox o
        WHERE o.resource_type = kind AND o.resource_id = NEW.id::text AND o.resource_version = 1 AND NEW.version = 1
          AND o.operation <> 'DELETE' AND o.tx = pg_catalog.pg_current_xact_id()
          AND NOT EXISTS (SELECT FROM public.audit_deleted d WHERE d.resource_type = kind AND d.resource_id = NEW.id AND d.tx <> o.tx);
    ELSIF TG_OP = 'UPDATE' THEN
        PERFORM FROM public.audit_outbox o
        WHERE o.resource_type = kind AND o.resource_id = NEW.id::text AND o.resource_version = OLD.version + 1
          AND NEW.version = OLD.version + 1 AND NEW.id = OLD.id
          AND o.operation <> 'DELETE' AND o.tx = pg_catalog.pg_current_xact_id();
    ELSE
        PERFORM FROM public.audit_outbox o
        WHERE o.resource_type = kind AND o.resource_id = OLD.id::text AND o.resource_version = OLD.version + 1
          AND o.operation = 'DELETE' AND o.tx = pg_catalog.pg_current_xact_id();
    END IF;
    IF FOUND THEN
        RETURN NULL;
    END IF;

    row_id := CASE WHEN TG_OP = 'DELETE' THEN OLD.id ELSE NEW.id END;
    expected := CASE WHEN TG_OP = 'INSERT' THEN 1 ELSE OLD.version + 1 END;
    IF TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        RAISE EXCEPTION 'the id of % % was changed to %: an id stays', kind, OLD.id, NEW.id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.version <> expected THEN
        RAISE EXCEPTION 'version % of % % is refused: this change makes version %', NEW.version, kind, row_id, expected
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    SELECT o.operation INTO recorded FROM public.audit_outbox o
    WHERE o.resource_type = kind AND o.resource_id = row_id::text AND o.resource_version = expected
      AND o.tx = pg_catalog.pg_current_xact_id();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'version % of % % has no event in this transaction: record it in audit_outbox', expected, kind, row_id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF (recorded = 'DELETE') <> (TG_OP = 'DELETE') THEN
        RAISE EXCEPTION 'version % of % % was made by % and recorded as %', expected, kind, row_id, TG_OP, recorded
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RAISE EXCEPTION 'the id of % % belonged to a row that was deleted: an id is never used again', kind, row_id
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
-- +goose StatementEnd

-- No event without its change: what an event must agree with that does not tell of
-- its row's last version. standing and made are version and xmin of the row, null if
-- there is none.
-- +goose StatementBegin
CREATE FUNCTION check_version(event_id uuid, kind text, row_id text, said bigint, standing bigint, made xid) RETURNS void
    LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    this   xid8 := pg_catalog.pg_current_xact_id();
    newest bigint; -- the last version that this transaction made
BEGIN
    IF standing IS NULL THEN
        SELECT d.version INTO newest FROM public.audit_deleted d
        WHERE d.resource_type = kind AND d.resource_id = row_id::uuid AND d.tx = this;
    -- The transaction itself has age 0. A savepoint's id is younger and still in progress, which of what can be seen here
    -- no other's is.
    ELSIF pg_catalog.age(made) = 0 OR pg_catalog.age(made) < 0
        AND pg_catalog.pg_xact_status((this::text::bigint - pg_catalog.age(made))::text::xid8) = 'in progress' THEN
        newest := standing;
    END IF;
    IF newest IS NULL THEN
        RAISE EXCEPTION 'event % is refused: this transaction made no version % of % %', event_id, said, kind, row_id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF said > newest OR said < newest AND NOT EXISTS (
        SELECT FROM public.audit_outbox o
        WHERE o.resource_type = kind AND o.resource_id = row_id AND o.resource_version = said + 1 AND o.tx = this)
    THEN
        RAISE EXCEPTION 'event % is refused: it says version % of % %, and this transaction made version %',
            event_id, said, kind, row_id, newest USING ERRCODE = 'integrity_constraint_violation';
    END IF;
END $$;
-- +goose StatementEnd

-- audit_guard makes a table audited: from now on the database refuses each change
-- of it that has no event of this type, id and version in its transaction, and each
-- such event that has no change. For migrations; services cannot call it.
-- +goose StatementBegin
CREATE FUNCTION audit_guard(audited regclass, kind text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name  text := (SELECT relname FROM pg_class WHERE oid = audited);
    kinds text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class WHERE oid = audited AND relkind = 'r' AND relpersistence = 'p' AND NOT relispartition
            AND NOT relhassubclass AND relnamespace = 'public'::regnamespace)
        OR EXISTS (SELECT FROM pg_inherits WHERE inhrelid = audited) THEN
        RAISE EXCEPTION '% cannot be guarded: it must be an ordinary logged table of schema public', audited;
    END IF;
    IF 2 <> (SELECT count(*) FROM pg_attribute WHERE attrelid = audited AND attnotnull
            AND (attname, atttypid) IN (('id', 'uuid'::regtype), ('version', 'bigint'::regtype))) THEN
        RAISE EXCEPTION '% cannot be guarded: it needs id uuid NOT NULL and version bigint NOT NULL', audited;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = audited AND a.attname = 'id'
            WHERE i.indrelid = audited AND i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indkey::text = a.attnum::text) THEN
        RAISE EXCEPTION '% cannot be guarded: id must be unique', audited;
    END IF;
    IF length(name) > 48 THEN
        RAISE EXCEPTION '% cannot be guarded: its name has more than 48 characters, and triggers are named after it', audited;
    END IF;
    IF EXISTS (SELECT FROM pg_trigger WHERE tgfoid = 'public.require_event()'::regprocedure AND encode(tgargs, 'escape') = kind || '\000') THEN
        RAISE EXCEPTION '% cannot be guarded: another table has the events of type %', audited, kind;
    END IF;
    EXECUTE format($sql$
        CREATE TRIGGER %1$I AFTER DELETE ON %4$s FOR EACH ROW EXECUTE FUNCTION remember_deleted(%5$L);
        CREATE TRIGGER %2$I BEFORE TRUNCATE ON %4$s FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
        CREATE CONSTRAINT TRIGGER %3$I AFTER INSERT OR UPDATE OR DELETE ON %4$s DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION require_event(%5$L);
        $sql$, name || '_deleted', name || '_no_truncate', name || '_require_event', audited, kind);

    -- One trigger for all types: Postgres reads the WHEN of each trigger anew for each INSERT. Nearly always an event tells of
    -- its row's last version, made by this transaction and in no savepoint.
    SELECT string_agg(format($sql$
            WHEN %1$L THEN
                PERFORM FROM public.%2$I r
                WHERE r.id = NEW.resource_id::uuid AND r.version = NEW.resource_version AND pg_catalog.age(r.xmin) = 0;
                IF FOUND THEN
                    RETURN NULL;
                END IF;
                SELECT r.version, r.xmin INTO standing, made FROM public.%2$I r WHERE r.id = NEW.resource_id::uuid;$sql$,
        split_part(encode(g.tgargs, 'escape'), '\000', 1), c.relname), '' ORDER BY c.relname)
    INTO kinds FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid WHERE g.tgfoid = 'public.require_event()'::regprocedure;
    EXECUTE format($sql$
        CREATE OR REPLACE FUNCTION require_change() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $body$
        DECLARE
            standing bigint;
            made     xid;
        BEGIN
            CASE NEW.resource_type %s
            ELSE
                RAISE EXCEPTION 'event %% is refused: it says version %% of a %%, of which no table is guarded (audit_guard)',
                    NEW.event_id, NEW.resource_version, NEW.resource_type USING ERRCODE = 'integrity_constraint_violation';
            END CASE;
            PERFORM public.check_version(NEW.event_id, NEW.resource_type, NEW.resource_id, NEW.resource_version, standing, made);
            RETURN NULL;
        END $body$;
        REVOKE ALL ON FUNCTION require_change() FROM PUBLIC;
        $sql$, kinds);
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'public.audit_outbox'::regclass AND tgname = 'audit_outbox_require_change') THEN
        CREATE CONSTRAINT TRIGGER audit_outbox_require_change AFTER INSERT ON audit_outbox DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN (NEW.resource_version IS NOT NULL) EXECUTE FUNCTION require_change();
    END IF;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION audit_guard(regclass, text), check_version(uuid, text, text, bigint, bigint, xid),
    remember_deleted(), require_event() FROM PUBLIC;

SELECT audit_guard('users', 'user');
SELECT audit_guard('role_grants', 'role_grant');
SELECT audit_guard('login_policies', 'login_policy');
SELECT audit_guard('sessions', 'session');

-- +goose Down
DROP TRIGGER audit_outbox_require_change ON audit_outbox;
DROP FUNCTION require_change();
DROP TRIGGER users_require_event ON users;
DROP TRIGGER users_no_truncate ON users;
DROP TRIGGER users_deleted ON users;
DROP TRIGGER role_grants_require_event ON role_grants;
DROP TRIGGER role_grants_no_truncate ON role_grants;
DROP TRIGGER role_grants_deleted ON role_grants;
DROP TRIGGER login_policies_require_event ON login_policies;
DROP TRIGGER login_policies_no_truncate ON login_policies;
DROP TRIGGER login_policies_deleted ON login_policies;
DROP TRIGGER sessions_require_event ON sessions;
DROP TRIGGER sessions_no_truncate ON sessions;
DROP TRIGGER sessions_deleted ON sessions;
DROP FUNCTION audit_guard(regclass, text), check_version(uuid, text, text, bigint, bigint, xid), require_event(), remember_deleted();
DROP TABLE audit_deleted;
