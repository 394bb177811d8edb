// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// rereadEvery is how often, at most, the key file is looked at; an unknown key id reads it no more often either.
const rereadEvery = time.Second

// VerifierConfig says which tokens are good.
type VerifierConfig struct {
	// Path is the JWKS file that Auth writes. It is read again when it changes.
	Path string
	// Issuer and Audience default to the constants of the same name.
	Issuer, Audience string
	// Leeway allows for clocks that differ; default and maximum 30 s.
	Leeway time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// Verifier checks access tokens offline against a JWKS file. It is safe for concurrent use and runs no goroutine.
type Verifier struct {
	cfg    VerifierConfig
	parser *jwt.Parser

	mu     sync.Mutex
	keys   map[string]ed25519.PublicKey
	stamp  stamp     // of the file that keys came from
	looked time.Time // when the file's stamp was last compared
	forced time.Time // when an unknown key id last read the file
	err    error     // why the last reading gave no keys
}

// stamp tells whether a file was replaced or written to.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func (s stamp) same(info os.FileInfo) bool {
	return s.info != nil && os.SameFile(s.info, info) && s.modified.Equal(info.ModTime()) && s.size == info.Size()
}

// NewVerifier checks cfg and reads the keys if the file is there. A file that is missing or unreadable now is not an
// error, because Auth may start later: Ready reports it, and Verify answers Unavailable until it appears.
func NewVerifier(cfg VerifierConfig) (*Verifier, error) {
	if cfg.Path == "" {
		return nil, errors.New("token verifier: no JWKS path")
	}
	if cfg.Leeway == 0 {
		cfg.Leeway = MaxLeeway
	}
	if cfg.Leeway < 0 || cfg.Leeway > MaxLeeway {
		return nil, fmt.Errorf("token verifier: leeway %s is not between 0 and %s", cfg.Leeway, MaxLeeway)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Issuer, cfg.Audience = orDefault(cfg.Issuer, Issuer), orDefault(cfg.Audience, Audience)
	v := &Verifier{cfg: cfg, parser: jwt.NewParser(
		jwt.WithValidMethods([]string{algorithm}), jwt.WithIssuer(cfg.Issuer), jwt.WithAudience(cfg.Audience),
		jwt.WithLeeway(cfg.Leeway), jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithTimeFunc(cfg.Now),
		jwt.WithStrictDecoding(),
	)}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.look()
	return v, nil
}

// Ready returns nil once there are keys to verify with.
func (v *Verifier) Ready(context.Context) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.look()
	if len(v.keys) == 0 {
		return fmt.Errorf("no token keys: %w", v.err)
	}
	return nil
}

// Verify returns the principal that token states. The error is apperr.Unauthenticated with the reason TOKEN_EXPIRED or
// TOKEN_INVALID, or apperr.Unavailable (TOKEN_KEYS_UNAVAILABLE) while there are no keys at all. It never says why a
// token is invalid; the cause does, for logs.
func (v *Verifier) Verify(token string) (Principal, error) {
	if len(token) > maxToken {
		return Principal{}, tokenInvalid(errors.New("too long"))
	}
	var c claims
	_, err := v.parser.ParseWithClaims(token, &c, v.key)
	switch {
	case errors.Is(err, errNoKeys):
		return Principal{}, apperr.Unavailable("TOKEN_KEYS_UNAVAILABLE", "the service cannot check access tokens yet; try again", time.Second).WithCause(err)
	case errors.Is(err, jwt.ErrTokenExpired) && !errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return Principal{}, apperr.Unauthenticated("TOKEN_EXPIRED", "the access token has expired; refresh it or log in again").WithCause(err)
	case err != nil:
		return Principal{}, tokenInvalid(err)
	}
	if err := c.complete(); err != nil {
		return Principal{}, tokenInvalid(err)
	}
	return Principal{UserID: c.Subject, SessionID: c.SessionID, DisplayName: c.DisplayName, Roles: c.Roles}, nil
}

func tokenInvalid(cause error) error {
	return apperr.Unauthenticated("TOKEN_INVALID", "the access token is not valid; log in again").WithCause(cause)
}

// complete checks what the parser leaves optional.
func (c *claims) complete() error {
	switch {
	case c.Subject == "":
		return errors.New("no sub claim")
	case c.ID == "":
		return errors.New("no jti claim")
	case c.IssuedAt == nil:
		return errors.New("no iat claim")
	case c.ExpiresAt.Sub(c.IssuedAt.Time) > MaxTTL:
		return fmt.Errorf("lifetime over %s", MaxTTL)
	}
	return nil
}

var errNoKeys = errors.New("no token keys")

// key finds the public key of a token by its kid, in a file that may have changed.
func (v *Verifier) key(token *jwt.Token) (any, error) {
	if typ, _ := token.Header["typ"].(string); typ != tokenType {
		return nil, fmt.Errorf("typ is not %s", tokenType)
	}
	kid, _ := token.Header["kid"].(string)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.look()
	if key, ok := v.keys[kid]; ok {
		return key, nil
	}
	// A key that Auth has just added may hide behind an equal stamp, or the file was looked at a moment ago. Strangers
	// choose the kid, so they must not choose how often the disk is read.
	if now := v.cfg.Now(); now.Sub(v.forced) >= rereadEvery {
		v.forced = now
		v.read()
	}
	if key, ok := v.keys[kid]; ok {
		return key, nil
	}
	if len(v.keys) == 0 {
		return nil, errNoKeys
	}
	return nil, errors.New("unknown kid")
}

// look reads the file again if its stamp changed, at most every rereadEvery. The caller holds v.mu.
func (v *Verifier) look() {
	now := v.cfg.Now()
	if elapsed := now.Sub(v.looked); !v.looked.IsZero() && elapsed >= 0 && elapsed < rereadEvery {
		return
	}
	v.looked = now
	if info, err := os.Stat(v.cfg.Path); err == nil && v.stamp.same(info) {
		return
	}
	v.read()
}

// read replaces the keys by those in the file. If it cannot be read the old keys stay: a file that vanished or is half
// mounted revokes nothing. The caller holds v.mu.
func (v *Verifier) read() {
	keys, s, err := readJWKS(v.cfg.Path)
	v.err = err
	if err == nil {
		v.keys, v.stamp = keys, s
	}
}

func readJWKS(path string) (map[string]ed25519.PublicKey, stamp, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read JWKS: %w", err)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	info, err := f.Stat()
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read JWKS: %w", err)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxJWKS+1))
	if err != nil {
		return nil, stamp{}, fmt.Errorf("read JWKS: %w", err)
	}
	if len(content) > maxJWKS {
		return nil, stamp{}, fmt.Errorf("read JWKS: %s is larger than %d bytes", path, maxJWKS)
	}
	keys, err := decodeJWKS(content)
	if err != nil {
		return nil, stamp{}, err
	}
	return keys, stamp{modified: info.ModTime(), size: info.Size(), info: info}, nil
}
