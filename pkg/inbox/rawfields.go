// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/counterfoil/counterfoil/pkg/audit"
)

// Raw fields of poison are kept up to maxRaw bytes. Parked ones are an event's only copy once its
// owner has been told that it was received, so whatever the contract allows fits.
const (
	maxRaw       = 1 << 20
	maxRawParked = audit.MaxPayload + 64<<10
)

// encodeFields writes fields in the order of their names, each name and value behind its length as
// four bytes, big-endian: one encoding for one set of fields, whatever order they came in.
func encodeFields(values map[string]any) []byte {
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	var out []byte
	for _, name := range names {
		out = appendBytes(out, name)
		out = appendBytes(out, fieldText(values[name]))
	}
	return out
}

func fieldText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case int64:
		return strconv.FormatInt(v, 10)
	}
	return fmt.Sprint(v)
}

func appendBytes(out []byte, s string) []byte {
	out = binary.BigEndian.AppendUint32(out, uint32(len(s)))
	return append(out, s...)
}

// DecodeFields reads [Poison.RawFields]: names and values as the entry had them. Where they were cut
// (RawSize is larger than their length) the last value is short.
func DecodeFields(raw []byte) (map[string][]byte, error) {
	out := map[string][]byte{}
	for len(raw) > 0 {
		name, rest, whole := cutBytes(raw)
		if !whole {
			return out, nil
		}
		value, rest, _ := cutBytes(rest)
		if _, ok := out[string(name)]; ok {
			return nil, errors.New("inbox: raw fields: a name is there twice")
		}
		out[string(name)] = value
		raw = rest
	}
	return out, nil
}

func cutBytes(b []byte) (value, rest []byte, whole bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := uint64(binary.BigEndian.Uint32(b))
	if uint64(len(b)-4) < n {
		return b[4:], nil, false
	}
	return b[4 : 4+n], b[4+n:], true
}

// poisoned is one distinct content on its way to inbox_poison.
type poisoned struct {
	hash        [sha256.Size]byte
	kind        PoisonKind
	reason      string
	first, last string // entry ids
	seen        int64
	raw         []byte
	size        int64
	of          *checked
}

// collectPoison returns the distinct poison of a page, in the order of its hash, which is the order
// in which rows are locked.
func collectPoison(page []checked) []poisoned {
	byHash := map[[sha256.Size]byte]*poisoned{}
	var out []*poisoned
	for i := range page {
		c := &page[i]
		kind, ok := c.poison()
		if !ok {
			continue
		}
		raw := encodeFields(c.values)
		hash := sha256.Sum256(raw)
		if p := byHash[hash]; p != nil {
			p.seen++
			p.last = c.entryID
			continue
		}
		p := &poisoned{hash: hash, kind: kind, reason: c.reason, first: c.entryID, last: c.entryID, seen: 1, size: int64(len(raw)), of: c}
		limit := maxRaw
		if kind == Parked {
			limit = maxRawParked
		}
		p.raw = raw[:min(len(raw), limit)]
		byHash[hash] = p
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *poisoned) int { return slices.Compare(a.hash[:], b.hash[:]) })
	values := make([]poisoned, len(out))
	for i, p := range out {
		values[i] = *p
	}
	return values
}

// poison says whether the entry goes to inbox_poison, and as what.
func (c *checked) poison() (PoisonKind, bool) {
	switch {
	case c.verdict == isForged:
		return Forged, true
	case c.verdict == isConflict:
		return Conflict, true
	case c.verdict == isEvent && c.reason != "":
		return Parked, true
	}
	return "", false
}
