// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

// Every statement of the package. Times come from the database's clock: clock_timestamp(), since
// now() is the start of the transaction, and a lease counts from when it is taken. Statements that
// end or extend a lease name its token; one that matches nothing has lost it.

// Takeover, in this order within one transaction.
const (
	// sqlMakePosition makes the row that takeovers of one owner lock.
	sqlMakePosition = `
INSERT INTO ledger_positions (owner, stream) VALUES ($1, $2) ON CONFLICT (owner) DO NOTHING`

	// sqlLockPosition comes first: whoever holds it is the only one who takes this owner's events over.
	// What follows is a new statement and so sees all that the holder before committed.
	sqlLockPosition = `
SELECT last_entry_id FROM ledger_positions WHERE owner = $1 FOR UPDATE`

	// sqlHeldEvents finds what is on record of these events, of any owner.
	sqlHeldEvents = `
SELECT ledger_id, ledger_seq, event_id, leaf_hash, owner FROM ledger_entries WHERE event_id = ANY ($1::uuid[])`

	// sqlHeldRange finds what is on record under the numbers of one ledger from $2 to $3.
	sqlHeldRange = `
SELECT ledger_id, ledger_seq, event_id, leaf_hash, owner FROM ledger_entries
WHERE ledger_id = $1 AND ledger_seq BETWEEN $2 AND $3`

	// sqlHeldNumbers is sqlHeldRange for numbers that lie far apart.
	sqlHeldNumbers = `
SELECT ledger_id, ledger_seq, event_id, leaf_hash, owner FROM ledger_entries
WHERE ledger_id = $1 AND ledger_seq = ANY ($2::bigint[])`

	// sqlLedgerOwner finds whose ledger an id is: its first number's owner.
	sqlLedgerOwner = `
SELECT owner FROM ledger_entries WHERE ledger_id = $1 ORDER BY ledger_seq LIMIT 1`

	sqlNow = `SELECT clock_timestamp()`

	// sqlInsertLedger and sqlInsertEvents write what the look-up did not find. Only a takeover of another
	// owner can have written one of these ids since: 23505 then, and the page is taken again.
	sqlInsertLedger = `
INSERT INTO ledger_entries (ledger_id, ledger_seq, event_id, leaf_hash, owner)
SELECT n.ledger_id, n.ledger_seq, n.event_id, n.leaf_hash, $5
FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::bytea[]) AS n (ledger_id, ledger_seq, event_id, leaf_hash)`

	sqlInsertEvents = `
INSERT INTO inbox_events (event_id, ledger_id, ledger_seq, schema_version, owner, event_type, entry_id, traceparent, tracestate, payload)
SELECT n.event_id, n.ledger_id, n.ledger_seq, n.schema_version, $9, n.event_type, n.entry_id, n.traceparent, n.tracestate, n.payload
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::text[], $10::bytea[])
    AS n (event_id, ledger_id, ledger_seq, schema_version, event_type, entry_id, traceparent, tracestate, payload)`

	// sqlInsertInbox hands events to one consumer. A row that exists is left as it is (insertIfAbsent).
	sqlInsertInbox = `
INSERT INTO consumer_inbox (event_id, consumer)
SELECT n.event_id, $2 FROM unnest($1::uuid[]) AS n (event_id)
ON CONFLICT (event_id, consumer) DO NOTHING`

	// sqlInsertInboxNew is the same for events that the look-up did not find, which have no row: it costs a
	// third less. Should one exist all the same, the unique key refuses it and the page is taken again
	// with sqlInsertInbox.
	sqlInsertInboxNew = `
INSERT INTO consumer_inbox (event_id, consumer)
SELECT n.event_id, $2 FROM unnest($1::uuid[]) AS n (event_id)`

	// sqlInsertPoison keeps distinct bytes once. A reply that was lost brings the same entry again,
	// which is not counted twice.
	sqlInsertPoison = `
INSERT INTO inbox_poison AS p (stream, fields_hash, kind, reason, owner, event_id, ledger_id, ledger_seq, claimed_type,
    first_entry_id, last_entry_id, seen_count, raw_fields, raw_size)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (stream, fields_hash) DO UPDATE
SET last_entry_id = EXCLUDED.last_entry_id,
    last_seen_at = clock_timestamp(),
    seen_count = p.seen_count + CASE WHEN p.last_entry_id = EXCLUDED.last_entry_id THEN 0 ELSE EXCLUDED.seen_count END`

	sqlMovePosition = `
UPDATE ledger_positions SET stream = $2, last_entry_id = $3, taken_over = taken_over + $4, updated_at = clock_timestamp()
WHERE owner = $1`
)

