// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package failpoint names the places where the fault tests stop, stall or end
// the process. In ordinary builds [Hit] does nothing and reads nothing; only a
// build with the tag "failpoints" looks at the environment.
package failpoint

// The names, in the order in which an event meets them.
const (
	OutboxAfterBusinessWrite = "outbox.after_business_write"
	OutboxAppended           = "outbox.appended"
	OutboxSealed             = "outbox.sealed"
	OutboxClaimed            = "outbox.claimed"
	OutboxPublished          = "outbox.published"
	OutboxSettled            = "outbox.settled"
	OutboxConfirmed          = "outbox.confirmed"
	InboxRead                = "inbox.read"
	InboxTakenOver           = "inbox.taken_over"
	InboxAcked               = "inbox.acked"
	InboxReceiptSent         = "inbox.receipt_sent"
	InboxClaimed             = "inbox.claimed"
	InboxEffectApplied       = "inbox.effect_applied"
	InboxMarked              = "inbox.marked"
	InboxCommitted           = "inbox.committed"
)

// Env is the variable that arms failpoints in a build with the tag:
//
//	COUNTERFOIL_FAILPOINT=outbox.published=exit@3,inbox.marked=stall:40s
//
// Each item is name=action[@nth]. The action is exit (the process ends with
// status 137, running no deferred call), stall:DURATION, or hook (the function
// given to SetHook runs). @nth acts on the nth hit alone; without it, on each.
const Env = "COUNTERFOIL_FAILPOINT"

// Names lists every failpoint.
func Names() []string {
	return []string{
		OutboxAfterBusinessWrite, OutboxAppended, OutboxSealed, OutboxClaimed, OutboxPublished, OutboxSettled,
		OutboxConfirmed, InboxRead, InboxTakenOver, InboxAcked, InboxReceiptSent, InboxClaimed,
		InboxEffectApplied, InboxMarked, InboxCommitted,
	}
}
