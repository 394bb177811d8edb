// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Observation is a row of security_observations: an event that speaks to a rule.
type Observation struct {
	EventID   uuid.UUID
	OccurTime time.Time
	Rule      string
	Subject   string
}

// Alert is a row of security_alerts.
type Alert struct {
	ID             uuid.UUID
	Rule           string
	Severity       string
	Subject        string
	FirstEventID   uuid.UUID
	LastEventID    uuid.UUID
	EventCount     int32
	FirstOccurTime time.Time
	LastOccurTime  time.Time
	RaiseTime      time.Time // set by the database
}

// LockKeys takes the advisory locks until the transaction ends, in the order given. Callers sort the keys, so that two
// of them never wait for each other.
func (s Store) LockKeys(ctx context.Context, keys []int64) error {
	if _, err := s.db.Exec(ctx, "SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key", keys); err != nil {
		return fmt.Errorf("lock security subjects: %w", err)
	}
	return nil
}

// InsertObservations notes what is not noted yet and returns that.
func (s Store) InsertObservations(ctx context.Context, seen []Observation) ([]Observation, error) {
	rows, err := s.db.Query(ctx, `
INSERT INTO security_observations (event_id, occur_time, rule, subject)
SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[]) AS new (event_id, occur_time, rule, subject)
ORDER BY rule, event_id
ON CONFLICT (rule, event_id) DO NOTHING
RETURNING event_id, occur_time, rule, subject`,
		column(seen, func(o Observation) uuid.UUID { return o.EventID }),
		column(seen, func(o Observation) time.Time { return o.OccurTime }),
		column(seen, func(o Observation) string { return o.Rule }),
		column(seen, func(o Observation) string { return o.Subject }))
	if err != nil {
		return nil, fmt.Errorf("insert observations: %w", err)
	}
	fresh, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Observation])
	if err != nil {
		return nil, fmt.Errorf("insert observations: %w", err)
	}
	return fresh, nil
}

// Window is a stretch of one subject's time that is looked at for a rule.
type Window struct {
	Rule    string
	Subject string
	From    time.Time
	Until   time.Time     // inclusive
	Quiet   time.Duration // how long after an alert's last event the rule stays quiet
}

// UncoveredObservations returns the observations in the windows, each once, that no alert of their rule and subject covers: from
// its first event to Quiet after its last.
func (s Store) UncoveredObservations(ctx context.Context, windows []Window) ([]Observation, error) {
	rows, err := s.db.Query(ctx, `
SELECT o.event_id, o.occur_time, o.rule, o.subject
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::interval[])
     AS w (rule, subject, starts, ends, quiet)
JOIN security_observations o
     ON o.rule = w.rule AND o.subject = w.subject AND o.occur_time BETWEEN w.starts AND w.ends
WHERE NOT EXISTS (
    SELECT FROM security_alerts a
    WHERE a.rule = o.rule AND a.subject = o.subject
      AND o.occur_time BETWEEN a.first_occur_time AND a.last_occur_time + w.quiet)
ORDER BY o.rule, o.subject, o.occur_time, o.event_id`,
		column(windows, func(w Window) string { return w.Rule }),
		column(windows, func(w Window) string { return w.Subject }),
		column(windows, func(w Window) time.Time { return w.From }),
		column(windows, func(w Window) time.Time { return w.Until }),
		column(windows, func(w Window) time.Duration { return w.Quiet }))
	if err != nil {
		return nil, fmt.Errorf("read observations: %w", err)
	}
	open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Observation])
	if err != nil {
		return nil, fmt.Errorf("read observations: %w", err)
	}
	return open, nil
}

// InsertAlerts raises the alerts that are not raised yet and returns how many it raised.
func (s Store) InsertAlerts(ctx context.Context, alerts []Alert) (int64, error) {
	tag, err := s.db.Exec(ctx, `
INSERT INTO security_alerts (
    id, rule, severity, subject, first_event_id, last_event_id, event_count, first_occur_time, last_occur_time)
SELECT * FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::uuid[], $7::integer[], $8::timestamptz[],
    $9::timestamptz[])
ON CONFLICT ON CONSTRAINT security_alerts_first_event_key DO NOTHING`,
		column(alerts, func(a Alert) uuid.UUID { return a.ID }),
		column(alerts, func(a Alert) string { return a.Rule }),
		column(alerts, func(a Alert) string { return a.Severity }),
		column(alerts, func(a Alert) string { return a.Subject }),
		column(alerts, func(a Alert) uuid.UUID { return a.FirstEventID }),
		column(alerts, func(a Alert) uuid.UUID { return a.LastEventID }),
		column(alerts, func(a Alert) int32 { return a.EventCount }),
		column(alerts, func(a Alert) time.Time { return a.FirstOccurTime }),
		column(alerts, func(a Alert) time.Time { return a.LastOccurTime }))
	if err != nil {
		return 0, fmt.Errorf("insert alerts: %w", err)
	}
	return tag.RowsAffected(), nil
}

// AlertCursor is the last alert of a page; the zero value starts at the newest.
type AlertCursor struct {
	RaiseTime time.Time
	ID        uuid.UUID
}

// ListAlerts returns the newest alerts after the cursor, newest first; rule "" stands for any.
func (s Store) ListAlerts(ctx context.Context, rule string, after AlertCursor, limit int) ([]Alert, error) {
	where, args := "true", []any{limit}
	if rule != "" {
		args = append(args, rule)
		where += " AND rule = $" + strconv.Itoa(len(args))
	}
	if !after.RaiseTime.IsZero() {
		args = append(args, after.RaiseTime, after.ID)
		where += fmt.Sprintf(" AND raise_time <= $%[1]d AND (raise_time < $%[1]d OR id > $%[2]d)", len(args)-1, len(args))
	}
	rows, err := s.db.Query(ctx, `
SELECT id, rule, severity, subject, first_event_id, last_event_id, event_count, first_occur_time, last_occur_time, raise_time
FROM security_alerts WHERE `+where+` ORDER BY raise_time DESC, id LIMIT $1`, args...)
	if err != nil {
		return nil, fmt.Errorf("list alerts: %w", err)
	}
	alerts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Alert])
	if err != nil {
		return nil, fmt.Errorf("list alerts: %w", err)
	}
	return alerts, nil
}
