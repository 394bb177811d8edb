// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// bench is a signer and a verifier that share a clock and a JWKS file.
type bench struct {
	clock    *clock
	keyPath  string
	jwksPath string
	keys     []Key
	signer   *Signer
	verifier *Verifier
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{clock: newClock(), keyPath: filepath.Join(t.TempDir(), "key"), jwksPath: filepath.Join(t.TempDir(), "jwks.json")}
	b.reload(t)
	b.publish(t)
	var err error
	if b.verifier, err = NewVerifier(VerifierConfig{Path: b.jwksPath, Now: b.clock.now}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) reload(t testing.TB) {
	t.Helper()
	var err error
	if b.keys, err = LoadOrCreateKey(b.keyPath); err != nil {
		t.Fatal(err)
	}
	if b.signer, err = NewSigner(SignerConfig{Keys: b.keys, Now: b.clock.now}); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) publish(t testing.TB) {
	t.Helper()
	if err := b.signer.WriteJWKS(b.jwksPath); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) sign(t testing.TB, p Principal) string {
	t.Helper()
	token, _, err := b.signer.Sign(p)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func alice() Principal {
	return Principal{UserID: "u-1", SessionID: "s-1", DisplayName: "Alice É.", Roles: []string{"auditor"}}
}

func TestTokenStatesThePrincipal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	token, expires, err := b.signer.Sign(alice())
	if err != nil || !expires.Equal(b.clock.now().Add(defaultTTL)) {
		t.Fatalf("expires %s, %v", expires, err)
	}
	got, err := b.verifier.Verify(token)
	if diff := cmp.Diff(alice(), got); diff != "" || err != nil {
		t.Errorf("%s %v", diff, err)
	}
	if b.sign(t, alice()) == token {
		t.Error("two tokens are equal: the jti repeats")
	}
}

func TestTokenExpiresWithinTheLeeway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	token := b.sign(t, alice())
	b.clock.add(defaultTTL + MaxLeeway - time.Second)
	if _, err := b.verifier.Verify(token); err != nil {
		t.Errorf("within the leeway: %v", err)
	}
	b.clock.add(2 * time.Second)
	_, err := b.verifier.Verify(token)
	if apperr.ReasonOf(err) != "TOKEN_EXPIRED" || apperr.KindOf(err) != apperr.KindUnauthenticated {
		t.Errorf("after it: %v", err)
	}
	b.clock.add(-defaultTTL - 2*MaxLeeway - 10*time.Second)
	if _, err := b.verifier.Verify(token); apperr.ReasonOf(err) != "TOKEN_INVALID" {
		t.Errorf("from the future: %v", err)
	}
}

