// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	outboxv1 "github.com/counterfoil/counterfoil/proto/counterfoil/outbox/v1"
)

type outboxCmd struct {
	Status  outboxStatusCmd  `cmd:"" help:"How much waits at each owner, and for how long."`
	List    outboxListCmd    `cmd:"" help:"List an owner's events, newest first."`
	Get     outboxGetCmd     `cmd:"" help:"Show one event of an owner and its delivery."`
	Requeue outboxRequeueCmd `cmd:"" help:"Deliver events again that failed for good."`
}

func (a *app) outbox(service string) outboxv1.OutboxServiceClient {
	return outboxv1.NewOutboxServiceClient(a.conn(service))
}

// statusPrefix is what the names of outbox statuses begin with.
const statusPrefix = "OUTBOX_EVENT_STATUS_"

// ownerFlag names the service whose outbox is meant.
type ownerFlag struct {
	Service string `required:"" enum:"auth,app" placeholder:"auth|app" help:"Whose outbox."`
}

type outboxStatusCmd struct {
	Service []string `enum:"auth,app" default:"auth,app" placeholder:"auth|app" help:"Whose outbox; both if left out."`
}

// Help implements kong.HelpProvider.
func (outboxStatusCmd) Help() string {
	return examples("counterfoil outbox status", "counterfoil outbox status --service auth -o json")
}

// Run asks each service. One that does not answer does not keep the other from being shown. What keeps both from it, such
// as that nobody is logged in, is told once.
func (c *outboxStatusCmd) Run(ctx context.Context, a *app) error {
	var failed error
	for _, service := range c.Service {
		r, err := a.outbox(service).GetOutboxStatus(ctx, &outboxv1.GetOutboxStatusRequest{})
		if err != nil {
			if failed != nil && failed.Error() != err.Error() {
				a.report(failed)
			}
			failed = err
			continue
		}
		if a.out.json {
			err = a.out.line(r)
		} else {
			err = showOutboxStatus(a, r)
		}
		if err != nil {
			return err
		}
	}
	return failed
}

func showOutboxStatus(a *app, r *outboxv1.GetOutboxStatusResponse) error {
	counts := make(map[outboxv1.OutboxEventStatus]int64)
	for _, c := range r.GetCounts() {
		counts[c.GetStatus()] = c.GetCount()
	}
	fields := [][2]string{{"outbox of", r.GetOwner() + " at " + whenUTC(r.GetReadTime())}}
	for n := outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_PENDING; n <= outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED; n++ {
		fields = append(fields, [2]string{"  " + word(n, statusPrefix), strconv.FormatInt(counts[n], 10)})
	}
	oldest := "nothing waits"
	if r.GetOldestOpenAge() != nil {
		oldest = span(r.GetOldestOpenAge().AsDuration())
	}
	fields = append(fields,
		[2]string{"  oldest waiting", oldest},
		[2]string{"  being delivered", strconv.FormatInt(r.GetClaimedCount(), 10)},
		[2]string{"  without a number", strconv.FormatInt(r.GetUnsealedCount(), 10)},
		[2]string{"  ledger", fmt.Sprintf("%s, up to number %d", or(r.GetLedgerId(), "none"), r.GetLedgerHead())},
		[2]string{"  last numbered", whenUTC(r.GetSealTime())},
	)
	for _, code := range slices.Sorted(maps.Keys(r.GetFailureCounts())) {
		fields = append(fields, [2]string{"  failed: " + code, strconv.FormatInt(r.GetFailureCounts()[code], 10)})
	}
	return a.out.fields(fields...)
}

// outboxFilter selects events of an outbox.
type outboxFilter struct {
	EventType string `placeholder:"TYPE" help:"Only events of this type; a * at the end stands for anything."`
	ErrorCode string `placeholder:"CODE" help:"Only events with this code as last error or reason."`
	Since     string `placeholder:"TIME" help:"Only what was done at this time or later: 2026-11-30T12:00:00Z, 2026-11-30, or 2h, 7d ago."`
	Until     string `placeholder:"TIME" help:"Only what was done before this time."`
}

