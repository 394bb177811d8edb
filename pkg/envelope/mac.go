// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package envelope

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Direction keeps an entry from being taken for a receipt, and the reverse.
type Direction string

// The two directions of an owner's link.
const (
	ToAdmin Direction = "counterfoil.v1/owner-to-admin"
	ToOwner Direction = "counterfoil.v1/admin-to-owner"
)

// minSecret is the least length of a MAC secret, in bytes: that of the hash (RFC 2104 §3).
const minSecret = sha256.Size

// Reasons for which Verify refuses an entry.
var (
	ErrUnknownKey = errors.New("stream entry: key_id names no key of this owner")
	ErrBadMAC     = errors.New("stream entry: the mac does not match")
)

// Key is a secret that one owner and the audit service share.
type Key struct {
	ID     string
	Secret []byte
}

// String hides the secret.
func (k Key) String() string { return k.ID + ":***" }

// GoString hides the secret.
func (k Key) GoString() string { return k.String() }

// Keyring holds an owner's keys: the first signs, all verify, so that two can
// overlap while one replaces the other. It is safe for concurrent use.
type Keyring struct {
	signs Key
	byID  map[string]Key
}

// NewKeyring returns a ring in which the first key signs. It refuses an empty
// ring, two keys of one id, an empty id and a secret under 32 bytes.
func NewKeyring(keys ...Key) (*Keyring, error) {
	if len(keys) == 0 {
		return nil, errors.New("mac keys: at least one is needed, as id:hex")
	}
	ring := &Keyring{signs: keys[0], byID: make(map[string]Key, len(keys))}
	for _, k := range keys {
		if k.ID == "" || len(k.ID) > 64 {
			return nil, errors.New("mac keys: an id has 1 to 64 characters")
		}
		if len(k.Secret) < minSecret {
			return nil, fmt.Errorf("mac keys: the secret of %q has %d bytes, at least %d are needed", k.ID, len(k.Secret), minSecret)
		}
		if _, ok := ring.byID[k.ID]; ok {
			return nil, fmt.Errorf("mac keys: the id %q is there twice", k.ID)
		}
		ring.byID[k.ID] = k
	}
	return ring, nil
}

// ParseKeyring reads "id:hex[,id:hex…]". Errors name ids, never secrets.
func ParseKeyring(s string) (*Keyring, error) {
	var keys []Key
	for part := range strings.SplitSeq(s, ",") {
		id, secret, ok := strings.Cut(strings.TrimSpace(part), ":")
		if !ok {
			return nil, errors.New("mac keys: want id:hex[,id:hex]")
		}
		raw, err := hex.DecodeString(secret)
		if err != nil {
			return nil, fmt.Errorf("mac keys: the secret of %q is not hex", id)
		}
		keys = append(keys, Key{ID: id, Secret: raw})
	}
	return NewKeyring(keys...)
}

// Sign sets the entry's key id and MAC. Any change of another covered field
// afterwards makes the entry unauthentic.
func (r *Keyring) Sign(e *Entry, d Direction) {
	e.KeyID = r.signs.ID
	e.MAC = sum(r.signs, e, d)
}

// Verify reports whether e was signed by a key of this ring for this direction.
// The error is ErrUnknownKey or ErrBadMAC.
func (r *Keyring) Verify(e *Entry, d Direction) error {
	key, ok := r.byID[e.KeyID]
	if !ok {
		return ErrUnknownKey
	}
	if !hmac.Equal(e.MAC, sum(key, e, d)) {
		return ErrBadMAC
	}
	return nil
}

// sum is HMAC-SHA256 over the direction and every field but the trace context,
// each behind its length; an absent field is empty.
func sum(key Key, e *Entry, d Direction) []byte {
	h := hmac.New(sha256.New, key.Secret)
	id, seq := "", ""
	if e.EventID != uuid.Nil {
		id = e.EventID.String()
	}
	if e.LedgerSeq != 0 {
		seq = strconv.FormatInt(e.LedgerSeq, 10)
	}
	for _, s := range [...]string{
		string(d), id, e.EventType, e.Owner, strconv.FormatInt(int64(e.SchemaVersion), 10), e.LedgerID.String(), seq, e.KeyID,
	} {
		writeField(h, []byte(s))
	}
	writeField(h, e.Payload)
	return h.Sum(nil)
}

func writeField(h hash.Hash, b []byte) {
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(b)))
	h.Write(size[:])
	h.Write(b)
}
