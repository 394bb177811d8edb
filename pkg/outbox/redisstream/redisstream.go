// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package redisstream publishes outbox entries to the owner's Redis stream, each
// with the MAC that makes it authentic.
//
// A page is one pipeline of XADDs. It is not a transaction: part of a page can be
// in the stream when the rest was refused, and an entry whose reply was lost may
// be there or not. The receiver tells copies by event id.
package redisstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
)

// Name is the publisher's provider_name.
const Name = "redis-streams"

// Options configures a Publisher. Client, Owner and Keys are required.
type Options struct {
	// Client talks to the broker. Its retries must be off (see ClientOptions).
	Client *redis.Client
	// Owner is the owner of the events; it names the stream.
	Owner string
	// Keys signs.
	Keys *envelope.Keyring
	// MaxPayload is the largest payload, in bytes; a larger one is FAILED
	// without being sent, since Redis would close the connection over it.
	// Default audit.MaxPayload.
	MaxPayload int
}

// ClientOptions returns a copy of o that is fit for a Publisher: no retries,
// since one after a lost reply doubles a whole page (BC-24), deadlines from the
// context, so that a stop is not held up by a silent broker, and no command that
// the owner's user need not have.
func ClientOptions(o redis.Options) *redis.Options {
	o.MaxRetries = -1
	o.DisableIdentity = true
	o.ContextTimeoutEnabled = true
	return &o
}

// Publisher implements outbox.Publisher. It is safe for concurrent use.
type Publisher struct {
	o      Options
	stream string
}

var _ outbox.Publisher = (*Publisher)(nil)

// New returns a Publisher. It does no I/O; it refuses a client that retries.
func New(o Options) (*Publisher, error) {
	switch {
	case o.Client == nil || o.Keys == nil || o.Owner == "":
		return nil, errors.New("redisstream: Client, Owner and Keys are required")
	case o.Client.Options().MaxRetries > 0:
		return nil, fmt.Errorf("redisstream: the client repeats a failed command %d times; make it with ClientOptions", o.Client.Options().MaxRetries)
	case o.MaxPayload < 0:
		return nil, errors.New("redisstream: MaxPayload must not be negative")
	}
	if o.MaxPayload == 0 {
		o.MaxPayload = audit.MaxPayload
	}
	return &Publisher{o: o, stream: envelope.StreamKey(o.Owner)}, nil
}

// Name implements outbox.Publisher.
func (p *Publisher) Name() string { return Name }

// Stream returns the key of the stream.
func (p *Publisher) Stream() string { return p.stream }

// Publish implements outbox.Publisher: one pipeline for the page. An entry that
// cannot be sent at all is left out of it and its fault is permanent.
func (p *Publisher) Publish(ctx context.Context, msgs []outbox.Message) []outbox.Result {
	results := make([]outbox.Result, len(msgs))
	added := make([]*redis.StringCmd, len(msgs))
	pipe := p.o.Client.Pipeline()
	for i := range msgs {
		if code := p.unfit(&msgs[i]); code != "" {
			results[i].Fault = outbox.Fault{Kind: outbox.FaultPermanent, Code: code}
			continue
		}
		added[i] = pipe.XAdd(ctx, &redis.XAddArgs{Stream: p.stream, Values: p.entry(&msgs[i])})
	}
	if pipe.Len() == 0 {
		return results
	}
	_, err := pipe.Exec(ctx) // the first error; each command has its own
	for i, cmd := range added {
		if cmd == nil {
			continue
		}
		// A reply that was read counts, whatever became of the connection after
		// it: the client stamps its error on every command of the page.
		if id := cmd.Val(); id != "" {
			results[i].RecordID = id
			continue
		}
		// A refused handshake leaves commands without any error of their own.
		results[i].Fault = classify(firstError(cmd.Err(), err))
	}
	return results
}

// errNoReply is a command that has neither a result nor an error: its reply was never read.
var errNoReply = errors.New("no reply")

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return errNoReply
}

func (p *Publisher) entry(m *outbox.Message) []any {
	e := envelope.Entry{
		EventID: m.EventID, EventType: m.EventType, Owner: p.o.Owner, SchemaVersion: m.SchemaVersion,
		LedgerID: m.LedgerID, LedgerSeq: m.LedgerSeq, Payload: m.Payload,
		Traceparent: m.Traceparent, Tracestate: m.Tracestate,
	}
	p.o.Keys.Sign(&e, envelope.ToAdmin)
	return e.Fields()
}

// unfit returns the code of what keeps m from being sent through this stream, whoever asks.
func (p *Publisher) unfit(m *outbox.Message) string {
	if len(m.Payload) > p.o.MaxPayload {
		return outbox.CodeTooLarge
	}
	owner, ok := payloadOwner(m.Payload)
	switch {
	case !ok:
		return outbox.CodeMalformed
	case owner != p.o.Owner:
		return outbox.CodeForeignOwner
	}
	return ""
}

// ownerField is the number of AuditEvent.owner.
const ownerField = 4

// payloadOwner reads AuditEvent.owner without decoding the rest: an event that
// was appended for another owner must become a visible dead entry (BC-37), not
// travel under this owner's name.
func payloadOwner(payload []byte) (owner string, ok bool) {
	for len(payload) > 0 {
		number, kind, n := protowire.ConsumeTag(payload)
		if n < 0 {
			return "", false
		}
		payload = payload[n:]
		if number == ownerField && kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(payload)
			return string(value), n >= 0
		}
		if n = protowire.ConsumeFieldValue(number, kind, payload); n < 0 {
			return "", false
		}
		payload = payload[n:]
	}
	return "", true
}
