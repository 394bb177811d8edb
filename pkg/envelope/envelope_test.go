// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package envelope_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/counterfoil/counterfoil/pkg/envelope"
)

func entry() envelope.Entry {
	return envelope.Entry{
		EventID: uuid.MustParse("01939f6e-5c1a-7c1e-9c1e-0123456789ab"), EventType: "auth.user.registered.v1", Owner: "auth",
		SchemaVersion: 1, LedgerID: uuid.MustParse("6f1c2a7e-0b3d-4a55-8f6e-0123456789ab"), LedgerSeq: 58,
		Payload: []byte("payload\x00\xff"), Traceparent: "00-" + strings.Repeat("ab", 16) + "-" + strings.Repeat("cd", 8) + "-01",
	}
}

func ring(t testing.TB, ids ...string) *envelope.Keyring {
	t.Helper()
	keys := make([]envelope.Key, len(ids))
	for i, id := range ids {
		keys[i] = envelope.Key{ID: id, Secret: bytes.Repeat([]byte(id[:1]), 32)}
	}
	r, err := envelope.NewKeyring(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// asRead returns fields as a stream reader sees them.
func asRead(fields []any) map[string]any {
	out := map[string]any{}
	for i := 0; i < len(fields); i += 2 {
		if b, ok := fields[i+1].([]byte); ok {
			out[fields[i].(string)] = string(b)
			continue
		}
		out[fields[i].(string)] = fields[i+1]
	}
	return out
}

func TestAnEntryComesBackAsItWasSigned(t *testing.T) {
	t.Parallel()
	keys := ring(t, "a")
	for name, want := range map[string]envelope.Entry{
		"an event":     entry(),
		"a checkpoint": {EventType: envelope.CheckpointType, Owner: "auth", SchemaVersion: 1, LedgerID: entry().LedgerID, Payload: []byte("c")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys.Sign(&want, envelope.ToAdmin)
			got, err := envelope.Parse(asRead(want.Fields()))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
			if err := keys.Verify(&got, envelope.ToAdmin); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestTheMACCoversEveryFieldButTheTraceContext(t *testing.T) {
	t.Parallel()
	keys := ring(t, "a", "b")
	for name, c := range map[string]struct {
		change func(*envelope.Entry)
		want   error
	}{
		"event id":       {func(e *envelope.Entry) { e.EventID[0]++ }, envelope.ErrBadMAC},
		"event type":     {func(e *envelope.Entry) { e.EventType += "0" }, envelope.ErrBadMAC},
		"owner":          {func(e *envelope.Entry) { e.Owner = "app" }, envelope.ErrBadMAC},
		"schema version": {func(e *envelope.Entry) { e.SchemaVersion++ }, envelope.ErrBadMAC},
		"ledger":         {func(e *envelope.Entry) { e.LedgerID[0]++ }, envelope.ErrBadMAC},
		"number":         {func(e *envelope.Entry) { e.LedgerSeq++ }, envelope.ErrBadMAC},
		"payload":        {func(e *envelope.Entry) { e.Payload = append(e.Payload, 0) }, envelope.ErrBadMAC},
		"another key":    {func(e *envelope.Entry) { e.KeyID = "b" }, envelope.ErrBadMAC},
		"no such key":    {func(e *envelope.Entry) { e.KeyID = "z" }, envelope.ErrUnknownKey},
		"a shorter mac":  {func(e *envelope.Entry) { e.MAC = e.MAC[:31] }, envelope.ErrBadMAC},
		"traceparent":    {func(e *envelope.Entry) { e.Traceparent = "" }, nil},
		"tracestate":     {func(e *envelope.Entry) { e.Tracestate = "x=y" }, nil},
		// Bytes moved over a field's edge leave the concatenation as it was.
		"a moved edge": {func(e *envelope.Entry) {
			e.EventType, e.Owner = e.EventType+e.Owner[:1], e.Owner[1:]
		}, envelope.ErrBadMAC},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := entry()
			keys.Sign(&e, envelope.ToAdmin)
			c.change(&e)
			if err := keys.Verify(&e, envelope.ToAdmin); !errors.Is(err, c.want) {
				t.Fatalf("Verify = %v, want %v", err, c.want)
			}
		})
	}
}

func TestAnEntryIsNoReceipt(t *testing.T) {
	t.Parallel()
	keys, e := ring(t, "a"), entry()
	keys.Sign(&e, envelope.ToAdmin)
	if err := keys.Verify(&e, envelope.ToOwner); !errors.Is(err, envelope.ErrBadMAC) {
		t.Fatalf("Verify = %v", err)
	}
}

func TestTwoKeysOverlapWhileOneReplacesTheOther(t *testing.T) {
	t.Parallel()
	e := entry()
	ring(t, "old").Sign(&e, envelope.ToAdmin)
	if err := ring(t, "new", "old").Verify(&e, envelope.ToAdmin); err != nil {
		t.Fatal(err)
	}
	ring(t, "new", "old").Sign(&e, envelope.ToAdmin)
	if e.KeyID != "new" {
		t.Fatalf("signed by %q, want the first key", e.KeyID)
	}
}

func TestParseNamesTheFieldThatCannotBeRead(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 129)
	for name, c := range map[string]struct {
		change func(map[string]any)
		field  string
		code   string
	}{
		"no fields at all":       {func(m map[string]any) { clear(m) }, "event_type", "missing"},
		"no event id":            {func(m map[string]any) { delete(m, "event_id") }, "event_id", "missing"},
		"a blank event id":       {func(m map[string]any) { m["event_id"] = "" }, "event_id", "missing"},
		"a spaced event id":      {func(m map[string]any) { m["event_id"] = " " }, "event_id", "invalid"},
		"an over-long event id":  {func(m map[string]any) { m["event_id"] = long }, "event_id", "invalid"},
		"an id in upper case":    {func(m map[string]any) { m["event_id"] = strings.ToUpper(m["event_id"].(string)) }, "event_id", "invalid"},
		"the zero id":            {func(m map[string]any) { m["event_id"] = uuid.Nil.String() }, "event_id", "invalid"},
		"no type":                {func(m map[string]any) { delete(m, "event_type") }, "event_type", "missing"},
		"an over-long type":      {func(m map[string]any) { m["event_type"] = long }, "event_type", "too_long"},
		"a type in broken UTF-8": {func(m map[string]any) { m["event_type"] = "a\xc5z" }, "event_type", "invalid"},
		"no number":              {func(m map[string]any) { delete(m, "ledger_seq") }, "ledger_seq", "missing"},
		"a number of zero":       {func(m map[string]any) { m["ledger_seq"] = "0" }, "ledger_seq", "invalid"},
		"a number with a plus":   {func(m map[string]any) { m["ledger_seq"] = "+1" }, "ledger_seq", "invalid"},
		"a number too far":       {func(m map[string]any) { m["ledger_seq"] = "9223372036854775808" }, "ledger_seq", "invalid"},
		"a version too far":      {func(m map[string]any) { m["schema_version"] = "2147483648" }, "schema_version", "invalid"},
		"no payload":             {func(m map[string]any) { m["payload"] = "" }, "payload", "missing"},
		"no mac":                 {func(m map[string]any) { delete(m, "mac") }, "mac", "missing"},
		"no key id":              {func(m map[string]any) { delete(m, "key_id") }, "key_id", "missing"},
		"a checkpoint with an id": {func(m map[string]any) {
			m["event_type"] = envelope.CheckpointType
		}, "event_id", "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := entry()
			ring(t, "a").Sign(&e, envelope.ToAdmin)
			m := asRead(e.Fields())
			c.change(m)
			_, err := envelope.Parse(m)
			var field *envelope.FieldError
			if !errors.As(err, &field) || field.Field != c.field || field.Code != c.code {
				t.Fatalf("Parse = %v, want %s of %s", err, c.code, c.field)
			}
		})
	}
}

func TestAnUnreadableTraceIsDroppedAndNotTheEvent(t *testing.T) {
	t.Parallel()
	e := entry()
	ring(t, "a").Sign(&e, envelope.ToAdmin)
	m := asRead(e.Fields())
	m["traceparent"], m["tracestate"] = "\x00", strings.Repeat("x", 513)
	got, err := envelope.Parse(m)
	if err != nil || got.Traceparent != "" || got.Tracestate != "" {
		t.Fatalf("Parse = %+v, %v", got, err)
	}
}

func TestKeyringRefusesWhatCannotProtect(t *testing.T) {
	t.Parallel()
	good := "a:" + strings.Repeat("ab", 32)
	for name, s := range map[string]string{
		"nothing": "", "no id": ":" + strings.Repeat("ab", 32), "no secret": "a", "a short secret": "a:abcd",
		"no hex": "a:zz", "one id twice": good + "," + good,
	} {
		if _, err := envelope.ParseKeyring(s); err == nil {
			t.Errorf("%s: ParseKeyring passed", name)
		} else if strings.Contains(err.Error(), "abab") {
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
	if _, err := envelope.ParseKeyring(good + ", b:" + strings.Repeat("cd", 32)); err != nil {
		t.Error(err)
	}
}

func TestAKeyIsNotPrinted(t *testing.T) {
	t.Parallel()
	k := envelope.Key{ID: "a", Secret: []byte("canary")}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if s := fmt.Sprintf(verb, k); strings.Contains(s, "canary") || strings.Contains(s, hex.EncodeToString(k.Secret)) {
			t.Errorf("%s prints %s", verb, s)
		}
	}
}

// RFC 6962 §2.1: the hash of a leaf is over 0x00 and the leaf. The wanted value is
// that of sha256sum over 17 zero bytes.
func TestLeafHash(t *testing.T) {
	t.Parallel()
	got := envelope.LeafHash(uuid.UUID{}, nil)
	if want := "0a88111852095cae045340ea1f0b279944b2a756a213d9b50107d7489771e159"; hex.EncodeToString(got[:]) != want {
		t.Fatalf("LeafHash = %x, want %s", got, want)
	}
	if got == envelope.LeafHash(uuid.UUID{1}, nil) || got == envelope.LeafHash(uuid.UUID{}, []byte{0}) {
		t.Fatal("the id or the payload does not count")
	}
}

func FuzzParse(f *testing.F) {
	e := entry()
	ring(f, "a").Sign(&e, envelope.ToAdmin)
	m := asRead(e.Fields())
	f.Add(m["event_id"].(string), m["event_type"].(string), m["ledger_seq"].(string), m["payload"].(string), m["mac"].(string))
	f.Add("", "counterfoil.audit.v1.Checkpoint", "", "x", "y")
	keys := ring(f, "a")
	f.Fuzz(func(t *testing.T, id, typ, seq, payload, mac string) {
		m := asRead(e.Fields())
		m["event_id"], m["event_type"], m["ledger_seq"], m["payload"], m["mac"] = id, typ, seq, payload, mac
		got, err := envelope.Parse(m)
		if err != nil {
			return
		}
		// What parses is spelt in the one way that is signed.
		again := asRead(got.Fields())
		if again["event_id"] != m["event_id"] || again["ledger_seq"] != m["ledger_seq"] || again["payload"] != payload {
			t.Fatalf("%v parses and is written as %v", m, again)
		}
		if keys.Verify(&got, envelope.ToAdmin) == nil && !bytes.Equal(got.Payload, e.Payload) {
			t.Fatal("another payload is authentic")
		}
	})
}
