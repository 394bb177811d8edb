// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

// Every statement of the package. Times are the database's; durations come in
// as microseconds. Lists come in as arrays, so a page is one statement.

const (
	sqlBegin    = `BEGIN ISOLATION LEVEL READ COMMITTED`
	sqlCommit   = `COMMIT`
	sqlRollback = `ROLLBACK`

	// Settings of one transaction. What may be repeated need not wait for the
	// disk: a claim, renewal or settle that a crash of the database forgets is
	// made again. A number must not be forgotten once an entry went out under it.
	// And the planner must not sort the whole queue for its first page, which it
	// thinks cheap as long as a fresh table has no statistics. Kept to the indexes,
	// its plan is right for every page, so it is made once a connection: for a
	// page of a few entries, planning is most of the work.
	sqlAsync = `SELECT set_config('synchronous_commit', 'off', true)` + sqlTimeouts + sqlByIndex
	sqlSync  = `SELECT set_config('synchronous_commit', 'on', true)` + sqlTimeouts + sqlByIndex

	// A process that stops in the middle frees its locks before its claims expire: else nobody could seal any more.
	sqlTimeouts = `, set_config('idle_in_transaction_session_timeout', '20s', true), set_config('lock_timeout', '5s', true)`

	// jit: the cost by which a scan counts as off would make it worthwhile.
	sqlByIndex = `, set_config('plan_cache_mode', 'force_generic_plan', true), set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`

	// sqlByHash goes before a statement that joins rows with a list: compared one by one, a page costs its square.
	sqlByHash = `SELECT set_config('enable_hashjoin', 'on', true), set_config('enable_nestloop', 'off', true)`
)

// sqlAppend never ignores a conflict. append_no is drawn in argument order.
const sqlAppend = `
INSERT INTO audit_outbox (event_id, occur_time, resource_version, schema_version, event_type, operation,
                          resource_type, resource_id, traceparent, tracestate, payload)
SELECT e.event_id, e.occur_time, e.resource_version, e.schema_version, e.event_type, e.operation,
       e.resource_type, e.resource_id, $10, $11, e.payload
FROM unnest($1::uuid[], $2::timestamptz[], $3::bigint[], $4::integer[], $5::text[], $6::text[], $7::text[],
            $8::text[], $9::bytea[])
     AS e (event_id, occur_time, resource_version, schema_version, event_type, operation,
           resource_type, resource_id, payload)`

// sqlAppendOne is sqlAppend for one event: it costs the server half as much, and most transactions have one.
const sqlAppendOne = `
INSERT INTO audit_outbox (event_id, occur_time, resource_version, schema_version, event_type, operation,
                          resource_type, resource_id, payload, traceparent, tracestate)
VALUES ($1, $2, $3::bigint, $4, $5, $6, $7, $8, $9::bytea, $10, $11)`