// Work on inbox rows. $1 is always the consumer.
const (
	// sqlClaim takes due rows and rows whose lease expired, above the low-water mark $2 and up to $10, in the order
	// of takeover, skipping what another worker is taking at this moment. $3 and $4 bound the attempts
	// used so far: rows that were started too often without success are taken one at a time. The page ends
	// where its payloads reach $8 bytes; their lengths are read without reading the payloads. OFFSET 0
	// makes it a look-up for each row, also where the planner takes inbox_events for empty.
	// While a row is PROCESSING, next_retry_at is when its lease began.
	sqlClaim = `
WITH due AS MATERIALIZED (
    SELECT c.ctid AS tid, c.event_id, c.inbox_no
    FROM consumer_inbox c
    WHERE c.consumer = $1 AND c.finished_at IS NULL AND c.inbox_no > $2 AND c.inbox_no <= $10
      AND c.attempts BETWEEN $3 AND $4
      AND (c.state = 'PENDING' AND c.next_retry_at <= clock_timestamp()
           OR c.state = 'PROCESSING' AND c.lease_expires_at <= clock_timestamp())
    ORDER BY c.inbox_no
    LIMIT $5
    FOR UPDATE SKIP LOCKED
), sized AS (
    SELECT d.tid, d.inbox_no, e.event_id, e.ledger_id, e.ledger_seq, e.schema_version, e.owner, e.event_type,
        e.traceparent, e.tracestate, e.payload,
        sum(octet_length(e.payload)) OVER (ORDER BY d.inbox_no) - octet_length(e.payload) AS bytes_before
    FROM due d CROSS JOIN LATERAL (SELECT * FROM inbox_events WHERE event_id = d.event_id OFFSET 0) e
)
UPDATE consumer_inbox c
SET state = 'PROCESSING', attempts = c.attempts + 1, lease_owner = $6, lease_token = $7,
    lease_expires_at = clock_timestamp() + $9::interval, next_retry_at = clock_timestamp()
FROM sized s
WHERE c.ctid = s.tid AND s.bytes_before < $8
RETURNING s.inbox_no, s.event_id, s.ledger_id, s.ledger_seq, s.schema_version, s.owner, s.event_type, s.traceparent,
    s.tracestate, s.payload, c.attempts`

	// sqlRenew never waits: a row that the terminal update holds needs no renewal.
	sqlRenew = `
UPDATE consumer_inbox c
SET lease_expires_at = clock_timestamp() + $4::interval
FROM (SELECT r.ctid AS tid FROM consumer_inbox r
      WHERE r.consumer = $1 AND r.event_id = ANY ($2::uuid[]) AND r.lease_token = $3 AND r.state = 'PROCESSING'
      FOR UPDATE SKIP LOCKED) held
WHERE c.ctid = held.tid`

	// sqlFinish is the last statement before the commit of the handler's transaction.
	sqlFinish = `
UPDATE consumer_inbox
SET state = 'PROCESSED', finished_at = clock_timestamp(), lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL,
    last_error_code = NULL, last_error_at = NULL
WHERE consumer = $1 AND event_id = ANY ($2::uuid[]) AND lease_token = $3 AND state = 'PROCESSING'`

	// sqlFail records a failure: $5 is the backoff, $6 says that it was the last attempt.
	sqlFail = `
UPDATE consumer_inbox
SET state = CASE WHEN $6 THEN 'DEAD' ELSE 'PENDING' END,
    finished_at = CASE WHEN $6 THEN clock_timestamp() END,
    dead_at = CASE WHEN $6 THEN clock_timestamp() END,
    next_retry_at = clock_timestamp() + $5::interval,
    last_error_code = $4, last_error_at = clock_timestamp(),
    attempts = least(attempts, $7),
    lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
WHERE consumer = $1 AND event_id = ANY ($2::uuid[]) AND lease_token = $3 AND state = 'PROCESSING'`

	// sqlGiveBack undoes a claim, its attempt included.
	sqlGiveBack = `
UPDATE consumer_inbox
SET state = 'PENDING', attempts = greatest(attempts - 1, 0), next_retry_at = clock_timestamp() + $4::interval,
    lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
WHERE consumer = $1 AND event_id = ANY ($2::uuid[]) AND lease_token = $3 AND state = 'PROCESSING'`

	// sqlGiveBackToken is sqlGiveBack for a claim whose reply never came. It reads the open rows above $3.
	sqlGiveBackToken = `
UPDATE consumer_inbox
SET state = 'PENDING', attempts = greatest(attempts - 1, 0), next_retry_at = clock_timestamp(),
    lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL
WHERE consumer = $1 AND lease_token = $2 AND inbox_no > $3 AND finished_at IS NULL AND state = 'PROCESSING'`
)

