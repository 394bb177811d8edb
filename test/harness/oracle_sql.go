// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package harness

// auditedRows lists every audited row of an owner: type, id and version.
var auditedRows = map[string]string{
	"auth": `
		SELECT 'auth', 'user', id::text, version FROM users
		UNION ALL SELECT 'auth', 'role_grant', id::text, version FROM role_grants
		UNION ALL SELECT 'auth', 'login_policy', id::text, version FROM login_policies
		UNION ALL SELECT 'auth', 'session', id::text, version FROM sessions`,
	"app": `
		SELECT 'app', 'project', id::text, version FROM projects
		UNION ALL SELECT 'app', 'project_member', id::text, version FROM project_members`,
}

// oracleEvents is what the oracle takes of an outbox: hashes instead of payloads, and the leaf that RFC 6962 makes of id
// and payload.
const oracleEvents = `
	SELECT '%s', event_id, event_type, schema_version, operation, resource_type, resource_id, resource_version,
	       occur_time, status, append_no, ledger_id, ledger_seq, sha256(payload),
	       sha256('\x00'::bytea || uuid_send(event_id) || payload)
	FROM audit_outbox`

// The first statement reads a real table, so that Admin's snapshot is taken before any owner's.
const oracleTables = `
	SELECT count(*) FROM (SELECT FROM audit_logs LIMIT 1) one;
	CREATE TEMP TABLE oracle_events (
	    owner text, event_id uuid, event_type text, schema_version integer, operation text, resource_type text,
	    resource_id text, resource_version bigint, occur_time timestamptz, status text, append_no bigint,
	    ledger_id uuid, ledger_seq bigint, payload_hash bytea, leaf bytea
	) ON COMMIT DROP;
	CREATE TEMP TABLE oracle_rows (owner text, resource_type text, resource_id text, version bigint) ON COMMIT DROP;
	CREATE TEMP TABLE oracle_heads (owner text, ledger_id uuid, head bigint) ON COMMIT DROP;`

// oracleIndexes also makes two tables that several checks read: where each event is, and every version on record.
const oracleIndexes = `
	CREATE INDEX ON oracle_events (event_id);
	ANALYZE oracle_events;
	CREATE TEMP TABLE oracle_places ON COMMIT DROP AS
	SELECT e.owner, e.event_id, e.status, i.state AS inbox,
	       CASE WHEN l.event_id IS NOT NULL THEN 'recorded'
	            WHEN e.status IN ('FAILED', 'DEAD_LETTERED') OR i.state = 'DEAD' THEN 'dead'
	            WHEN p.event_id IS NOT NULL THEN 'parked'
	            ELSE 'open' END AS place
	FROM oracle_events e
	LEFT JOIN audit_logs l ON l.event_id = e.event_id
	LEFT JOIN consumer_inbox i ON i.event_id = e.event_id AND i.consumer = 'audit-log'
	LEFT JOIN (SELECT DISTINCT event_id FROM inbox_poison WHERE kind IN ('PARKED', 'CONFLICT')) p ON p.event_id = e.event_id;
	CREATE TEMP TABLE oracle_versions ON COMMIT DROP AS
	SELECT owner, resource_type, resource_id, resource_version, event_id, operation
	FROM oracle_events WHERE resource_version IS NOT NULL
	UNION
	SELECT owner, resource_type, resource_id, resource_version, event_id, operation
	FROM audit_logs WHERE resource_version IS NOT NULL AND owner <> 'admin';
	CREATE INDEX ON oracle_versions (owner, resource_type, resource_id, resource_version);
	ANALYZE oracle_versions;`

const oracleCounts = `
	SELECT count(*), count(*) FILTER (WHERE place = 'recorded'), count(*) FILTER (WHERE place = 'dead'),
	       count(*) FILTER (WHERE place = 'parked'), count(*) FILTER (WHERE place = 'open'),
	       (SELECT count(*) FROM audit_logs WHERE owner = 'admin')
	FROM oracle_places`

// oracleCheck is one query for what must not be. Its columns are owner, event id (or ""), and detail.
type oracleCheck struct {
	invariant, what, sql string
}