// Sealing: two round trips, and one if there is nothing to number.
const (
	// The lock comes first, in a statement of its own: what follows has a new
	// snapshot, which sees what the previous holder of the lock numbered. If there
	// is nothing above the mark $1 and the tree is whole, no row is locked and no
	// transaction id drawn.
	sqlLockLedger = `
SELECT ledger_id, head, tree_size, compact_range, pg_current_xact_id()::text::bigint
FROM audit_ledger
WHERE singleton AND (tree_size < head OR EXISTS (SELECT FROM audit_outbox WHERE ledger_seq IS NULL AND append_no > $1))
FOR UPDATE`

	sqlHasLedger = `SELECT EXISTS (SELECT FROM audit_ledger WHERE singleton)`

	// Is a transaction older than $1 writing to the outbox? A writer's lock on the
	// table outlasts its commit, so what this does not see, the next statement
	// sees. Ids here have 32 bits: compared around the circle.
	sqlOlderWriters = `
SELECT EXISTS (
    SELECT FROM pg_locks AS t JOIN pg_locks AS x USING (virtualtransaction)
    WHERE t.locktype = 'relation' AND t.relation = to_regclass('audit_outbox') AND t.mode = 'RowExclusiveLock'
      AND t.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND x.locktype = 'transactionid' AND x.mode = 'ExclusiveLock'
      AND (($1::bigint - x.transactionid::text::bigint) & 4294967295) BETWEEN 1 AND 2147483648)`

	// In append order and never SKIP LOCKED: whoever wrote version n+1 of a row
	// saw version n committed, so drew a higher append_no.
	sqlReadUnsealed = `
SELECT event_id, append_no, event_type, schema_version, payload, traceparent, tracestate, status, max_attempts,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint
FROM (SELECT *, row_number() OVER w AS place, sum(octet_length(payload)) OVER w AS bytes
      FROM (SELECT event_id, append_no, event_type, schema_version, payload, traceparent, tracestate, status, max_attempts
            FROM audit_outbox
            WHERE ledger_seq IS NULL AND append_no > $1
            ORDER BY append_no
            LIMIT $2) AS unsealed
      WINDOW w AS (ORDER BY append_no ROWS UNBOUNDED PRECEDING)) AS page
WHERE place = 1 OR bytes <= $3
ORDER BY append_no`

	// Numbers are head + place in the list, which width_bucket finds by append_no. A
	// join with the list would do, too, until the planner takes the table for empty
	// and reads all of it for each page. With a token the same update takes the
	// claim. coalesce keeps the planner from the index over everything unsealed.
	// Head, tree and numbers move together, each exactly as read: if anything else
	// was found, the new head is null, which the table refuses with all the rest.
	sqlNumber = `
WITH numbered AS (
    UPDATE audit_outbox AS o
    SET ledger_id = $1, ledger_seq = $2 + width_bucket(o.append_no, $7::bigint[]),
        claim_owner = $4, claim_token = $5, claim_count = o.claim_count + ($5::uuid IS NOT NULL)::integer,
        claimed_at = CASE WHEN $5::uuid IS NOT NULL THEN clock_timestamp() END,
        claim_expires_at = clock_timestamp() + $6::bigint * interval '1 microsecond'
    WHERE o.event_id = ANY ($3::uuid[]) AND coalesce(o.ledger_seq, 0) = 0
    RETURNING o.event_id
)
UPDATE audit_ledger
SET head = CASE WHEN head = $2 AND tree_size = $2 AND (SELECT count(*) FROM numbered) = cardinality($3) THEN head + cardinality($3) END,
    tree_size = $2 + cardinality($3), compact_range = $8, sealed_at = clock_timestamp()
WHERE singleton`

	// What was numbered before there was a tree, from number $2 on.
	sqlReadNumbered = `
SELECT ledger_seq, event_id, payload
FROM (SELECT ledger_seq, event_id, payload, row_number() OVER w AS place, sum(octet_length(payload)) OVER w AS bytes
      FROM (SELECT ledger_seq, event_id, payload
            FROM audit_outbox
            WHERE ledger_id = $1 AND ledger_seq >= $2
            ORDER BY ledger_seq
            LIMIT $3) AS numbered
      WINDOW w AS (ORDER BY ledger_seq ROWS UNBOUNDED PRECEDING)) AS page
WHERE place = 1 OR bytes <= $4
ORDER BY ledger_seq`

	sqlFold = `UPDATE audit_ledger SET tree_size = $1, compact_range = $2 WHERE singleton`
)

// The open statuses are spelled out, so that the planner can use the partial index.
const sqlOpen = `status IN ('PENDING', 'DEFERRED', 'RETRYABLE_FAILURE')`

