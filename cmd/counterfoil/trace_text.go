// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"

	adminv1 "github.com/counterfoil/counterfoil/proto/counterfoil/admin/v1"
)

// write prints the path, station by station.
func (p *path) write(a *app, v verdict) error {
	var fields [][2]string
	add := func(name, format string, args ...any) {
		fields = append(fields, [2]string{name, fmt.Sprintf(format, args...)})
	}
	add("EVENT", "%s", p.id)
	if e := p.event(); e != nil {
		add("", "%s: %s, %s, %s (%s)", whenUTC(e.GetOccurTime()), who(e.GetActor()), e.GetAction(), toWhat(e), result(e))
	}
	p.outboxLines(add)
	p.streamLines(add)
	p.inboxLines(add)
	p.poisonLines(add)
	if l := p.admin.GetAuditLog(); l != nil {
		add("AUDIT LOG", "%s, recorded %s, %s", l.GetName(), whenUTC(l.GetRecordTime()), position(l.GetEvent().GetOwner(), l.GetLedgerId(), l.GetLedgerNumber()))
	} else {
		add("AUDIT LOG", "%s", p.absent(serviceAdmin))
	}
	if p.recorded != "" {
		same := "the same in the outbox"
		if p.recorded != p.outbox.GetPayloadSha256() {
			same = "ANOTHER in the outbox: " + p.outbox.GetPayloadSha256()
		}
		add("", "sha256 of its bytes %s, %s", p.recorded, same)
	}
	add("NOW", "%s", v.state)
	if v.advice != "" && v.exit == exitOK {
		add("", "%s", v.advice)
	}
	return a.out.block(fields)
}

// absent says that a service has nothing, or that nobody knows.
func (p *path) absent(services ...string) string {
	for _, service := range services {
		if p.unasked(service) {
			return "unknown: " + service + " was not asked"
		}
	}
	return "-"
}

func (p *path) outboxLines(add func(name, format string, args ...any)) {
	if p.outbox == nil {
		add("OUTBOX", "%s", p.absent(serviceAuth, serviceApp))
		return
	}
	e := p.outbox.GetOutboxEvent()
	add("OUTBOX", "%s: %s, attempts %d of %d, written %s", p.owner, word(e.GetStatus(), statusPrefix), e.GetAttempts(), e.GetMaxAttempts(), whenUTC(e.GetCreateTime()))
	add("", "%s", or(position(p.owner, e.GetLedgerId(), e.GetLedgerSeq()), "no number yet"))
	if e.GetDeadLetterReason() != "" || e.GetLastErrorCode() != "" {
		add("", "last error %s %s", or(e.GetDeadLetterReason(), e.GetLastErrorCode()), whenUTC(e.GetLastErrorTime()))
	}
	if e.GetNextAttemptTime() != nil {
		add("", "next attempt %s", whenUTC(e.GetNextAttemptTime()))
	}
	for _, t := range p.outbox.GetTransitions() {
		add("", "%s", transition(t))
	}
}

func (p *path) streamLines(add func(name, format string, args ...any)) {
	sent := p.outbox.GetOutboxEvent()
	arrived := p.admin.GetStreamEntry()
	switch {
	case arrived != nil:
		add("STREAM", "entry %s, taken over %s", arrived.GetEntryId(), whenUTC(arrived.GetReceiveTime()))
		if id := sent.GetProviderRecordId(); id != "" && id != arrived.GetEntryId() {
			add("", "sent last as entry %s: a copy of it", id)
		}
	case sent.GetProviderRecordId() != "":
		add("STREAM", "entry %s, delivered %s", sent.GetProviderRecordId(), whenUTC(sent.GetDeliverTime()))
	default:
		add("STREAM", "%s", p.absent(serviceAdmin))
	}
	for _, l := range p.admin.GetLedgerPositions() {
		add("", "held as %s", position(l.GetOwner(), l.GetLedgerId(), l.GetLedgerNumber()))
	}
}

func (p *path) inboxLines(add func(name, format string, args ...any)) {
	name := "INBOX"
	for _, e := range p.admin.GetInboxEntries() {
		text := fmt.Sprintf("%s: %s, attempts %d", e.GetConsumer(), word(e.GetState(), "INBOX_STATE_"), e.GetAttempts())
		if e.GetFinishTime() != nil {
			text += ", finished " + whenUTC(e.GetFinishTime())
		}
		if e.GetNextAttemptTime() != nil && e.GetState() == adminv1.InboxState_INBOX_STATE_PENDING {
			text += ", next attempt " + whenUTC(e.GetNextAttemptTime())
		}
		if e.GetLastErrorCode() != "" {
			text += ", last error " + e.GetLastErrorCode()
		}
		add(name, "%s", text)
		name = ""
	}
	if name != "" {
		add(name, "%s", p.absent(serviceAdmin))
	}
}

func (p *path) poisonLines(add func(name, format string, args ...any)) {
	name := "POISON"
	for _, bad := range p.admin.GetPoison() {
		text := fmt.Sprintf("%s %s (%s), seen %s times, %s", word(bad.GetKind(), "POISON_KIND_"), bad.GetReason(),
			strings.ToLower(word(bad.GetState(), "POISON_STATE_")), strconv.FormatInt(bad.GetSeenCount(), 10), bad.GetName())
		if bad.GetDecisionReason() != "" {
			text += ": " + bad.GetDecisionReason()
		}
		add(name, "%s", text)
		name = ""
	}
}
