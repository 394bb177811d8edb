// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"log/slog"
)

// Redacted returns the values of cfg by variable name, to be logged once at start. Secrets show as "***".
func Redacted(cfg any) slog.Value {
	entries, err := walk(cfg)
	if err != nil {
		return slog.StringValue("not a struct")
	}
	attrs := make([]slog.Attr, 0, len(entries))
	for _, e := range entries {
		if !e.value.CanInterface() {
			continue
		}
		attrs = append(attrs, slog.String(e.name, fmt.Sprint(e.value.Interface())))
	}
	return slog.GroupValue(attrs...)
}
