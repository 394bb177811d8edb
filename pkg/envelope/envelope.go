// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package envelope is the stream entry that carries an event from its owner to
// the audit service, and the MAC that makes it authentic. Both sides of the
// stream use it, so what one writes is what the other reads.
//
// The MAC says that the owner wrote the entry: a broker can delay, drop, repeat
// and reorder entries, and cannot invent one. It does not say that every entry
// arrived; numbers and checkpoints do.
package envelope

import (
	"crypto/sha256"
	"strconv"
	"unicode/utf8"

	"github.com/google/uuid"
)

// CheckpointType is the type of the entry that carries an owner's checkpoint:
// the only one without an event id and without a number.
const CheckpointType = "counterfoil.audit.v1.Checkpoint"

// Group is the consumer group of the audit service on every owner's stream.
const Group = "admin"

// StreamKey is the key of the stream from owner to the audit service. The braces
// keep an owner's keys in one Redis Cluster slot.
func StreamKey(owner string) string { return "audit:{" + owner + "}" }

// ReceiptKey is the key of the stream of receipts from the audit service to owner.
func ReceiptKey(owner string) string { return "receipts:{" + owner + "}" }

// Field names of a stream entry.
const (
	FieldEventID       = "event_id"
	FieldEventType     = "event_type"
	FieldOwner         = "owner"
	FieldSchemaVersion = "schema_version"
	FieldLedgerID      = "ledger_id"
	FieldLedgerSeq     = "ledger_seq"
	FieldPayload       = "payload"
	FieldKeyID         = "key_id"
	FieldMAC           = "mac"
	FieldTraceparent   = "traceparent"
	FieldTracestate    = "tracestate"
)

// Entry is one stream entry. Payload is the event's bytes as its owner appended
// them; the other fields are hints to compare with what the payload says.
type Entry struct {
	EventID       uuid.UUID // zero for a checkpoint
	EventType     string
	Owner         string
	SchemaVersion int32
	LedgerID      uuid.UUID
	LedgerSeq     int64 // from 1; zero for a checkpoint
	Payload       []byte
	KeyID         string
	MAC           []byte
	Traceparent   string // not covered by the MAC
	Tracestate    string // not covered by the MAC
}

// IsCheckpoint reports whether the entry carries a checkpoint instead of an event.
func (e *Entry) IsCheckpoint() bool { return e.EventType == CheckpointType }

// Fields returns the entry as XADD takes it: names and values in a fixed order.
// Absent fields are left out.
func (e *Entry) Fields() []any {
	out := make([]any, 0, 22)
	if e.EventID != uuid.Nil {
		out = append(out, FieldEventID, e.EventID.String())
	}
	out = append(out,
		FieldEventType, e.EventType,
		FieldOwner, e.Owner,
		FieldSchemaVersion, strconv.FormatInt(int64(e.SchemaVersion), 10),
		FieldLedgerID, e.LedgerID.String())
	if e.LedgerSeq != 0 {
		out = append(out, FieldLedgerSeq, strconv.FormatInt(e.LedgerSeq, 10))
	}
	out = append(out, FieldPayload, e.Payload, FieldKeyID, e.KeyID, FieldMAC, e.MAC)
	if e.Traceparent != "" {
		out = append(out, FieldTraceparent, e.Traceparent)
	}
	if e.Tracestate != "" {
		out = append(out, FieldTracestate, e.Tracestate)
	}
	return out
}

// LeafHash is the RFC 6962 leaf hash of an event: over its 16 id bytes and its payload.
func LeafHash(id uuid.UUID, payload []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write([]byte{0})
	h.Write(id[:])
	h.Write(payload)
	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}

// FieldError says which field of an entry cannot be read, and how: "missing",
// "invalid" or "too_long".
type FieldError struct {
	Field string
	Code  string
}

// Error implements error.
func (e *FieldError) Error() string { return "stream entry: field " + e.Field + " is " + e.Code }

// Parse reads an entry as the stream delivered it. It accepts only the one
// spelling that Fields writes, so the MAC covers what is read. Unknown fields are
// ignored. The error is a *FieldError; nothing of the entry may be used then.
func Parse(values map[string]any) (Entry, error) {
	p := parser{values: values}
	e := Entry{
		EventType:     p.text(FieldEventType, 128),
		Owner:         p.text(FieldOwner, 32),
		SchemaVersion: int32(p.number(FieldSchemaVersion, 1<<31-1)),
		LedgerID:      p.uuid(FieldLedgerID),
		Payload:       []byte(p.raw(FieldPayload)),
		KeyID:         p.text(FieldKeyID, 64),
		MAC:           []byte(p.raw(FieldMAC)),
		Traceparent:   p.optional(FieldTraceparent, 64),
		Tracestate:    p.optional(FieldTracestate, 512),
	}
	if e.IsCheckpoint() {
		p.absent(FieldEventID)
		p.absent(FieldLedgerSeq)
	} else {
		e.EventID = p.uuid(FieldEventID)
		e.LedgerSeq = p.number(FieldLedgerSeq, 1<<63-1)
	}
	if p.err != nil {
		return Entry{}, p.err
	}
	return e, nil
}

// parser keeps the first fault.
type parser struct {
	values map[string]any
	err    error
}

func (p *parser) fail(field, code string) {
	if p.err == nil {
		p.err = &FieldError{Field: field, Code: code}
	}
}

func (p *parser) raw(field string) string {
	s, ok := p.values[field].(string)
	if !ok || s == "" {
		p.fail(field, "missing")
	}
	return s
}

func (p *parser) text(field string, limit int) string {
	s := p.raw(field)
	switch {
	case len(s) > limit:
		p.fail(field, "too_long")
	case !utf8.ValidString(s):
		p.fail(field, "invalid")
	}
	return s
}

// optional drops what cannot be used: trace context is never worth an event.
func (p *parser) optional(field string, limit int) string {
	s, _ := p.values[field].(string)
	if len(s) > limit || !printableASCII(s) {
		return ""
	}
	return s
}

func (p *parser) absent(field string) {
	if _, ok := p.values[field]; ok {
		p.fail(field, "invalid")
	}
}

func (p *parser) number(field string, most int64) int64 {
	s := p.raw(field)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > most || strconv.FormatInt(n, 10) != s {
		p.fail(field, "invalid")
	}
	return n
}

func (p *parser) uuid(field string) uuid.UUID {
	s := p.raw(field)
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s || id == uuid.Nil {
		p.fail(field, "invalid")
	}
	return id
}

func printableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
