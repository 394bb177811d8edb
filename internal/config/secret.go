// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package config

import "log/slog"

// redacted is what every printed form of a Secret shows.
const redacted = "***"

// Secret is a value that must not be printed: every form that fmt, encoding/json, encoding.TextMarshaler and slog make
// of it is "***", or empty when it is empty.
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

// GoString is String for %#v.
func (s Secret) GoString() string { return `"` + s.String() + `"` }

// MarshalText is String for encoders of text and JSON. There is no way back: a Secret does not unmarshal from JSON.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue is String for slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }
