// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"crypto/sha256"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Reasons for which an entry is not taken over as an event. FORGED:
const (
	ReasonFieldMissing = "field.missing"
	ReasonFieldInvalid = "field.invalid"
	ReasonFieldTooLong = "field.too_long"
	ReasonMACMissing   = "mac.missing"
	ReasonMACMismatch  = "mac.mismatch"
	ReasonKeyUnknown   = "mac.unknown_key"
	ReasonWrongStream  = "wrong_stream" // the entry names another owner than the stream's
)

// PARKED:
const (
	ReasonTooLarge       = "payload.too_large"
	ReasonUndecodable    = "payload.undecodable"
	ReasonInvalid        = "payload.invalid" // it breaks a rule of the contract
	ReasonIDMismatch     = "id.mismatch"     // audit id and event id differ
	ReasonOuterMismatch  = "outer.mismatch"  // type, owner or schema version differ from the payload's
	ReasonTypeUnknown    = "type.unknown"
	ReasonVersionUnknown = "schema_version.unsupported"
)

// CONFLICT. Receipts name these codes:
const (
	ReasonNumberHeld    = "inbox.number_held"    // its number is held by another event
	ReasonIDHeld        = "inbox.id_held"        // its id is held with other bytes
	ReasonLedgerForeign = "inbox.ledger_foreign" // its ledger is another owner's
)

// verdict is what an entry turned out to be.
type verdict int

const (
	isEvent verdict = iota // authentic; usable unless reason is set
	isForged
	isCheckpoint
	// The following are decided against what is held.
	isDuplicate
	isRenumbered
	isConflict
)

// checked is an entry with its verdict.
type checked struct {
	entryID string
	values  map[string]any
	env     envelope.Entry
	leaf    [sha256.Size]byte
	verdict verdict
	// reason is why it is forged, in conflict, or, for an event, not usable; empty if it is usable.
	reason string
}

// check says what an entry is by itself. Nothing is looked up.
func (b *Bridge) check(e Entry) checked {
	c := checked{entryID: e.ID, values: e.Values}
	env, err := envelope.Parse(e.Values)
	if err != nil {
		c.verdict, c.reason = isForged, fieldReason(err)
		return c
	}
	if env.Owner != b.o.Owner {
		c.verdict, c.reason = isForged, ReasonWrongStream
		return c
	}
	switch err := b.o.Keys.Verify(&env, envelope.ToAdmin); {
	case errors.Is(err, envelope.ErrUnknownKey):
		c.verdict, c.reason = isForged, ReasonKeyUnknown
		return c
	case err != nil:
		c.verdict, c.reason = isForged, ReasonMACMismatch
		return c
	}
	c.env = env
	if env.IsCheckpoint() {
		c.verdict = isCheckpoint
		return c
	}
	c.leaf = envelope.LeafHash(env.EventID, env.Payload)
	c.reason = b.o.Catalog.unusable(&env)
	return c
}

func fieldReason(err error) string {
	var f *envelope.FieldError
	switch {
	case !errors.As(err, &f):
		return ReasonFieldInvalid
	case f.Field == envelope.FieldMAC && f.Code == "missing":
		return ReasonMACMissing
	case f.Code == "missing":
		return ReasonFieldMissing
	case f.Code == "too_long":
		return ReasonFieldTooLong
	}
	return ReasonFieldInvalid
}

// unusable returns why an authentic event cannot be used here, or "". An event of a type or version
// that this release does not know is not judged by this release's rules.
func (c Catalog) unusable(env *envelope.Entry) string {
	if len(env.Payload) > audit.MaxPayload {
		return ReasonTooLarge
	}
	var e auditv1.AuditEvent
	if err := proto.Unmarshal(env.Payload, &e); err != nil {
		return ReasonUndecodable
	}
	switch {
	case e.GetAuditId() != env.EventID.String():
		return ReasonIDMismatch
	case e.GetEventType() != env.EventType, e.GetOwner() != env.Owner, e.GetSchemaVersion() != env.SchemaVersion:
		return ReasonOuterMismatch
	case !c.known(env.Owner, env.EventType, env.SchemaVersion):
		if env.SchemaVersion > 1 && c.known(env.Owner, env.EventType, 1) {
			return ReasonVersionUnknown
		}
		return ReasonTypeUnknown
	}
	if err := audit.Check(&e); err != nil {
		return ReasonInvalid
	}
	return ""
}

// numbered is a place in a ledger.
type numbered struct {
	ledger uuid.UUID
	seq    int64
}

// held is what is on record of an event.
type held struct {
	event uuid.UUID
	leaf  [sha256.Size]byte
	owner string
}

// record is what is on record of a page's numbers and events, from the database and then from the
// page itself: copies of one id within a page are compared here, since ON CONFLICT would silently
// drop the second, different one.
type record struct {
	byNumber map[numbered]held
	byEvent  map[uuid.UUID]held
	foreign  map[uuid.UUID]bool // ledgers of another owner
	at       time.Time          // when that was read, by the database's clock; for a page that may be copied in
}

// decide fixes the verdict of every authentic event of the page, in stream order.
func (r record) decide(owner string, page []checked) {
	for i := range page {
		c := &page[i]
		if c.verdict != isEvent {
			continue
		}
		mine := held{event: c.env.EventID, leaf: c.leaf, owner: owner}
		at := numbered{c.env.LedgerID, c.env.LedgerSeq}
		if r.foreign[at.ledger] {
			c.verdict, c.reason = isConflict, ReasonLedgerForeign
			continue
		}
		if is, ok := r.byNumber[at]; ok {
			c.verdict = isDuplicate
			if is != mine {
				c.verdict, c.reason = isConflict, ReasonNumberHeld
			}
			continue
		}
		if is, ok := r.byEvent[mine.event]; ok {
			if is != mine {
				c.verdict, c.reason = isConflict, ReasonIDHeld
				continue
			}
			c.verdict = isRenumbered
		}
		r.byNumber[at], r.byEvent[mine.event] = mine, mine
	}
}

// claimedText cuts a text that nobody vouches for to what a column can hold.
func claimedText(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}
