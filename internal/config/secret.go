// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"log/slog"
)

// redacted is what every printed form of a Secret shows.
const redacted = "***"

// Secret is a value that must not be printed: every form that fmt, encoding/json, encoding.TextMarshaler and slog make
// of it is "***", or empty when it is empty, whatever the verb.
//
// Two forms are out of its reach, because Go calls no method there: fmt on a struct that holds it in an unexported field,
// and JSON with it as the key of a map.
type Secret string

// Reveal returns the value itself, for the one place that needs it.
func (s Secret) Reveal() string { return string(s) }

// String returns "***", or "" for an empty secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// Format is String for every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, s.String()) // fmt offers no way to report an error
}

// MarshalText is String for encoders of text and JSON. There is no way back: a Secret does not unmarshal from JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is String for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