// view is the list of the events that f selects, in the given statuses.
func (f outboxFilter) view(a *app, service string, statuses []outboxv1.OutboxEventStatus) (list[*outboxv1.OutboxEvent], error) {
	request := &outboxv1.ListOutboxEventsRequest{Statuses: statuses, EventType: f.EventType, ErrorCode: f.ErrorCode}
	var err error
	if request.StartTime, err = a.timestamp("--since", f.Since); err != nil {
		return list[*outboxv1.OutboxEvent]{}, err
	}
	if request.EndTime, err = a.timestamp("--until", f.Until); err != nil {
		return list[*outboxv1.OutboxEvent]{}, err
	}
	return list[*outboxv1.OutboxEvent]{
		what:   "events",
		header: []string{"WHEN (UTC)", "TYPE", "RESOURCE", "NUMBER", "STATUS", "ATTEMPTS", "ERROR", "EVENT"},
		row: func(e *outboxv1.OutboxEvent) []string {
			return []string{
				when(e.GetOccurTime()), e.GetEventType(), strings.TrimSpace(e.GetResourceType() + " " + e.GetResourceId()),
				numbered(e.GetLedgerSeq()), word(e.GetStatus(), statusPrefix),
				fmt.Sprintf("%d/%d", e.GetAttempts(), e.GetMaxAttempts()), or(e.GetDeadLetterReason(), e.GetLastErrorCode()), e.GetEventId(),
			}
		},
		get: func(ctx context.Context, size int32, token string) ([]*outboxv1.OutboxEvent, string, error) {
			request.PageSize, request.PageToken = size, token
			r, err := a.outbox(service).ListOutboxEvents(ctx, request)
			return r.GetOutboxEvents(), r.GetNextPageToken(), err
		},
	}, nil
}

// timestamp is moment as the API takes it; nil if nothing was given.
func (a *app) timestamp(flag, text string) (*timestamppb.Timestamp, error) {
	t, err := a.moment(flag, text)
	if err != nil || t.IsZero() {
		return nil, err
	}
	return timestamppb.New(t.Truncate(time.Microsecond)), nil
}

