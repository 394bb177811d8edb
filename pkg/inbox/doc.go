// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package inbox takes events over from their owners' streams and applies each of
// them once for each consumer, on the receiver's own Postgres.
//
// Two loops share the work. A [Bridge] reads one owner's [Source], checks that an
// entry is authentic and usable, and commits it to the inbox before it acknowledges
// the stream. A [Consumer] takes leases on inbox rows and runs a [Handler] in a
// transaction that also marks the rows done. What an operator may do (requeue,
// replay, discard) is on [Postgres], in the caller's transaction.
//
// # States of an inbox row
//
//	from        event                                              to
//	(none)      takeover                                           PENDING
//	PENDING     due, claimed (attempts + 1, fresh lease token)     PROCESSING
//	PROCESSING  lease expired, claimed again (attempts + 1)        PROCESSING
//	PROCESSING  handler and terminal update committed              PROCESSED
//	PROCESSING  handler failed, attempts left                      PENDING, due after a backoff
//	PROCESSING  handler failed for good, or no attempt left        DEAD
//	PROCESSING  database trouble, or clean stop (attempts - 1)     PENDING
//	DEAD        operator requeues (attempts = 0)                   PENDING
//	PROCESSED   operator replays (attempts = 0)                    PENDING
//
// Every other change is refused: each statement names the state that it leaves, and
// those that end a lease name its token too.
//
// # What it does not promise
//
// A handler may run more than once for one event; what takes effect once is what it
// does in the transaction that it is given. Effects outside that transaction (a mail,
// a call) happen again after a crash, so such a handler needs an idempotency key that
// the other side honours ([ConsumerOptions.OutsideEffects]). What the broker loses
// after it accepted it is not found here. Poison and DEAD rows stay until an operator
// acts: nothing here repairs them by itself. Rows are not handled in stream order.
//
// The tables belong to the receiver's migrations; [CheckSchema] compares them.
package inbox