// What operators do. Rows are locked in the order of their ids first.
const (
	sqlLockRows = `
SELECT event_id, state FROM consumer_inbox
WHERE consumer = $1 AND event_id = ANY ($2::uuid[]) ORDER BY event_id FOR UPDATE`

	// sqlReopen leaves the state $3 for PENDING.
	sqlReopen = `
UPDATE consumer_inbox
SET state = 'PENDING', attempts = 0, next_retry_at = clock_timestamp(), finished_at = NULL, dead_at = NULL
WHERE consumer = $1 AND event_id = ANY ($2::uuid[]) AND state = $3`

	sqlLockPoison = `
SELECT id, kind, owner, resolved_at IS NULL AND discarded_at IS NULL, raw_fields, raw_size, last_entry_id
FROM inbox_poison WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE`

	sqlResolvePoison = `
UPDATE inbox_poison SET resolved_at = clock_timestamp(), resolved_by = $2, action_reason = $3
WHERE id = ANY ($1::uuid[]) AND resolved_at IS NULL AND discarded_at IS NULL`

	sqlDiscardPoison = `
UPDATE inbox_poison SET discarded_at = clock_timestamp(), discarded_by = $2, action_reason = $3
WHERE id = ANY ($1::uuid[]) AND resolved_at IS NULL AND discarded_at IS NULL`

	sqlPrune = `SELECT inbox_prune($1::interval, $2)`
)

// What is read. Rows and poison are listed newest first, from a cursor on.
const (
	rowColumns = `
SELECT c.consumer, c.event_id, e.owner, e.event_type, e.schema_version, e.ledger_id, e.ledger_seq, e.entry_id, c.state,
    c.attempts, c.received_at, c.next_retry_at, coalesce(c.lease_owner, ''), c.lease_expires_at, c.finished_at,
    coalesce(c.last_error_code, ''), c.last_error_at
FROM consumer_inbox c JOIN inbox_events e ON e.event_id = c.event_id`

	sqlList = rowColumns + `
WHERE ($1 = '' OR c.consumer = $1)
  AND ($2 = '' OR c.state = $2)
  AND ($3::uuid IS NULL OR c.event_id = $3)
  AND ($4 = '' OR e.owner = $4)
  AND ($5::uuid IS NULL OR (c.event_id, c.consumer) < ($5, $6))
  AND ($2 NOT IN ('PENDING', 'PROCESSING') OR c.finished_at IS NULL)
  AND ($2 <> 'DEAD' OR c.dead_at IS NOT NULL)
ORDER BY c.event_id DESC, c.consumer DESC
LIMIT $7`

	sqlGet = rowColumns + `
WHERE c.consumer = $1 AND c.event_id = $2`

	poisonColumns = `
SELECT id, stream, owner, kind, reason,
    CASE WHEN resolved_at IS NOT NULL THEN 'RESOLVED' WHEN discarded_at IS NOT NULL THEN 'DISCARDED' ELSE 'OPEN' END,
    event_id, claimed_type, ledger_id, coalesce(ledger_seq, 0), first_entry_id, last_entry_id, seen_count, first_seen_at,
    last_seen_at, raw_size, coalesce(resolved_by, discarded_by, ''), coalesce(resolved_at, discarded_at),
    coalesce(action_reason, '')`

	sqlListPoison = poisonColumns + `, NULL::bytea
FROM inbox_poison
WHERE ($1 = '' OR kind = $1)
  AND ($2 = '' OR ($2 = 'OPEN') = (resolved_at IS NULL AND discarded_at IS NULL)
      AND ($2 <> 'RESOLVED' OR resolved_at IS NOT NULL) AND ($2 <> 'DISCARDED' OR discarded_at IS NOT NULL))
  AND ($3::uuid IS NULL OR event_id = $3)
  AND ($4::timestamptz IS NULL OR (first_seen_at, id) < ($4, $5))
ORDER BY first_seen_at DESC, id DESC
LIMIT $6`

	sqlGetPoison = poisonColumns + `, raw_fields
FROM inbox_poison WHERE id = $1`

	// sqlStatus counts open and dead rows only: both have an index, finished rows are too many to count.
	sqlStatus = `
SELECT consumer, state, CASE state WHEN 'DEAD' THEN coalesce(last_error_code, '') ELSE '' END, attempts > 0, count(*),
    extract(epoch FROM clock_timestamp() - min(received_at))::float8,
    extract(epoch FROM clock_timestamp() - min(next_retry_at))::float8
FROM consumer_inbox
WHERE finished_at IS NULL OR dead_at IS NOT NULL
GROUP BY 1, 2, 3, 4`

	sqlPositions = `
SELECT owner, stream, last_entry_id, taken_over, updated_at FROM ledger_positions ORDER BY owner`

	sqlOpenPoison = `
SELECT kind, reason, count(*) FROM inbox_poison WHERE resolved_at IS NULL AND discarded_at IS NULL GROUP BY 1, 2 ORDER BY 1, 2`

	sqlColumns = `
SELECT table_name || '.' || column_name || ':' || data_type FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = ANY ($1)`

	sqlUniques = `
SELECT t.relname || ' unique ' || string_agg(a.attname, ',' ORDER BY a.attname)
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum = ANY (i.indkey)
WHERE i.indisunique AND i.indisvalid AND i.indpred IS NULL AND t.relnamespace = current_schema()::regnamespace AND t.relname = ANY ($1)
GROUP BY t.relname, i.indexrelid`

	sqlIndexes = `
SELECT t.relname || ' index ' || x.relname
FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_class t ON t.oid = i.indrelid
JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
WHERE i.indisvalid AND t.relnamespace = current_schema()::regnamespace AND t.relname = ANY ($1)`
)
