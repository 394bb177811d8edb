// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// position is a stream of which the broker says something, or nothing.
type position func() (inbox.Position, error)

func (p position) Position(context.Context) (inbox.Position, error) { return p() }

// What the broker does not say is unknown, not zero, and the rest of the status is served all the same.
func TestStatusWithoutBroker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.service.streams = map[string]Stream{
		"auth": position(func() (inbox.Position, error) { return inbox.Position{Lag: 7, Pending: 2}, nil }),
		"app":  position(func() (inbox.Position, error) { return inbox.Position{}, errors.New("EOF") }),
	}
	b.take(t, ourCatalog(), sealed(t, newEvent(t, granted).Audit)...)
	status, err := b.service.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Streams) != 2 || status.Streams[0].Owner != "app" || status.Streams[0].Broker != nil {
		t.Errorf("streams: %+v", status.Streams)
	}
	if auth := status.Streams[1]; auth.Broker == nil || auth.Broker.Lag != 7 || auth.TakenOver != 1 || auth.LastEntryID == "" {
		t.Errorf("auth: %+v", auth)
	}
	if len(status.Consumers) != 2 || status.Consumers[0].Pending != 1 || status.Consumers[1].Pending != 1 {
		t.Errorf("consumers: %+v", status.Consumers)
	}
}

// Each signal that a look at the stream's lag would miss is named (U88).
func TestDegraded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status inbox.ConsumerStatus
		want   string
	}{
		"well":          {inbox.ConsumerStatus{Pending: 9, OldestPendingAge: time.Minute, OldestLeaseAge: time.Second}, ""},
		"dead":          {inbox.ConsumerStatus{Dead: 1}, "1 dead entries"},
		"stuck lease":   {inbox.ConsumerStatus{OldestLeaseAge: 2 * time.Minute}, "oldest lease"},
		"endless retry": {inbox.ConsumerStatus{OldestRetryAge: time.Hour}, "oldest retry"},
		"stopped":       {inbox.ConsumerStatus{OldestPendingAge: time.Hour}, "oldest waiting entry"},
	} {
		got := strings.Join(Degraded(inbox.Status{Consumers: []inbox.ConsumerStatus{c.status}}, 1), "; ")
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	slow := inbox.Status{Consumers: []inbox.ConsumerStatus{{OldestLeaseAge: 2 * time.Second}}}
	if len(Degraded(slow, 60)) != 1 {
		t.Error("the limits do not follow the time scale")
	}
}
