// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import "slices"

// Status is where an entry stands. A claim is not a status: it is the claim
// columns beside one (A47).
type Status string

// The six statuses.
const (
	// StatusPending is an entry that is ready for delivery.
	StatusPending Status = "PENDING"
	// StatusDelivered is an entry that the broker accepted.
	StatusDelivered Status = "DELIVERED"
	// StatusDeferred is an entry that waits for the broker's own trouble to pass; no attempt was used.
	StatusDeferred Status = "DEFERRED"
	// StatusFailed is an entry that can never be delivered as it is, with attempts left.
	StatusFailed Status = "FAILED"
	// StatusRetryableFailure is an entry that the broker refused and that will be tried again.
	StatusRetryableFailure Status = "RETRYABLE_FAILURE"
	// StatusDeadLettered is an entry whose attempts or claims are used up, or that was quarantined.
	StatusDeadLettered Status = "DEAD_LETTERED"
)

// Statuses returns the six statuses in the order of a life.
func Statuses() []Status {
	return []Status{StatusPending, StatusDeferred, StatusRetryableFailure, StatusDelivered, StatusFailed, StatusDeadLettered}
}

// Open reports whether an entry in s will be delivered without anybody's help.
func (s Status) Open() bool {
	return s == StatusPending || s == StatusDeferred || s == StatusRetryableFailure
}

// Valid reports whether s is one of the six.
func (s Status) Valid() bool { return slices.Contains(Statuses(), s) }

// CanBecome reports whether the package ever moves an entry from s to next.
// Every other move is refused (U67); see the table in the package comment.
func (s Status) CanBecome(next Status) bool {
	switch s {
	case StatusPending, StatusDeferred, StatusRetryableFailure:
		return next.Valid() && next != StatusPending
	case StatusFailed, StatusDeadLettered:
		return next == StatusPending
	default:
		return false
	}
}
