// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package redisstream

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/pkg/outbox"
)

// Codes of the broker's own trouble, and of a refusal that may be an entry's.
const (
	CodeUnavailable = "broker.unavailable"
	CodeTimeout     = "broker.timeout"
	CodeExhausted   = "broker.stream_exhausted"
	CodeClients     = "broker.max_clients"
	CodeRefused     = "broker.refused"
)

// troublePrefixes are the error replies that are the broker's own trouble. Redis
// gives an error's kind as its first word.
func troublePrefixes() map[string]string {
	return map[string]string{
		"OOM": "broker.oom", "NOPERM": "broker.noperm", "NOAUTH": "broker.noauth", "WRONGPASS": "broker.noauth",
		"READONLY": "broker.readonly", "LOADING": "broker.loading", "MISCONF": "broker.misconf", "NOREPLICAS": "broker.noreplicas",
		"MASTERDOWN": "broker.masterdown", "CLUSTERDOWN": "broker.clusterdown", "MOVED": "broker.moved", "ASK": "broker.ask",
		"TRYAGAIN": "broker.tryagain", "WRONGTYPE": "broker.wrongtype", "BUSY": "broker.busy",
	}
}

// classify turns the client's error into a stable code; none of its text is kept (A67).
func classify(err error) outbox.Fault {
	var reply redis.Error
	if !errors.As(err, &reply) {
		var timeout net.Error
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
			errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, redis.ErrPoolTimeout) {
			return outbox.Fault{Kind: outbox.FaultBroker, Code: CodeTimeout}
		}
		return outbox.Fault{Kind: outbox.FaultBroker, Code: CodeUnavailable}
	}
	text := reply.Error()
	word, _, _ := strings.Cut(text, " ")
	if code, ok := troublePrefixes()[word]; ok {
		return outbox.Fault{Kind: outbox.FaultBroker, Code: code}
	}
	switch {
	case strings.Contains(text, "exhausted the last possible ID"):
		return outbox.Fault{Kind: outbox.FaultBroker, Code: CodeExhausted}
	case strings.HasPrefix(text, "ERR Protocol error: unauthenticated"):
		// A connection that did not log in may send small commands only.
		return outbox.Fault{Kind: outbox.FaultBroker, Code: "broker.noauth"}
	case strings.Contains(text, "max number of clients"):
		return outbox.Fault{Kind: outbox.FaultBroker, Code: CodeClients}
	}
	return outbox.Fault{Kind: outbox.FaultRefused, Code: CodeRefused}
}
