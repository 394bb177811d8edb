// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/services/admin/internal/store"
)

// SecurityConsumer is the consumer that watches Auth's events for security patterns.
const SecurityConsumer = "security-alerts"

// WatchesSecurity says which events SecurityConsumer gets: those of Auth that can count for a rule. All others, nearly
// all that there are, cost it nothing.
func WatchesSecurity(owner, eventType string) bool {
	return owner == ownerAuth && slices.ContainsFunc(rules(), func(r rule) bool { return slices.Contains(r.events, eventType) })
}

// Watch returns the handler of SecurityConsumer. It notes what in a batch speaks to a rule and raises the alerts that follow,
// with ids that newID makes.
//
// It counts its own notes, unique by (rule, event), and alerts are unique by (rule, first event): running it again
// raises nothing twice. Two batches that concern one subject take turns, in whatever worker they run: each would
// otherwise count without the other's uncommitted notes, and a threshold could be stepped over unseen.
func Watch(newID func() (uuid.UUID, error)) inbox.Handler {
	return func(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
		seen := observe(batch)
		if len(seen) == 0 {
			return nil
		}
		db := store.New(tx)
		if err := db.LockKeys(ctx, lockKeys(seen)); err != nil {
			return err
		}
		fresh, err := db.InsertObservations(ctx, seen)
		if err != nil || len(fresh) == 0 {
			return err
		}
		open, err := db.UncoveredObservations(ctx, windows(fresh))
		if err != nil {
			return err
		}
		alerts := append(singles(fresh), bursts(open)...)
		for i := range alerts {
			if alerts[i].ID, err = newID(); err != nil {
				return fmt.Errorf("make alert id: %w", err)
			}
		}
		_, err = db.InsertAlerts(ctx, alerts)
		return err
	}
}

// observe asks every rule about every event.
func observe(batch []inbox.Event) []store.Observation {
	var seen []store.Observation
	for _, e := range batch {
		for _, r := range rules() {
			if subject, ok := r.concerns(e.Audit); ok {
				seen = append(seen, store.Observation{
					EventID: e.ID, OccurTime: e.Audit.GetOccurTime().AsTime(), Rule: r.name, Subject: subject,
				})
			}
		}
	}
	return seen
}

// lockKeys returns one advisory lock key for each (rule, subject), sorted, so that no two batches wait for each other.
func lockKeys(seen []store.Observation) []int64 {
	keys := make([]int64, len(seen))
	for i, o := range seen {
		sum := sha256.Sum256([]byte("security\x00" + o.Rule + "\x00" + o.Subject))
		keys[i] = int64(binary.BigEndian.Uint64(sum[:]))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// singles raises an alert for each event of the rules that need only one.
func singles(fresh []store.Observation) []store.Alert {
	var alerts []store.Alert
	for _, o := range fresh {
		if r := ruleNamed(o.Rule); r.threshold == 1 {
			alerts = append(alerts, r.alert([]store.Observation{o}))
		}
	}
	return alerts
}

// windows returns, for each subject of the rules that count, the time in which a fresh event could complete a pattern.
func windows(fresh []store.Observation) []store.Window {
	type key struct{ rule, subject string }
	found := map[key]store.Window{}
	for _, o := range fresh {
		r := ruleNamed(o.Rule)
		if r.threshold == 1 {
			continue
		}
		k := key{o.Rule, o.Subject}
		from, until := o.OccurTime.Add(-r.window), o.OccurTime.Add(r.window)
		if w, ok := found[k]; ok {
			from, until = earlier(w.From, from), later(w.Until, until)
		}
		found[k] = store.Window{Rule: o.Rule, Subject: o.Subject, From: from, Until: until, Quiet: r.window}
	}
	out := make([]store.Window, 0, len(found))
	for _, w := range found {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b store.Window) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Subject, b.Subject))
	})
	return out
}

// bursts finds, among observations in the order of rule, subject and time, each run of threshold events within the
// rule's window. After one, the rule is quiet for that subject until a window has passed, so an attack of hours is an
// alert each window and not one each attempt.
func bursts(open []store.Observation) []store.Alert {
	var alerts []store.Alert
	for i := 0; i < len(open); {
		r := ruleNamed(open[i].Rule)
		end := i + r.threshold
		if end > len(open) || !sameSubject(open[i], open[end-1]) || open[end-1].OccurTime.Sub(open[i].OccurTime) > r.window {
			i++
			continue
		}
		alert := r.alert(open[i:end])
		alerts = append(alerts, alert)
		first := open[i]
		for i < len(open) && sameSubject(first, open[i]) && !open[i].OccurTime.After(alert.LastOccurTime.Add(r.window)) {
			i++
		}
	}
	return alerts
}

func sameSubject(a, b store.Observation) bool { return a.Rule == b.Rule && a.Subject == b.Subject }

// alert is the rule's alert about the events of a pattern, in order.
func (r rule) alert(pattern []store.Observation) store.Alert {
	first, last := pattern[0], pattern[len(pattern)-1]
	return store.Alert{
		Rule: r.name, Severity: r.severity, Subject: first.Subject, FirstEventID: first.EventID, LastEventID: last.EventID,
		EventCount: int32(len(pattern)), FirstOccurTime: first.OccurTime, LastOccurTime: last.OccurTime,
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