// numbered shows a ledger number; nothing for none.
func numbered(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

type outboxListCmd struct {
	ownerFlag
	Status []string `placeholder:"STATUS" help:"Only pending, delivered, deferred, failed, retryable-failure or dead-lettered."`
	outboxFilter
	pageFlags
}

// Help implements kong.HelpProvider.
func (outboxListCmd) Help() string {
	return examples("counterfoil outbox list --service auth --status dead-lettered",
		"counterfoil outbox list --service app --event-type 'app.project.*' --since 1h -o json")
}

// Run lists the events.
func (c *outboxListCmd) Run(ctx context.Context, a *app) error {
	var statuses []outboxv1.OutboxEventStatus
	for _, text := range c.Status {
		n, err := enum("--status", text, statusPrefix, outboxv1.OutboxEventStatus_value)
		if err != nil {
			return err
		}
		statuses = append(statuses, outboxv1.OutboxEventStatus(n))
	}
	view, err := c.view(a, c.Service, statuses)
	if err != nil {
		return err
	}
	return view.show(ctx, a, c.pageFlags)
}

type outboxGetCmd struct {
	ownerFlag
	Event string `arg:"" help:"Event id, or outboxEvents/ID."`
}

// Help implements kong.HelpProvider.
func (outboxGetCmd) Help() string {
	return "counterfoil trace shows the same and the rest of the way.\n\n" +
		examples("counterfoil outbox get --service auth 01980000-0000-7000-8000-000000000001")
}

// Run shows the event.
func (c *outboxGetCmd) Run(ctx context.Context, a *app) error {
	id, err := lastID("an event", c.Event)
	if err != nil {
		return err
	}
	r, err := a.outbox(c.Service).GetOutboxEvent(ctx, &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/" + id})
	if err != nil {
		return err
	}
	return a.out.result(r, outboxFields(c.Service, r)...)
}

// outboxFields are all that an outbox says about an event.
func outboxFields(service string, r *outboxv1.GetOutboxEventResponse) [][2]string {
	e := r.GetOutboxEvent()
	fields := [][2]string{
		{"event", e.GetEventId()},
		{"type", e.GetEventType()},
		{"written", whenUTC(e.GetCreateTime())},
		{"ledger", position(service, e.GetLedgerId(), e.GetLedgerSeq())},
		{"status", word(e.GetStatus(), statusPrefix)},
		{"dead because", e.GetDeadLetterReason()},
		{"attempts", fmt.Sprintf("%d of %d", e.GetAttempts(), e.GetMaxAttempts())},
		{"sent again", numbered(int64(e.GetRedeliveryCount()))},
		{"next attempt", whenUTC(e.GetNextAttemptTime())},
		{"held by", e.GetClaimOwner()},
		{"delivered", whenUTC(e.GetDeliverTime())},
		{"stream entry", e.GetProviderRecordId()},
		{"last error", strings.TrimSpace(e.GetLastErrorCode() + " " + whenUTC(e.GetLastErrorTime()))},
		{"payload", fmt.Sprintf("%d bytes, sha256 %s", r.GetPayloadSize(), r.GetPayloadSha256())},
	}
	for _, t := range r.GetTransitions() {
		fields = append(fields, [2]string{"history", transition(t)})
	}
	return fields
}

// transition shows one step of a delivery.
func transition(t *outboxv1.OutboxTransition) string {
	text := whenUTC(t.GetOccurTime()) + " " + t.GetTransition()
	if from, to := word(t.GetFromStatus(), statusPrefix), word(t.GetToStatus(), statusPrefix); from != "" || to != "" {
		text += " " + or(from, "-") + " → " + or(to, "-")
	}
	if t.GetCode() != "" {
		text += " " + t.GetCode()
	}
	if t.GetActor() != "" {
		text += " by " + t.GetActor()
	}
	if t.GetReason() != "" {
		text += ": " + t.GetReason()
	}
	return text
}

type outboxRequeueCmd struct {
	ownerFlag
	chosenFlags
	eventFlags
	outboxFilter
	reasonFlags
	requestFlags
}

// Help implements kong.HelpProvider.
func (outboxRequeueCmd) Help() string {
	return `Only events that are FAILED or DEAD_LETTERED can be requeued. Named ones are requeued all or none; with --all in steps of
1000. Each is recorded in the audit log with the reason.

` + examples(
		`counterfoil outbox requeue --service auth 01980000-0000-7000-8000-000000000001 --reason "broker limit raised"`,
		`counterfoil outbox requeue --service app --all --error-code broker.oom --dry-run`,
		`counterfoil outbox list --service app --status failed -o json | jq -r .eventId |
        counterfoil outbox requeue --service app - --reason "schema fixed"`)
}

// Run requeues the events.
func (c *outboxRequeueCmd) Run(ctx context.Context, a *app) error {
	dead := []outboxv1.OutboxEventStatus{
		outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_FAILED, outboxv1.OutboxEventStatus_OUTBOX_EVENT_STATUS_DEAD_LETTERED,
	}
	view, err := c.view(a, c.Service, dead)
	if err != nil {
		return err
	}
	requestID := c.RequestID
	return operation[*outboxv1.OutboxEvent]{
		chosenFlags: c.chosenFlags, reasonFlags: c.reasonFlags, more: c.Event, verb: "requeue", what: "events of " + c.Service, view: view,
		id:       (*outboxv1.OutboxEvent).GetEventId,
		eligible: func(e *outboxv1.OutboxEvent) bool { return slices.Contains(dead, e.GetStatus()) },
		get: func(ctx context.Context, id string) (*outboxv1.OutboxEvent, error) {
			r, err := a.outbox(c.Service).GetOutboxEvent(ctx, &outboxv1.GetOutboxEventRequest{Name: "outboxEvents/" + id})
			return r.GetOutboxEvent(), err
		},
		act: func(ctx context.Context, ids []string) ([]string, error) {
			request := &outboxv1.RequeueOutboxEventsRequest{Names: prefixed("outboxEvents/", ids), Reason: c.Reason, RequestId: or(requestID, a.newID())}
			requestID = "" // the next step is another call
			r, err := a.outbox(c.Service).RequeueOutboxEvents(ctx, request)
			return ids[:min(len(ids), int(r.GetRequeuedCount()))], err
		},
		show: func(done, _ []string) error {
			if a.out.json {
				return a.out.value(map[string]any{"service": c.Service, "requeuedCount": len(done)})
			}
			return a.out.fields([2]string{"requeued events of " + c.Service, strconv.Itoa(len(done))})
		},
	}.run(ctx, a)
}

// prefixed makes resource names from ids.
func prefixed(prefix string, ids []string) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = prefix + id
	}
	return names
}
