// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package redisstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// NoEviction is the maxmemory-policy under which a full server refuses entries and drops no stream. To the allkeys policies a
// stream is one key like any, and the next XADD begins it anew as if nothing had been there (BC-44); the volatile ones spare it
// only as long as nobody gives it an expiry.
const NoEviction = "noeviction"

// EvictionPolicy returns the server's maxmemory-policy, by INFO, which this user must be allowed to ask.
func (s *Source) EvictionPolicy(ctx context.Context) (string, error) {
	text, err := s.commands.Info(ctx, "memory").Result()
	if err != nil {
		return "", fmt.Errorf("info memory: %w", err)
	}
	for line := range strings.Lines(text) {
		if policy, ok := strings.CutPrefix(line, "maxmemory_policy:"); ok {
			return strings.TrimSpace(policy), nil
		}
	}
	return "", errors.New("info memory: no maxmemory_policy")
}
