// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package outbox carries the audit events of a service from the transaction
// that made them true to a broker.
//
// [Append] and [AppendBatch] write events in the caller's transaction: the
// change and its event commit together or not at all. A [Sealer] gives
// committed events dense numbers, in commit order for each resource. A
// [Dispatcher] claims numbered entries in pages, hands them to a [Publisher] and
// settles what became of them. Sealer and Dispatcher may run in any number of
// processes.
//
// # States
//
// A claim is not a state: it is an owner, a fresh token and an expiry beside the
// state, by the database's clock. Every write that ends or extends a claim
// matches the token, and one that matches nothing counts as lost, never as
// success.
//
//	from                                   event                                   to
//	PENDING, or DEFERRED and               claimed                                 unchanged, with a claim
//	  RETRYABLE_FAILURE when due
//	claimed                                broker accepted it                      DELIVERED
//	claimed                                broker's own trouble, or no reply       DEFERRED, no attempt used
//	claimed                                broker refused this entry               RETRYABLE_FAILURE, attempt + 1
//	claimed                                publisher can never send it             FAILED
//	claimed                                refused, and attempts are used up       DEAD_LETTERED
//	claimed alone over MaxClaims times     claimed once more                       DEAD_LETTERED
//	claimed                                released on a clean stop, or expired    unchanged, without a claim
//	FAILED, DEAD_LETTERED                  an operator requeues it, with a reason  PENDING, counts reset
//
// Nothing else happens to a state; [Status.CanBecome] is this table. A row of
// audit_lifecycle records each change other than PENDING to DELIVERED.
//
// # Broker trouble
//
// After trouble that is the broker's own the Dispatcher's circuit is open: it
// claims nothing but one entry at a time, with a growing pause, and never the
// one that failed last while there is another. The first success closes the
// circuit and makes every DEFERRED entry due. Sealing goes on meanwhile, and so
// do business calls, which never meet the broker.
//
// An error reply counts as the entry's own only if the broker accepted another
// entry of the same page, or any entry since this one's previous failure.
//
// # Poison
//
// A claim counts when it is taken. An entry that was claimed three times without
// an outcome is claimed alone from then on, so that one which ends its process
// reaches MaxClaims and its neighbours do not.
//
// # What it does not promise
//
// It does not deliver exactly once: a crash between the broker's answer and the
// settling repeats an entry, under the same event id. It does not deliver in
// order: a retry, and a second Dispatcher, can overtake. The number is the order.
// It does not say that a receiver took an entry over; DELIVERED means that the
// broker did. It does not protect from a database that loses committed rows.
//
// # Database
//
// The tables belong to the owner's migrations; [CheckSchema] compares at start.
// Statements are in sql.go. Every transaction of the Sealer and the Dispatcher is
// READ COMMITTED, whatever the default, ends by time-outs of its own if its process
// stops, and has its statements planned once a connection, by index and not by
// statistics: a plan that was made while the outbox was empty serves it when it is
// full. List, Get and Prune run as the caller's pool is set.
package outbox