// Claiming. $1 is the low-water mark. A claim holds what it found due and
// unclaimed, in order, skipping what others are claiming; it keeps the first
// entry and whatever follows it within the page's bytes, and leaves entries that
// must be alone to a page of their own.
const (
	// The lowest open place above the mark. If nothing is open there, a numbered
	// outbox is done up to its head, which moves with the numbers.
	sqlLowestNumber = `
SELECT coalesce((SELECT ledger_seq FROM audit_outbox WHERE ` + sqlOpen + ` AND ledger_seq > $1 ORDER BY ledger_seq LIMIT 1),
                (SELECT head + 1 FROM audit_ledger WHERE singleton))`
	sqlLowestAppendNo = `
SELECT coalesce((SELECT append_no FROM audit_outbox
                 WHERE ` + sqlOpen + ` AND ledger_seq IS NULL AND append_no > $1 ORDER BY append_no LIMIT 1), 0)`

	sqlClaimNumbered   = sqlClaimHead + `ledger_seq AS place FROM audit_outbox WHERE ledger_seq > $1 AND ` + sqlClaimTail
	sqlClaimUnnumbered = sqlClaimHead + `append_no AS place FROM audit_outbox WHERE ledger_seq IS NULL AND append_no > $1 AND ` + sqlClaimTail

	sqlClaimHead = `
WITH due AS MATERIALIZED (
    SELECT ctid AS tid, claim_count, octet_length(payload) AS size, `
	sqlClaimTail = sqlOpen + `
      AND next_attempt_at <= clock_timestamp()
      AND (claim_expires_at IS NULL OR claim_expires_at <= clock_timestamp())
      AND event_id <> $8
    ORDER BY place
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), page AS (
    SELECT tid, claim_count, row_number() OVER w AS nth, sum(size) OVER w AS bytes,
           first_value(claim_count) OVER w AS first_count
    FROM due
    WINDOW w AS (ORDER BY place ROWS UNBOUNDED PRECEDING)
)
UPDATE audit_outbox AS o
SET claim_owner = $4, claim_token = $5, claimed_at = clock_timestamp(),
    claim_expires_at = clock_timestamp() + $6::bigint * interval '1 microsecond',
    claim_count = o.claim_count + 1
FROM page AS p
WHERE o.ctid = p.tid
  AND (p.nth = 1 OR (p.bytes <= $3 AND p.claim_count < $7 AND p.first_count < $7))
RETURNING o.event_id, o.append_no, o.event_type, o.schema_version, o.payload, o.traceparent, o.tracestate, o.status,
          o.max_attempts, o.ledger_id, o.ledger_seq, o.attempts, o.claim_count, o.last_error_at`
)

