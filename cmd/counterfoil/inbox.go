// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
)

type inboxCmd struct {
	Status  inboxStatusCmd  `cmd:"" help:"What waits, for whom, and how far the streams are read."`
	List    inboxListCmd    `cmd:"" help:"List what the consumers have to do or did, newest event first."`
	Get     inboxGetCmd     `cmd:"" help:"Show one consumer's work on one event."`
	Requeue inboxRequeueCmd `cmd:"" help:"Try again what is DEAD."`
	Replay  inboxReplayCmd  `cmd:"" help:"Hand over again what is PROCESSED."`
}

func (a *app) inbox() adminv1.InboxServiceClient {
	return adminv1.NewInboxServiceClient(a.conn(serviceAdmin))
}

type inboxStatusCmd struct{}

// Help implements kong.HelpProvider.
func (inboxStatusCmd) Help() string {
	return examples("counterfoil inbox status", "counterfoil inbox status -o json | jq '.consumers[].deadCount'")
}

// Run shows consumers, streams and open poison.
func (inboxStatusCmd) Run(ctx context.Context, a *app) error {
	r, err := a.inbox().GetInboxStatus(ctx, &adminv1.GetInboxStatusRequest{})
	if err != nil {
		return err
	}
	if a.out.json {
		return a.out.document(r)
	}
	consumers := a.out.table("CONSUMER", "PENDING", "PROCESSING", "DEAD", "OLDEST PENDING", "OLDEST RUNNING", "OLDEST RETRYING", "DEAD BECAUSE")
	for _, c := range r.GetConsumers() {
		var because []string
		for _, code := range slices.Sorted(maps.Keys(c.GetDeadCountByCode())) {
			because = append(because, code+" "+count(c.GetDeadCountByCode()[code]))
		}
		consumers.row(c.GetConsumer(), count(c.GetPendingCount()), count(c.GetProcessingCount()), count(c.GetDeadCount()),
			age(c.GetOldestPendingAge()), age(c.GetOldestLeaseAge()), age(c.GetOldestRetryAge()), strings.Join(because, ", "))
	}
	if err := consumers.flush(); err != nil {
		return err
	}
	if err := a.out.text("\n"); err != nil {
		return err
	}
	streams := a.out.table("STREAM", "TAKEN OVER", "LAST (UTC)", "LAST ENTRY", "NOT YET READ", "NOT YET ACKNOWLEDGED", "BROKER")
	for _, s := range r.GetStreams() {
		streams.row(s.GetStream(), count(s.GetTakenOverCount()), when(s.GetLastTakeoverTime()), s.GetLastEntryId(),
			known(s.LagCount), known(s.UnacknowledgedCount), or(s.GetErrorCode(), "ok"))
	}
	if err := streams.flush(); err != nil || len(r.GetOpenPoison()) == 0 {
		return err
	}
	if err := a.out.text("\n"); err != nil {
		return err
	}
	poison := a.out.table("POISON", "REASON", "COUNT")
	for _, p := range r.GetOpenPoison() {
		poison.row(p.GetKind(), p.GetReason(), count(p.GetCount()))
	}
	return poison.flush()
}

func count(n int64) string { return strconv.FormatInt(n, 10) }

// known shows a number that may be absent.
func known(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return count(*n)
}

func age(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return span(d.AsDuration())
}

// inboxFilter selects entries.
type inboxFilter struct {
	ErrorCode   string `placeholder:"CODE" help:"Only entries whose last failure had this code."`
	Correlation string `placeholder:"ID" help:"Only events of the call with this correlation id."`
	Since       string `placeholder:"TIME" help:"Only what was taken over at this time or later: 2026-11-30T12:00:00Z, 2026-11-30, or 2h, 7d ago."`
	Until       string `placeholder:"TIME" help:"Only what was taken over before this time."`
}

