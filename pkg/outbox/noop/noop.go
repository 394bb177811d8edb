// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package noop is a publisher that accepts every entry and sends it nowhere. It
// is for tests, samples and smoke runs without a broker (A13, A37). It promises
// nothing to a receiver, and a service must not use it in production.
package noop

import (
	"context"

	"github.com/counterfoil/counterfoil/pkg/outbox"
)

// Name is its provider_name.
const Name = "noop"

// Publisher accepts everything. The zero value is ready.
type Publisher struct{}

var _ outbox.Publisher = Publisher{}

// Name implements outbox.Publisher.
func (Publisher) Name() string { return Name }

// Publish accepts every message. The record id is the event id.
func (Publisher) Publish(_ context.Context, msgs []outbox.Message) []outbox.Result {
	out := make([]outbox.Result, len(msgs))
	for i := range msgs {
		out[i].RecordID = msgs[i].EventID.String()
	}
	return out
}