func TestVerifyRefusesForgeries(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	stranger := newBench(t)
	good := claims{RegisteredClaims: jwt.RegisteredClaims{
		Issuer: Issuer, Audience: jwt.ClaimStrings{Audience}, Subject: "u-1", ID: "j",
		IssuedAt: jwt.NewNumericDate(b.clock.now()), ExpiresAt: jwt.NewNumericDate(b.clock.now().Add(time.Minute)),
	}}
	forge := func(method jwt.SigningMethod, key any, header map[string]any, change func(*claims)) string {
		c := good
		change(&c)
		unsigned := jwt.NewWithClaims(method, c)
		unsigned.Header["kid"], unsigned.Header["typ"] = b.keys[0].ID, tokenType
		maps.Copy(unsigned.Header, header)
		token, err := unsigned.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	keep := func(*claims) {}
	own := b.keys[0].Private
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.verifier.Verify(forge(jwt.SigningMethodEdDSA, own, nil, keep)); err != nil {
		t.Fatalf("the good one is refused: %v", err)
	}
	valid := forge(jwt.SigningMethodEdDSA, own, nil, keep)
	parts := strings.Split(valid, ".")
	for name, token := range map[string]string{
		"alg none":               forge(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil, keep),
		"public key as HMAC key": forge(jwt.SigningMethodHS256, []byte(own.Public().(ed25519.PublicKey)), nil, keep),
		"RSA":                    forge(jwt.SigningMethodRS256, rsaKey, nil, keep),
		"another's key":          forge(jwt.SigningMethodEdDSA, stranger.keys[0].Private, nil, keep),
		"another's key and kid":  forge(jwt.SigningMethodEdDSA, stranger.keys[0].Private, map[string]any{"kid": stranger.keys[0].ID}, keep),
		"no kid":                 forge(jwt.SigningMethodEdDSA, own, map[string]any{"kid": nil}, keep),
		"kid of another type":    forge(jwt.SigningMethodEdDSA, own, map[string]any{"kid": 3}, keep),
		"another typ":            forge(jwt.SigningMethodEdDSA, own, map[string]any{"typ": "JWT"}, keep),
		"another issuer":         forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) { c.Issuer = "x" }),
		"another audience":       forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) { c.Audience = jwt.ClaimStrings{"x"} }),
		"no subject":             forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) { c.Subject = "" }),
		"no id":                  forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) { c.ID = "" }),
		"no expiry":              forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) { c.ExpiresAt = nil }),
		"no issue time":          forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) { c.IssuedAt = nil }),
		"a year long": forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) {
			c.ExpiresAt = jwt.NewNumericDate(b.clock.now().AddDate(1, 0, 0))
		}),
		"not yet": forge(jwt.SigningMethodEdDSA, own, nil, func(c *claims) { c.NotBefore = jwt.NewNumericDate(b.clock.now().Add(time.Minute)) }),
		"other claims under the signature": parts[0] + "." +
			base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"root"}`)) + "." + parts[2],
		"no signature": parts[0] + "." + parts[1] + ".",
		"empty":        "",
		"rubbish":      "a.b.c",
		"huge":         strings.Repeat("a", maxToken+1),
	} {
		p, err := b.verifier.Verify(token)
		if apperr.ReasonOf(err) != "TOKEN_INVALID" || apperr.KindOf(err) != apperr.KindUnauthenticated || !cmp.Equal(p, Principal{}) {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
}

func TestVerifierFollowsTheFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old := b.sign(t, alice())
	if _, err := b.verifier.Verify(old); err != nil {
		t.Fatal(err)
	}
	if _, err := AddKey(b.keyPath); err != nil {
		t.Fatal(err)
	}
	b.reload(t)
	young := b.sign(t, alice())
	if _, err := b.verifier.Verify(young); apperr.ReasonOf(err) != "TOKEN_INVALID" {
		t.Fatalf("before publication: %v", err)
	}
	b.publish(t)
	b.clock.add(rereadEvery)
	for name, token := range map[string]string{"old": old, "young": young} {
		if _, err := b.verifier.Verify(token); err != nil {
			t.Errorf("%s key after publication: %v", name, err)
		}
	}
	retired, err := NewSigner(SignerConfig{Keys: b.keys[1:], Now: b.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	if err := retired.WriteJWKS(b.jwksPath); err != nil {
		t.Fatal(err)
	}
	b.clock.add(rereadEvery)
	if _, err := b.verifier.Verify(old); apperr.ReasonOf(err) != "TOKEN_INVALID" {
		t.Errorf("a key that was taken out still verifies: %v", err)
	}
}

func TestVerifierReadsAnUnknownKeyAtOnceButNotTooOften(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rotate := func() string {
		if _, err := AddKey(b.keyPath); err != nil {
			t.Fatal(err)
		}
		b.reload(t)
		b.publish(t)
		return b.sign(t, alice())
	}
	if _, err := b.verifier.Verify(b.sign(t, alice())); err != nil { // the file was just looked at
		t.Fatal(err)
	}
	if _, err := b.verifier.Verify(rotate()); err != nil {
		t.Errorf("a fresh key is not found at once: %v", err)
	}
	// Strangers choose the kid: they must not choose how often the disk is read.
	again := rotate()
	if _, err := b.verifier.Verify(again); apperr.ReasonOf(err) != "TOKEN_INVALID" {
		t.Errorf("the file is read for each unknown kid: %v", err)
	}
	b.clock.add(rereadEvery)
	if _, err := b.verifier.Verify(again); err != nil {
		t.Errorf("after a while: %v", err)
	}
}

func TestVerifierWaitsForItsFile(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	token := b.sign(t, alice())
	content, err := os.ReadFile(b.jwksPath)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "later.json")
	v, err := NewVerifier(VerifierConfig{Path: path, Now: b.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	if v.Ready(t.Context()) == nil {
		t.Error("ready without keys")
	}
	if _, err := v.Verify(token); apperr.KindOf(err) != apperr.KindUnavailable || apperr.ReasonOf(err) != "TOKEN_KEYS_UNAVAILABLE" {
		t.Errorf("without keys: %v", err)
	}
	write := func(content []byte) {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		b.clock.add(rereadEvery)
	}
	write(content)
	if _, err := v.Verify(token); err != nil || v.Ready(t.Context()) != nil {
		t.Errorf("with keys: %v", err)
	}
	// A file that breaks or vanishes takes no key away.
	for name, broken := range map[string][]byte{"half": content[:10], "huge": append(content, make([]byte, maxJWKS)...), "empty": nil} {
		write(broken)
		if _, err := v.Verify(token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	b.clock.add(rereadEvery)
	if _, err := v.Verify(token); err != nil || v.Ready(t.Context()) != nil {
		t.Errorf("removed: %v", err)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, cfg := range map[string]SignerConfig{
		"no key": {}, "too long": {Keys: b.keys, TTL: MaxTTL + 1}, "too short": {Keys: b.keys, TTL: time.Millisecond},
	} {
		if _, err := NewSigner(cfg); err == nil {
			t.Errorf("signer, %s: accepted", name)
		}
	}
	for name, cfg := range map[string]VerifierConfig{
		"no path": {}, "large leeway": {Path: "x", Leeway: MaxLeeway + 1}, "negative leeway": {Path: "x", Leeway: -1},
	} {
		if _, err := NewVerifier(cfg); err == nil {
			t.Errorf("verifier, %s: accepted", name)
		}
	}
	if _, _, err := b.signer.Sign(Principal{}); err == nil {
		t.Error("a token for nobody was signed")
	}
	if _, _, err := b.signer.Sign(Principal{UserID: strings.Repeat("x", maxToken)}); err == nil {
		t.Error("a token was signed that no verifier reads")
	}
	if err := b.signer.WriteJWKS(filepath.Join(t.TempDir(), "no", "folder")); err == nil || errors.Is(err, os.ErrExist) {
		t.Errorf("got %v", err)
	}
}