// view is the list of the entries that f selects.
func (f inboxFilter) view(a *app, consumer string, state adminv1.InboxState) (list[*adminv1.InboxEntry], error) {
	request := &adminv1.ListInboxEntriesRequest{
		Parent: "consumers/" + or(consumer, "-"), State: state, ErrorCode: f.ErrorCode, CorrelationId: f.Correlation,
	}
	var err error
	if request.ReceiveTimeFrom, err = a.timestamp("--since", f.Since); err != nil {
		return list[*adminv1.InboxEntry]{}, err
	}
	if request.ReceiveTimeUntil, err = a.timestamp("--until", f.Until); err != nil {
		return list[*adminv1.InboxEntry]{}, err
	}
	return list[*adminv1.InboxEntry]{
		what:   "entries",
		header: []string{"TAKEN OVER (UTC)", "CONSUMER", "TYPE", "OWNER", "NUMBER", "STATE", "ATTEMPTS", "ERROR", "EVENT"},
		row: func(e *adminv1.InboxEntry) []string {
			return []string{
				when(e.GetReceiveTime()), e.GetConsumer(), e.GetEventType(), e.GetOwner(), numbered(e.GetLedgerNumber()),
				word(e.GetState(), "INBOX_STATE_"), strconv.Itoa(int(e.GetAttempts())), e.GetLastErrorCode(), e.GetEventId(),
			}
		},
		get: func(ctx context.Context, size int32, token string) ([]*adminv1.InboxEntry, string, error) {
			request.PageSize, request.PageToken = size, token
			r, err := a.inbox().ListInboxEntries(ctx, request)
			return r.GetInboxEntries(), r.GetNextPageToken(), err
		},
	}, nil
}

type inboxListCmd struct {
	Consumer string `placeholder:"NAME" help:"Only this consumer's: audit-log or security-alerts."`
	State    string `placeholder:"STATE" help:"Only pending, processing, processed or dead."`
	inboxFilter
	pageFlags
}

// Help implements kong.HelpProvider.
func (inboxListCmd) Help() string {
	return examples("counterfoil inbox list --state dead", "counterfoil inbox list --consumer audit-log --since 1h --all -o json")
}

// Run lists the entries.
func (c *inboxListCmd) Run(ctx context.Context, a *app) error {
	state := int32(0)
	if c.State != "" {
		var err error
		if state, err = enum("--state", c.State, "INBOX_STATE_", adminv1.InboxState_value); err != nil {
			return err
		}
	}
	view, err := c.view(a, c.Consumer, adminv1.InboxState(state))
	if err != nil {
		return err
	}
	return view.show(ctx, a, c.pageFlags)
}

// consumerFlag names a consumer.
type consumerFlag struct {
	Consumer string `required:"" placeholder:"NAME" help:"Whose work: audit-log or security-alerts."`
}

func (a *app) inboxEntry(ctx context.Context, consumer, id string) (*adminv1.InboxEntry, error) {
	r, err := a.inbox().GetInboxEntry(ctx, &adminv1.GetInboxEntryRequest{Name: "consumers/" + consumer + "/entries/" + id})
	return r.GetInboxEntry(), err
}

type inboxGetCmd struct {
	consumerFlag
	Event string `arg:"" help:"Event id, or consumers/NAME/entries/ID."`
}

// Help implements kong.HelpProvider.
func (inboxGetCmd) Help() string {
	return examples("counterfoil inbox get --consumer audit-log 01980000-0000-7000-8000-000000000001")
}

// Run shows the entry.
func (c *inboxGetCmd) Run(ctx context.Context, a *app) error {
	id, err := lastID("an event", c.Event)
	if err != nil {
		return err
	}
	e, err := a.inboxEntry(ctx, c.Consumer, id)
	if err != nil {
		return err
	}
	return a.out.result(e,
		[2]string{"entry", e.GetName()},
		[2]string{"type", e.GetEventType()},
		[2]string{"ledger", position(e.GetOwner(), e.GetLedgerId(), e.GetLedgerNumber())},
		[2]string{"taken over", whenUTC(e.GetReceiveTime())},
		[2]string{"stream entry", e.GetStreamEntryId()},
		[2]string{"state", word(e.GetState(), "INBOX_STATE_")},
		[2]string{"attempts", strconv.Itoa(int(e.GetAttempts()))},
		[2]string{"next attempt", whenUTC(e.GetNextAttemptTime())},
		[2]string{"held by", e.GetLeaseOwner()},
		[2]string{"held until", whenUTC(e.GetLeaseExpireTime())},
		[2]string{"finished", whenUTC(e.GetFinishTime())},
		[2]string{"last error", strings.TrimSpace(e.GetLastErrorCode() + " " + whenUTC(e.GetLastErrorTime()))},
	)
}