var oracleChecks = []oracleCheck{
	{"I1", "a version with several events", `
		SELECT owner, '', format('%s/%s version %s has %s', resource_type, resource_id, resource_version, string_agg(DISTINCT event_id::text, ', '))
		FROM oracle_versions
		GROUP BY owner, resource_type, resource_id, resource_version
		HAVING count(DISTINCT event_id) > 1`},
	{"I1", "a version without its event", `
		SELECT owner, '', format('%s/%s has events for %s of its %s versions', resource_type, resource_id, count(DISTINCT resource_version), max(resource_version))
		FROM oracle_versions
		GROUP BY owner, resource_type, resource_id
		HAVING count(DISTINCT resource_version) <> max(resource_version) OR min(resource_version) <> 1`},
	{"I1", "a row and its events at different versions", `
		SELECT r.owner, '', format('%s/%s stands at %s, its events reach %s', r.resource_type, r.resource_id, r.version, coalesce(e.version, 0))
		FROM oracle_rows r
		LEFT JOIN (SELECT owner, resource_type, resource_id, max(resource_version) AS version
		           FROM oracle_versions GROUP BY 1, 2, 3) e
		    ON (e.owner, e.resource_type, e.resource_id) = (r.owner, r.resource_type, r.resource_id)
		WHERE e.version IS DISTINCT FROM r.version`},
	{"I1", "a row that is gone without an event that deleted it, or is there after one", `
		SELECT e.owner, e.event_id::text, format('%s/%s: last event %s at version %s, row %s', e.resource_type, e.resource_id,
		       e.operation, e.resource_version, CASE WHEN r.version IS NULL THEN 'absent' ELSE 'present' END)
		FROM (SELECT DISTINCT ON (owner, resource_type, resource_id) *
		      FROM oracle_versions ORDER BY owner, resource_type, resource_id, resource_version DESC) e
		LEFT JOIN oracle_rows r ON (e.owner, e.resource_type, e.resource_id) = (r.owner, r.resource_type, r.resource_id)
		WHERE (e.operation = 'DELETE') <> (r.version IS NULL)`},
	{"I2", "a record that its owner never appended", `
		SELECT l.owner, l.event_id::text, format('%s number %s', l.event_type, l.ledger_seq)
		FROM audit_logs l
		LEFT JOIN oracle_events e ON e.event_id = l.event_id AND e.owner = l.owner
		WHERE l.owner <> 'admin' AND e.event_id IS NULL`},
	{"I3", "an event that is neither recorded nor dead, parked or refused", `
		SELECT owner, event_id::text, format('outbox %s, inbox %s', status, coalesce(inbox, 'has no row'))
		FROM oracle_places WHERE place = 'open'`},
	{"I4", "a record whose bytes are not those appended", `
		SELECT l.owner, l.event_id::text, l.event_type
		FROM audit_logs l JOIN oracle_events e ON e.event_id = l.event_id
		WHERE sha256(l.payload) <> e.payload_hash`},
	{"I4", "a record whose columns are not those of the event", `
		SELECT l.owner, l.event_id::text, format('recorded %s, appended %s',
		       (l.owner, l.event_type, l.schema_version, l.operation, l.resource_type, l.resource_id, l.resource_version, l.occur_time),
		       (e.owner, e.event_type, e.schema_version, e.operation, e.resource_type, e.resource_id, e.resource_version, e.occur_time))
		FROM audit_logs l JOIN oracle_events e ON e.event_id = l.event_id
		WHERE (l.owner, l.event_type, l.schema_version, l.operation, l.resource_type, l.resource_id, l.occur_time)
		       <> (e.owner, e.event_type, e.schema_version, e.operation, e.resource_type, e.resource_id, e.occur_time)
		   OR l.resource_version IS DISTINCT FROM e.resource_version`},
	{"I4", "an event recorded more than once", `
		SELECT min(owner), event_id::text, format('%s records', count(*)) FROM audit_logs GROUP BY event_id HAVING count(*) > 1`},
	{"I5", "numbers that are not 1 to head", `
		SELECT h.owner, '', format('ledger %s: head %s, %s numbers from %s to %s', h.ledger_id, h.head, count(e.ledger_seq), min(e.ledger_seq), max(e.ledger_seq))
		FROM oracle_heads h LEFT JOIN oracle_events e ON e.ledger_id = h.ledger_id
		GROUP BY h.owner, h.ledger_id, h.head
		HAVING count(DISTINCT e.ledger_seq) <> h.head OR count(e.ledger_seq) <> h.head OR coalesce(max(e.ledger_seq), 0) <> h.head`},
	{"I5", "numbers of Admin's own records that are not 1 to head", `
		SELECT 'admin', '', format('head %s, %s numbers from %s to %s', g.head, count(l.ledger_seq), min(l.ledger_seq), max(l.ledger_seq))
		FROM audit_ledger g LEFT JOIN audit_logs l ON l.owner = 'admin' AND l.ledger_id = g.ledger_id
		GROUP BY g.head
		HAVING count(DISTINCT l.ledger_seq) <> g.head OR coalesce(max(l.ledger_seq), 0) <> g.head`},
	{"I5", "versions of one row numbered out of order", `
		SELECT owner, event_id::text, format('%s/%s version %s has number %s, the version before it %s', resource_type, resource_id, resource_version, ledger_seq, before)
		FROM (SELECT *, lag(ledger_seq) OVER (PARTITION BY owner, ledger_id, resource_type, resource_id ORDER BY resource_version) AS before
		      FROM oracle_events WHERE resource_version IS NOT NULL) e
		WHERE before >= ledger_seq`},
	{"I5", "a number taken over for something else than was numbered", `
		SELECT t.owner, t.event_id::text, format('number %s of ledger %s', t.ledger_seq, t.ledger_id)
		FROM ledger_entries t
		LEFT JOIN oracle_events e ON e.ledger_id = t.ledger_id AND e.ledger_seq = t.ledger_seq
		WHERE t.owner <> 'admin' AND (e.event_id IS DISTINCT FROM t.event_id OR e.leaf <> t.leaf_hash)`},
	{"I5", "a record whose number was not taken over", `
		SELECT l.owner, l.event_id::text, format('number %s of ledger %s', l.ledger_seq, l.ledger_id)
		FROM audit_logs l
		LEFT JOIN ledger_entries t ON t.ledger_id = l.ledger_id AND t.ledger_seq = l.ledger_seq AND t.event_id = l.event_id
		WHERE t.event_id IS NULL`},
}
