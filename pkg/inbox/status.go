// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Status is the inbox at one moment, by the database's clock.
type Status struct {
	Consumers []ConsumerStatus // one a subscribed consumer, by name, also when it has no rows
	Streams   []StreamStatus   // one a stream that a bridge was started on
	Poison    []PoisonCount    // open poison
}

// ConsumerStatus counts one consumer's unfinished and dead rows. Ages are zero without such a row.
type ConsumerStatus struct {
	Consumer         string
	Pending          int64
	Processing       int64
	Dead             int64
	DeadByCode       map[string]int64
	OldestPendingAge time.Duration // of rows without a failed attempt, since they came
	OldestLeaseAge   time.Duration // since the claim, however often renewed
	OldestRetryAge   time.Duration // of waiting rows with a failed attempt, since they came
}

// StreamStatus is how far one owner's stream was taken over, by the database.
type StreamStatus struct {
	Owner          string
	Stream         string
	LastEntryID    string
	TakenOver      int64
	LastTakeoverAt time.Time
}

// PoisonCount counts open poison.
type PoisonCount struct {
	Kind   PoisonKind
	Reason string
	Count  int64
}

// Status reads the counts. PROCESSED rows are not counted: there are too many.
func (p *Postgres) Status(ctx context.Context) (Status, error) {
	var s Status
	byName := map[string]*ConsumerStatus{}
	for _, sub := range p.catalog.Subscriptions {
		byName[sub.Consumer] = &ConsumerStatus{Consumer: sub.Consumer, DeadByCode: map[string]int64{}}
	}
	var batch pgx.Batch
	batch.Queue(sqlStatus).Query(func(rows pgx.Rows) error { return scanConsumers(rows, byName) })
	batch.Queue(sqlPositions).Query(func(rows pgx.Rows) (err error) {
		s.Streams, err = pgx.CollectRows(rows, pgx.RowToStructByPos[StreamStatus])
		return err
	})
	batch.Queue(sqlOpenPoison).Query(func(rows pgx.Rows) (err error) {
		s.Poison, err = pgx.CollectRows(rows, pgx.RowToStructByPos[PoisonCount])
		return err
	})
	if err := p.db.SendBatch(ctx, &batch).Close(); err != nil {
		return Status{}, fmt.Errorf("read the inbox's status: %w", err)
	}
	for _, c := range byName {
		s.Consumers = append(s.Consumers, *c)
	}
	slices.SortFunc(s.Consumers, func(a, b ConsumerStatus) int { return cmp.Compare(a.Consumer, b.Consumer) })
	return s, nil
}

func scanConsumers(rows pgx.Rows, byName map[string]*ConsumerStatus) error {
	var name, state, code string
	var failed bool
	var count int64
	var here, since float64
	_, err := pgx.ForEachRow(rows, []any{&name, &state, &code, &failed, &count, &here, &since}, func() error {
		c := byName[name]
		if c == nil {
			c = &ConsumerStatus{Consumer: name, DeadByCode: map[string]int64{}}
			byName[name] = c
		}
		switch State(state) {
		case Dead:
			c.Dead += count
			c.DeadByCode[code] += count
		case Processing:
			c.Processing += count
			c.OldestLeaseAge = max(c.OldestLeaseAge, seconds(since))
		case Pending:
			c.Pending += count
			if failed {
				c.OldestRetryAge = max(c.OldestRetryAge, seconds(here))
			} else {
				c.OldestPendingAge = max(c.OldestPendingAge, seconds(here))
			}
		}
		return nil
	})
	return err
}

func seconds(s float64) time.Duration { return max(time.Duration(s*float64(time.Second)), 0) }

// needs lists every column that the statements name, by table.
var needs = map[string][]string{
	"ledger_positions": {"owner:text", "stream:text", "last_entry_id:text", "taken_over:bigint", "updated_at:timestamp with time zone"},
	"ledger_entries":   {"ledger_id:uuid", "ledger_seq:bigint", "event_id:uuid", "leaf_hash:bytea", "owner:text"},
	"inbox_events": {
		"event_id:uuid", "ledger_id:uuid", "ledger_seq:bigint", "schema_version:integer", "owner:text", "event_type:text",
		"entry_id:text", "traceparent:text", "tracestate:text", "payload:bytea",
	},
	"consumer_inbox": {
		"event_id:uuid", "inbox_no:bigint", "received_at:timestamp with time zone", "consumer:text",
		"next_retry_at:timestamp with time zone", "attempts:integer", "state:text", "lease_owner:text", "lease_token:uuid",
		"lease_expires_at:timestamp with time zone", "finished_at:timestamp with time zone", "dead_at:timestamp with time zone",
		"last_error_code:text", "last_error_at:timestamp with time zone",
	},
	"inbox_poison": {
		"id:uuid", "stream:text", "fields_hash:bytea", "kind:text", "reason:text", "owner:text", "event_id:uuid", "ledger_id:uuid",
		"ledger_seq:bigint", "claimed_type:text", "first_entry_id:text", "last_entry_id:text", "seen_count:bigint",
		"first_seen_at:timestamp with time zone", "last_seen_at:timestamp with time zone", "raw_fields:bytea", "raw_size:bigint",
		"resolved_at:timestamp with time zone", "resolved_by:text", "discarded_at:timestamp with time zone", "discarded_by:text",
		"action_reason:text",
	},
}

// uniques lists the keys that deduplication stands on, columns in the order of their names.
var uniques = map[string]string{
	"ledger_positions": "owner",
	"ledger_entries":   "ledger_id,ledger_seq",
	"inbox_events":     "event_id",
	"consumer_inbox":   "consumer,event_id",
	"inbox_poison":     "fields_hash,stream",
}

// indexes lists those without which a claim or a takeover would walk what is finished.
var indexes = map[string]string{
	"ledger_entries": "ledger_entries_event_idx",
	"consumer_inbox": "consumer_inbox_open_idx",
}

// CheckSchema compares the tables that db's connections see with what this package needs: columns,
// their types, the unique keys, and the indexes that claims go by. The error lists every difference. More columns do no harm, so a
// release runs on the next one's schema.
func CheckSchema(ctx context.Context, db *pgxpool.Pool) error {
	tables := make([]string, 0, len(needs))
	for t := range needs {
		tables = append(tables, t)
	}
	slices.Sort(tables)
	found := map[string]bool{}
	for what, sql := range map[string]string{"columns": sqlColumns, "unique keys": sqlUniques, "indexes": sqlIndexes} {
		rows, err := db.Query(ctx, sql, tables)
		if err != nil {
			return fmt.Errorf("read %s: %w", what, err)
		}
		texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("read %s: %w", what, err)
		}
		for _, t := range texts {
			found[t] = true
		}
	}
	var missing []string
	for _, t := range tables {
		for _, c := range needs[t] {
			if !found[t+"."+c] {
				missing = append(missing, "column "+t+"."+c)
			}
		}
		if !found[t+" unique "+uniques[t]] {
			missing = append(missing, "unique key of "+t+" on ("+uniques[t]+")")
		}
		if name, ok := indexes[t]; ok && !found[t+" index "+name] {
			missing = append(missing, "index "+name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("inbox: the schema lacks %s", strings.Join(missing, "; "))
	}
	return nil
}
