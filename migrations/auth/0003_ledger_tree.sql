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

-- +goose Down
ALTER TABLE audit_ledger DROP CONSTRAINT audit_ledger_tree_check;
UPDATE audit_ledger SET compact_range = '{}';
ALTER TABLE audit_ledger DROP COLUMN tree_size;
