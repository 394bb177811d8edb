// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package audit says what an audit event must be to be recorded. The owner checks
// an event before it commits, the audit service before it uses one, and both ask
// this package, so that what one lets pass the other accepts.
//
// It does not decide what is worth recording, nor which values are secret: each
// service lists its events, and the fields that each may show, in its events.go.
package audit

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"

	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// Limits of one event.
const (
	// MaxPayload is the largest marshalled event, in bytes.
	MaxPayload = 1 << 20
	// MaxMetadataBytes is the most that keys and values of metadata take together.
	MaxMetadataBytes = 8192
	// MaxClockSkew is how far an id's time may lie from occur_time.
	MaxClockSkew = 24 * time.Hour
)

// Violation is one rule that an event breaks.
type Violation struct {
	Field string // path within the event: "actor.id", "metadata[\"token\"]"
	Rule  string // stable code: "metadata.refused_key", "string.max_len"
	Text  string // what to do about it
}

// InvalidError lists what keeps an event from being recorded. Its text names
// fields and rules and never repeats a value.
type InvalidError struct {
	EventType  string
	Violations []Violation
}

// Error implements error.
func (e *InvalidError) Error() string {
	parts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		parts[i] = v.Field + ": " + v.Text
	}
	return fmt.Sprintf("audit event %q is not valid: %s", e.EventType, strings.Join(parts, "; "))
}

// Plain returns text as a personal value in the open, or nil for empty text.
func Plain(text string) *auditv1.Personal {
	if text == "" {
		return nil
	}
	return &auditv1.Personal{Value: &auditv1.Personal_Plain{Plain: text}}
}

// validator compiles the contract's rules once, at first use.
var validator = sync.OnceValues(func() (protovalidate.Validator, error) {
	return protovalidate.New(protovalidate.WithMessages(&auditv1.AuditEvent{}), protovalidate.WithDisableLazy())
})

// Check returns an *InvalidError that lists every rule the event breaks: those of
// the contract, and those that a field alone cannot state. It changes nothing and
// is safe for concurrent use.
func Check(e *auditv1.AuditEvent) error {
	if e == nil {
		return errors.New("audit event is nil")
	}
	rules, err := validator()
	if err != nil {
		return fmt.Errorf("compile the rules of the audit contract: %w", err)
	}
	found := violations(rules.Validate(e))
	for _, check := range []func(*auditv1.AuditEvent) []Violation{checkTexts, checkID, checkNames, checkVersion, checkMetadata} {
		found = append(found, check(e)...)
	}
	if len(found) == 0 {
		return nil
	}
	return &InvalidError{EventType: printable(e.GetEventType()), Violations: found}
}

// violations turns the contract's own findings into ours.
func violations(err error) []Violation {
	if err == nil {
		return nil
	}
	var invalid *protovalidate.ValidationError
	if !errors.As(err, &invalid) {
		return []Violation{{Field: "event", Rule: "contract", Text: "cannot be checked against the contract"}}
	}
	out := make([]Violation, len(invalid.Violations))
	for i, v := range invalid.Violations {
		out[i] = Violation{
			Field: protovalidate.FieldPathString(v.Proto.GetField()),
			Rule:  v.Proto.GetRuleId(),
			Text:  v.Proto.GetMessage(),
		}
		if out[i].Text == "" {
			out[i].Text = "breaks the rule " + out[i].Rule
		}
	}
	return out
}

// checkID wants a UUIDv7 made within MaxClockSkew of the event (RFC 9562 §5.7).
// Readers page by id, so a clock that is years ahead would sit on top for ever.
func checkID(e *auditv1.AuditEvent) []Violation {
	id, err := uuid.Parse(e.GetAuditId())
	if err != nil {
		return nil // the contract's rule says so already
	}
	if id.Version() != 7 || id.String() != e.GetAuditId() {
		return []Violation{{"audit_id", "audit_id.uuidv7", "must be a UUIDv7 in lower case, made by uuid.NewV7"}}
	}
	if skew := idTime(id).Sub(e.GetOccurTime().AsTime()).Abs(); skew > MaxClockSkew {
		return []Violation{{"audit_id", "audit_id.clock", "its time lies over 24 h from occur_time: check the service's clock"}}
	}
	return nil
}

func idTime(id uuid.UUID) time.Time {
	var ms int64
	for _, b := range id[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms)
}

// checkNames ties the three names of an event together.
func checkNames(e *auditv1.AuditEvent) []Violation {
	var found []Violation
	if !strings.HasPrefix(e.GetEventType(), e.GetAction()+".v") {
		found = append(found, Violation{"event_type", "event_type.action", "must be the action followed by .v and a number"})
	}
	if !strings.HasPrefix(e.GetAction(), e.GetOwner()+".") {
		found = append(found, Violation{"action", "action.owner", "must begin with the owner's name and a dot"})
	}
	return found
}

// checkVersion wants a row's own id beside its version.
func checkVersion(e *auditv1.AuditEvent) []Violation {
	r := e.GetResource()
	if r.GetVersion() == 0 {
		return nil
	}
	if id, err := uuid.Parse(r.GetId()); err != nil || id.String() != r.GetId() {
		return []Violation{{"resource.id", "resource.id.uuid", "must be a UUID in lower case where resource.version is set"}}
	}
	return nil
}

// refusedFragments are parts of a metadata key that promise a secret. Keys are
// compared in lower case, letters and digits only.
var refusedFragments = []string{
	"accesstoken", "apikey", "authorization", "bearer", "connectionstring", "credential", "password",
	"privatekey", "refreshtoken", "secret", "socialsecurity", "ssn",
}

// checkMetadata keeps metadata within its budget and free of keys that promise a
// secret: it refuses rather than redacts, so the mistake is found where it is made.
func checkMetadata(e *auditv1.AuditEvent) []Violation {
	var found []Violation
	size := 0
	for key, value := range e.GetMetadata() {
		size += len(key) + len(value)
		if fragment := refusedFragment(key); fragment != "" {
			found = append(found, Violation{
				Field: fmt.Sprintf("metadata[%q]", printable(key)), Rule: "metadata.refused_key",
				Text: fmt.Sprintf("a key may not contain %q: record a code or a reference instead of a secret", fragment),
			})
		}
	}
	if size > MaxMetadataBytes {
		found = append(found, Violation{"metadata", "metadata.budget", fmt.Sprintf("takes %d bytes, at most %d are kept", size, MaxMetadataBytes)})
	}
	return found
}

func refusedFragment(key string) string {
	plain := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, key)
	for _, fragment := range refusedFragments {
		if strings.Contains(plain, fragment) {
			return fragment
		}
	}
	return ""
}

// printable cuts a name for use in an error text.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if utf8.RuneCountInString(s) > 64 {
		s = string([]rune(s)[:64]) + "…"
	}
	return s
}