// Ending and extending claims: each matches the token.
const (
	sqlRenew = `
UPDATE audit_outbox
SET claim_expires_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
WHERE event_id = ANY ($2::uuid[]) AND claim_token = $1`

	sqlRelease = `
UPDATE audit_outbox
SET claim_owner = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL,
    claim_count = greatest(claim_count - 1, 0)
WHERE event_id = ANY ($2::uuid[]) AND claim_token = $1`

	// One time, that of the statement, for the error and for the answer: "since
	// this entry's previous failure" compares them. The ids stand in the condition
	// twice, so that no order of the join reads more than the page. After sqlByHash.
	sqlSettle = `
WITH outcome AS (
    SELECT * FROM unnest($2::uuid[], $3::text[], $4::text[], $5::bigint[], $6::integer[], $7::boolean[], $8::text[],
                         $9::text[], $10::text[], $11::text[])
        AS u (event_id, was, status, delay, attempts, keep_claim, code, reason, provider, record_id)
), settled AS (
    UPDATE audit_outbox AS o
    SET status = u.status,
        attempts = o.attempts + u.attempts,
        claim_count = CASE WHEN u.keep_claim THEN o.claim_count
                           WHEN u.status = 'DEFERRED' THEN greatest(o.claim_count - 1, 0)
                           ELSE 0 END,
        next_attempt_at = CASE WHEN u.delay IS NULL THEN o.next_attempt_at
                               ELSE clock_timestamp() + u.delay * interval '1 microsecond' END,
        delivered_at = CASE WHEN u.status = 'DELIVERED' THEN clock_timestamp() ELSE o.delivered_at END,
        provider_name = coalesce(u.provider, o.provider_name),
        provider_record_id = coalesce(u.record_id, o.provider_record_id),
        last_error_code = u.code,
        last_error_at = CASE WHEN u.code IS NOT NULL THEN statement_timestamp() END,
        dead_letter_reason = u.reason,
        claim_owner = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL
    FROM outcome AS u
    WHERE o.event_id = u.event_id AND o.event_id = ANY ($2::uuid[]) AND o.claim_token = $1
    RETURNING o.event_id, o.ledger_id, o.ledger_seq, u.was, o.status, u.code
), history AS (
    INSERT INTO audit_lifecycle (transition, event_id, ledger_id, first_seq, last_seq, event_count,
                                 from_status, to_status, code)
    SELECT lower(status), CASE WHEN count(*) = 1 THEN (array_agg(event_id))[1] END, ledger_id, min(ledger_seq),
           max(ledger_seq), count(*), was, status, code
    FROM settled
    WHERE (was, status) <> ('PENDING', 'DELIVERED')
    GROUP BY ledger_id, was, status, code, CASE WHEN ledger_seq IS NULL THEN event_id END
)
SELECT count(*), statement_timestamp(), CASE WHEN count(*) < cardinality($2) THEN array_agg(event_id) END FROM settled`

	// sqlDelivered is sqlSettle for a page of which every entry was accepted at its
	// first try, as most are: there is no history to write. The ids are sorted, so
	// that width_bucket finds a row's place in them.
	sqlDelivered = `
WITH settled AS (
    UPDATE audit_outbox AS o
    SET status = 'DELIVERED', claim_count = 0, delivered_at = clock_timestamp(),
        provider_name = coalesce($4, o.provider_name),
        provider_record_id = coalesce(($3::text[])[width_bucket(o.event_id, $2::uuid[])], o.provider_record_id),
        last_error_code = NULL, last_error_at = NULL, dead_letter_reason = NULL,
        claim_owner = NULL, claim_token = NULL, claimed_at = NULL, claim_expires_at = NULL
    WHERE o.event_id = ANY ($2::uuid[]) AND o.claim_token = $1
    RETURNING o.event_id
)
SELECT count(*), statement_timestamp(), CASE WHEN count(*) < cardinality($2) THEN array_agg(event_id) END FROM settled`

	// SKIP LOCKED: what someone holds is being settled, and this must wait for nobody.
	sqlMakeDeferredDue = `
WITH waiting AS (
    SELECT event_id FROM audit_outbox
    WHERE ` + sqlOpen + ` AND status = 'DEFERRED' AND claim_token IS NULL AND next_attempt_at > clock_timestamp()
    FOR UPDATE SKIP LOCKED
)
UPDATE audit_outbox AS o SET next_attempt_at = clock_timestamp()
FROM waiting AS w WHERE o.event_id = w.event_id`
)

