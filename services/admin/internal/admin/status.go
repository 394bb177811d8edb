// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// positionTimeout bounds the question to the broker in a status.
const positionTimeout = 2 * time.Second

// Stream is how the reading position in one owner's stream is asked for: inbox.Source has it.
type Stream interface {
	Position(ctx context.Context) (inbox.Position, error)
}

// Status is the state of the inbox: the database's counts, and the broker's where it answers.
type Status struct {
	Consumers []inbox.ConsumerStatus
	Streams   []StreamStatus
	Poison    []inbox.PoisonCount
}

// StreamStatus is how far one owner's stream was taken over.
type StreamStatus struct {
	inbox.StreamStatus
	Broker *inbox.Position // nil if the broker cannot be read: unknown, which is not zero
}

// Status reads the state of the inbox. It needs the database and does without the broker.
func (s *Service) Status(ctx context.Context) (Status, error) {
	stored, err := s.inbox.Status(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("read inbox status: %w", err)
	}
	status := Status{Consumers: stored.Consumers, Poison: stored.Poison}
	taken := map[string]inbox.StreamStatus{}
	for _, stream := range stored.Streams {
		taken[stream.Owner] = stream
	}
	for owner, position := range s.positions(ctx) {
		stream := StreamStatus{StreamStatus: taken[owner], Broker: position}
		stream.Owner = owner
		status.Streams = append(status.Streams, stream)
	}
	slices.SortFunc(status.Streams, func(a, b StreamStatus) int { return strings.Compare(a.Owner, b.Owner) })
	return status, nil
}

// positions asks the broker about all streams at once; nil stands for no answer.
func (s *Service) positions(ctx context.Context) map[string]*inbox.Position {
	ctx, cancel := context.WithTimeout(ctx, positionTimeout)
	defer cancel()
	found := make(map[string]*inbox.Position, len(s.streams))
	var mu sync.Mutex
	var all sync.WaitGroup
	for owner, stream := range s.streams {
		all.Go(func() {
			position, err := stream.Position(ctx)
			mu.Lock()
			defer mu.Unlock()
			if found[owner] = nil; err == nil {
				found[owner] = &position
			}
		})
	}
	all.Wait()
	return found
}

// Limits of a healthy inbox (first thresholds; the alert rules have the same).
const (
	maxLeaseAge = time.Minute      // two leases
	maxRetryAge = 17 * time.Minute // the largest backoff
	maxWaiting  = 10 * time.Minute
)

// Degraded says in words what is wrong with the inbox, or nothing. Reads keep working; events do not get through as
// they should, which a look at the stream's lag alone would not show (U88). scale divides every limit, for tests.
func Degraded(status inbox.Status, scale float64) []string {
	limit := func(d time.Duration) time.Duration { return time.Duration(float64(d) / scale) }
	var found []string
	for _, c := range status.Consumers {
		if c.Dead > 0 {
			found = append(found, fmt.Sprintf("consumer %s: %d dead entries", c.Consumer, c.Dead))
		}
		for _, age := range []struct {
			what       string
			age, limit time.Duration
		}{
			{"oldest lease", c.OldestLeaseAge, limit(maxLeaseAge)},
			{"oldest retry", c.OldestRetryAge, limit(maxRetryAge)},
			{"oldest waiting entry", c.OldestPendingAge, limit(maxWaiting)},
		} {
			if age.age > age.limit {
				found = append(found, fmt.Sprintf("consumer %s: %s is %s old", c.Consumer, age.what, age.age.Round(time.Second)))
			}
		}
	}
	return found
}
