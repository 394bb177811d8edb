// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package pagetoken

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/config"
)

type cursor struct {
	After string `json:"a"`
	N     int64  `json:"n"`
}

const (
	secret = config.Secret("0123456789abcdef")
	other  = config.Secret("another secret of enough bytes")
)

func codec(t testing.TB, current config.Secret, previous ...config.Secret) *Codec {
	t.Helper()
	c, err := New(current, previous...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTokenComesBackAsItWas(t *testing.T) {
	t.Parallel()
	c := codec(t, secret)
	b := Binding{Method: "/x/List", Parent: "projects/1", Filter: `a = "é"`, OrderBy: "time desc"}
	want := cursor{After: "0190\x00é", N: math.MaxInt64}
	token, err := c.Seal(b, want)
	if err != nil {
		t.Fatal(err)
	}
	var got cursor
	more, err := c.Open(b, token, &got)
	if err != nil || !more || got != want {
		t.Errorf("got %+v, %t, %v", got, more, err)
	}
	if strings.Contains(token, "0190") {
		t.Error("the token can be read")
	}
	again, _ := c.Seal(b, want)
	if again == token {
		t.Error("equal positions give equal tokens: the nonce repeats")
	}
}

func TestEmptyTokenIsTheFirstPage(t *testing.T) {
	t.Parallel()
	got := cursor{After: "kept"}
	if more, err := codec(t, secret).Open(Binding{}, "", &got); more || err != nil || got.After != "kept" {
		t.Errorf("got %+v, %t, %v", got, more, err)
	}
}

func TestTokenIsRefused(t *testing.T) {
	t.Parallel()
	bound := Binding{Method: "/x/List", Parent: "p", Filter: "f", OrderBy: "o"}
	good, err := codec(t, secret).Seal(bound, cursor{After: "x"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := codec(t, secret).Seal(bound, "no struct")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := codec(t, other).Seal(bound, cursor{After: "x"})
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*Binding)) Binding { b := bound; change(&b); return b }
	for name, tc := range map[string]struct {
		binding Binding
		token   string
	}{
		"another method":         {with(func(b *Binding) { b.Method = "/x/Export" }), good},
		"another parent":         {with(func(b *Binding) { b.Parent = "q" }), good},
		"another filter":         {with(func(b *Binding) { b.Filter = "" }), good},
		"another order":          {with(func(b *Binding) { b.OrderBy = "o desc" }), good},
		"a shifted boundary":     {with(func(b *Binding) { b.Parent, b.Filter = "", "pf" }), good},
		"one character changed":  {bound, flip(good)},
		"cut":                    {bound, good[:len(good)-3]},
		"longer":                 {bound, good + "AAAA"},
		"not base64":             {bound, "%%%"},
		"padded":                 {bound, good + "="},
		"very short":             {bound, "A"},
		"very long":              {bound, strings.Repeat("A", maxToken+1)},
		"under another secret":   {bound, foreign},
		"of an older shape":      {bound, text},
		"a position in the open": {bound, "eyJhIjoieCJ9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got cursor
			more, err := codec(t, secret).Open(tc.binding, tc.token, &got)
			if more || got != (cursor{}) {
				t.Errorf("accepted: %+v", got)
			}
			var e *apperr.Error
			if !errors.As(err, &e) || e.Kind != apperr.KindInvalidArgument || len(e.Violations) != 1 || e.Violations[0].Field != "page_token" {
				t.Errorf("got %v, want InvalidArgument on page_token", err)
			}
		})
	}
}

// No choice of field contents makes two questions look alike, not even one that imitates a separator.
func TestBindingsDoNotCollide(t *testing.T) {
	t.Parallel()
	z := strings.Repeat("\x00", 8)
	bindings := []Binding{
		{Parent: "p", Filter: "f", OrderBy: "o" + z + "q"},
		{Parent: "p" + z + "f", Filter: "o", OrderBy: "q"},
		{Parent: "pf"},
		{Parent: "p", Filter: "f"},
		{Filter: "pf"},
		{OrderBy: "pf"},
		{Method: "pf"},
		{},
	}
	seen := map[string]Binding{}
	for _, b := range bindings {
		if other, dup := seen[string(b.hash())]; dup {
			t.Errorf("%+q and %+q have one hash", b, other)
		}
		seen[string(b.hash())] = b
	}
}

// flip changes one character in the middle.
func flip(token string) string {
	b := []byte(token)
	i := len(b) / 2
	if b[i] == 'A' {
		b[i] = 'B'
	} else {
		b[i] = 'A'
	}
	return string(b)
}

func TestPreviousSecretStillOpens(t *testing.T) {
	t.Parallel()
	token, err := codec(t, other).Seal(Binding{}, cursor{N: 4})
	if err != nil {
		t.Fatal(err)
	}
	var got cursor
	if more, err := codec(t, secret, other).Open(Binding{}, token, &got); err != nil || !more || got.N != 4 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestShortSecretIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := New("short"); err == nil {
		t.Error("accepted")
	}
	if _, err := New(secret, ""); err == nil {
		t.Error("accepted an empty previous secret")
	}
}

func TestSealReportsWhatCannotBeAToken(t *testing.T) {
	t.Parallel()
	c := codec(t, secret)
	if _, err := c.Seal(Binding{}, func() {}); err == nil {
		t.Error("a function was sealed")
	}
	if _, err := c.Seal(Binding{}, strings.Repeat("x", maxToken)); err == nil {
		t.Error("a token was made that Open would refuse")
	}
}

func TestPageSize(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		requested int32
		want      int
		bad       bool
	}{{0, 50, false}, {1, 1, false}, {1000, 1000, false}, {1001, 1000, false}, {math.MaxInt32, 1000, false}, {-1, 0, true}, {math.MinInt32, 0, true}} {
		got, err := PageSize(tc.requested, 50, 1000)
		if got != tc.want || (err != nil) != tc.bad || tc.bad && apperr.KindOf(err) != apperr.KindInvalidArgument {
			t.Errorf("PageSize(%d) = %d, %v", tc.requested, got, err)
		}
	}
}

// FuzzOpen: whatever a caller sends, what is accepted is a position that was sealed under the secret, and nothing panics.
func FuzzOpen(f *testing.F) {
	c := codec(f, secret)
	b := Binding{Filter: "f"}
	sealed := cursor{After: "x", N: 7}
	token, err := c.Seal(b, sealed)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{"", "A", token, flip(token), token + "=", "\n" + token, strings.ToUpper(token)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		var got cursor
		more, err := c.Open(b, sent, &got)
		switch {
		case sent == "":
			if more || err != nil {
				t.Errorf("empty token: %t, %v", more, err)
			}
		case more:
			if err != nil || got != sealed {
				t.Errorf("%q was accepted as %+v, %v", sent, got, err)
			}
		case apperr.KindOf(err) != apperr.KindInvalidArgument || got != (cursor{}):
			t.Errorf("%q: %+v, %v", sent, got, err)
		}
	})
}