// What operators ask.
const (
	sqlRecordColumns = `
SELECT event_id, event_type, schema_version, operation, resource_type, resource_id, coalesce(resource_version, 0),
       occur_time, created_at, append_no, ledger_id, coalesce(ledger_seq, 0), status, attempts, max_attempts, claim_count,
       redelivery_count, next_attempt_at, coalesce(claim_owner, ''), claimed_at, claim_expires_at, delivered_at,
       coalesce(provider_name, ''), coalesce(provider_record_id, ''), coalesce(last_error_code, ''), last_error_at,
       coalesce(dead_letter_reason, ''), octet_length(payload), traceparent
FROM audit_outbox`

	sqlGet = sqlRecordColumns + ` WHERE event_id = $1`

	sqlList = sqlRecordColumns + `
WHERE ($1::text[] IS NULL OR status = ANY ($1))
  AND ($2::text IS NULL OR event_type = $2 OR event_type LIKE $3)
  AND ($4::uuid IS NULL OR event_id = $4)
  AND ($5::text IS NULL OR last_error_code = $5 OR dead_letter_reason = $5)
  AND ($6::text IS NULL OR resource_type = $6)
  AND ($7::text IS NULL OR resource_id = $7)
  AND ($8::timestamptz IS NULL OR occur_time >= $8)
  AND ($9::timestamptz IS NULL OR occur_time < $9)
  AND ($10::uuid IS NULL OR event_id < $10)
ORDER BY event_id DESC
LIMIT $11`

	// A range names entries between two numbers of which event_count moved.
	sqlHistory = `
SELECT occurred_at, transition, event_id, ledger_id, coalesce(first_seq, 0), coalesce(last_seq, 0), event_count,
       coalesce(from_status, ''), coalesce(to_status, ''), coalesce(code, ''), coalesce(actor, ''), coalesce(reason, '')
FROM audit_lifecycle
WHERE event_id = $1 OR (event_id IS NULL AND ledger_id = $2 AND $3 BETWEEN first_seq AND last_seq)
ORDER BY lifecycle_no`

	sqlCounts = `
SELECT clock_timestamp(), status, count(*), count(*) FILTER (WHERE ledger_seq IS NULL),
       count(*) FILTER (WHERE claim_expires_at > clock_timestamp()), min(created_at)
FROM audit_outbox
GROUP BY status`

	sqlOpenCounts = `
SELECT clock_timestamp(), status, count(*), count(*) FILTER (WHERE ledger_seq IS NULL),
       count(*) FILTER (WHERE claim_expires_at > clock_timestamp()), min(created_at)
FROM audit_outbox
WHERE ` + sqlOpen + `
GROUP BY status`

	sqlDeadByReason = `
SELECT coalesce(dead_letter_reason, last_error_code, ''), count(*)
FROM audit_outbox
WHERE status IN ('FAILED', 'DEAD_LETTERED')
GROUP BY 1`

	sqlLedger = `SELECT owner, ledger_id, head, sealed_at, clock_timestamp() FROM audit_ledger`

	// Locked in id order, then looked at again: of two requeues one finds nothing to do.
	sqlRequeue = `
WITH dead AS (
    SELECT event_id, status, ledger_id, ledger_seq, coalesce(dead_letter_reason, last_error_code) AS code
    FROM audit_outbox
    WHERE event_id = ANY ($1::uuid[]) AND status IN ('FAILED', 'DEAD_LETTERED')
    ORDER BY event_id
    FOR UPDATE
), requeued AS (
    UPDATE audit_outbox AS o
    SET status = 'PENDING', attempts = 0, claim_count = 0, redelivery_count = 0, next_attempt_at = clock_timestamp(),
        last_error_code = NULL, last_error_at = NULL, dead_letter_reason = NULL
    FROM dead AS d
    WHERE o.event_id = d.event_id
    RETURNING d.event_id, d.status, d.ledger_id, d.ledger_seq, d.code
), history AS (
    INSERT INTO audit_lifecycle (transition, event_id, ledger_id, first_seq, last_seq, from_status, to_status, code, actor, reason)
    SELECT 'requeued', event_id, ledger_id, ledger_seq, ledger_seq, status, 'PENDING', code, $2, $3 FROM requeued
)
SELECT count(*) FROM requeued`

	sqlPrune = `SELECT outbox_prune($1)`

	// A domain counts as the type that it restricts.
	sqlColumns = `
SELECT c.relname::text, a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), a.atttypmod)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type t ON t.oid = a.atttypid
WHERE c.oid IN (to_regclass('audit_outbox'), to_regclass('audit_ledger'), to_regclass('audit_lifecycle'))
  AND a.attnum > 0 AND NOT a.attisdropped`

	sqlIndexes = `
SELECT c.relname::text
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = to_regclass('audit_outbox') AND i.indisvalid`
)
