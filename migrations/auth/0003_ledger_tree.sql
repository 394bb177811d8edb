-- Copyright The Counterfoil Authors
-- SPDX-License-Identifier: Apache-2.0

-- The Merkle tree over the ledger's events. It moves with the numbers, in the
-- same transaction; events that were numbered before this migration are folded
-- in by the first passes after it, so it may be behind the head until then.

-- +goose Up
ALTER TABLE audit_ledger
    ADD COLUMN tree_size bigint NOT NULL DEFAULT 0,
    ADD CONSTRAINT audit_ledger_tree_check CHECK (tree_size BETWEEN 0 AND head
        AND cardinality(compact_range) = bit_count(tree_size::bit(64)));
COMMENT ON COLUMN audit_ledger.tree_size IS 'How many numbers, from 1, the tree covers: head, but for what was numbered before there was a tree.';
COMMENT ON COLUMN audit_ledger.compact_range IS 'Roots of the full subtrees that make up tree_size, the largest first (RFC 6962).';

-- Retention waits for the tree: a row that is gone before the tree covers it can
-- never be folded in, and nothing could be numbered any more.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox_prune(batch integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    deleted bigint;
BEGIN
    IF batch IS NULL OR batch < 1 OR batch > 10000 THEN
        RAISE EXCEPTION 'outbox_prune: batch must be 1 to 10000, not %', batch USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH finished AS (
        SELECT o.event_id
        FROM public.audit_outbox o, public.audit_retention r, public.audit_ledger l
        WHERE o.status = 'DELIVERED' AND o.ledger_seq IS NOT NULL
          AND (o.ledger_id <> l.ledger_id OR o.ledger_seq <= l.tree_size)
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

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox_prune(batch integer) RETURNS bigint
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
ALTER TABLE audit_ledger DROP CONSTRAINT audit_ledger_tree_check;
UPDATE audit_ledger SET compact_range = '{}';
ALTER TABLE audit_ledger DROP COLUMN tree_size;