// inboxAction is what requeue and replay have in common.
type inboxAction struct {
	consumerFlag
	chosenFlags
	eventFlags
	inboxFilter
	reasonFlags
}

// run acts on the consumer's entries in the state from.
func (c *inboxAction) run(ctx context.Context, a *app, verb, past string, from adminv1.InboxState, act func(context.Context, []string) ([]string, error)) error {
	view, err := c.view(a, c.Consumer, from)
	if err != nil {
		return err
	}
	return operation[*adminv1.InboxEntry]{
		chosenFlags: c.chosenFlags, reasonFlags: c.reasonFlags, more: c.Event, verb: verb, what: "entries of " + c.Consumer, view: view, act: act,
		id:       (*adminv1.InboxEntry).GetEventId,
		eligible: func(e *adminv1.InboxEntry) bool { return e.GetState() == from },
		get: func(ctx context.Context, id string) (*adminv1.InboxEntry, error) {
			return a.inboxEntry(ctx, c.Consumer, id)
		},
		show: func(done, asked []string) error {
			if a.out.json {
				return a.out.value(map[string]any{
					"consumer": c.Consumer, past + "EventIds": some(done), past + "Count": len(done), "leftCount": len(asked) - len(done),
				})
			}
			return a.out.fields([2]string{past + " entries of " + c.Consumer, strconv.Itoa(len(done))})
		},
	}.run(ctx, a)
}

// some is ids, or an empty list, which JSON does not write as null.
func some(ids []string) []string {
	if ids == nil {
		return []string{}
	}
	return ids
}

type inboxRequeueCmd struct{ inboxAction }

// Help implements kong.HelpProvider.
func (inboxRequeueCmd) Help() string {
	return `Only entries that are DEAD are requeued; others are left as they are. Each one is recorded in the audit log with the
reason.

` + examples(
		`counterfoil inbox requeue --consumer audit-log --event 01980000-0000-7000-8000-000000000001 --reason "disk was full"`,
		`counterfoil inbox requeue --consumer security-alerts --all --error-code inbox.handler_panic --reason "fixed in 1.4" --yes`)
}

// Run requeues the entries.
func (c *inboxRequeueCmd) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, "requeue", "requeued", adminv1.InboxState_INBOX_STATE_DEAD, func(ctx context.Context, ids []string) ([]string, error) {
		r, err := a.inbox().RequeueInboxEntries(ctx, &adminv1.RequeueInboxEntriesRequest{
			Parent: "consumers/" + c.Consumer, EventIds: ids, Reason: c.Reason,
		})
		return r.GetRequeuedEventIds(), err
	})
}

type inboxReplayCmd struct{ inboxAction }

// Help implements kong.HelpProvider.
func (inboxReplayCmd) Help() string {
	return `Only entries that are PROCESSED are handed over again; what their consumer did before is not undone, and its effect takes
place once all the same. --all needs at least one filter flag. Each one is recorded in the audit log with the reason.

` + examples(
		`counterfoil inbox replay --consumer security-alerts --event 01980000-0000-7000-8000-000000000001 --reason "new rule"`,
		`counterfoil inbox replay --consumer security-alerts --all --since 24h --dry-run`)
}

// Run replays the entries.
func (c *inboxReplayCmd) Run(ctx context.Context, a *app) error {
	if c.All && c.inboxFilter == (inboxFilter{}) {
		return usage("--all alone would replay everything: give --since, --until, --error-code or --correlation, too")
	}
	return c.run(ctx, a, "replay", "replayed", adminv1.InboxState_INBOX_STATE_PROCESSED, func(ctx context.Context, ids []string) ([]string, error) {
		r, err := a.inbox().ReplayInboxEntries(ctx, &adminv1.ReplayInboxEntriesRequest{
			Parent: "consumers/" + c.Consumer, EventIds: ids, Reason: c.Reason,
		})
		return r.GetReplayedEventIds(), err
	})
}
