// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"
)

const (
	// Issuer is the iss claim where a configuration leaves it empty.
	Issuer = "counterfoil-auth"
	// Audience is the aud claim where a configuration leaves it empty.
	Audience = "counterfoil"

	// MaxLeeway bounds the clock skew that a verifier may allow.
	MaxLeeway = 30 * time.Second
	// MaxTTL bounds the lifetime of a token, for signers and verifiers alike: these tokens cannot be revoked.
	MaxTTL = time.Hour

	defaultTTL = 10 * time.Minute
	tokenType  = "at+jwt" // RFC 9068: no other JWT passes for an access token
	maxToken   = 8192     // bytes
)

// claims is the content of a token.
type claims struct {
	jwt.RegisteredClaims
	SessionID   string   `json:"sid,omitempty"`
	DisplayName string   `json:"name,omitempty"`
	Roles       []string `json:"roles"`
}

// SignerConfig says how tokens are made.
type SignerConfig struct {
	// Keys come from LoadOrCreateKey; the last one signs.
	Keys []Key
	// Issuer and Audience default to the constants of the same name.
	Issuer, Audience string
	// TTL is the lifetime of a token; default 10 min, at most MaxTTL.
	TTL time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
	// NewID makes token ids (jti); default UUIDv7.
	NewID func() string
}

// Signer makes access tokens. It is safe for concurrent use; only Auth has one.
type Signer struct {
	cfg SignerConfig
}

// NewSigner checks cfg and fills its defaults.
func NewSigner(cfg SignerConfig) (*Signer, error) {
	if len(cfg.Keys) == 0 {
		return nil, errors.New("token signer: no key")
	}
	if cfg.TTL == 0 {
		cfg.TTL = defaultTTL
	}
	if cfg.TTL < time.Second || cfg.TTL > MaxTTL {
		return nil, fmt.Errorf("token signer: lifetime %s is not between 1s and %s", cfg.TTL, MaxTTL)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = func() string { return uuid.Must(uuid.NewV7()).String() }
	}
	cfg.Issuer, cfg.Audience = orDefault(cfg.Issuer, Issuer), orDefault(cfg.Audience, Audience)
	cfg.Keys = slices.Clone(cfg.Keys)
	return &Signer{cfg: cfg}, nil
}

func orDefault(s, standard string) string {
	if s == "" {
		return standard
	}
	return s
}

// Sign returns a token that states p, and when it expires. A principal without user id is refused.
func (s *Signer) Sign(p Principal) (token string, expires time.Time, err error) {
	if p.UserID == "" {
		return "", time.Time{}, errors.New("sign token: no user id")
	}
	now := s.cfg.Now().Truncate(time.Second)
	expires = now.Add(s.cfg.TTL)
	key := s.cfg.Keys[len(s.cfg.Keys)-1]
	unsigned := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: s.cfg.Issuer, Audience: jwt.ClaimStrings{s.cfg.Audience}, Subject: p.UserID, ID: s.cfg.NewID(),
			IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(expires),
		},
		SessionID: p.SessionID, DisplayName: p.DisplayName, Roles: append([]string{}, p.Roles...),
	})
	unsigned.Header["kid"] = key.ID
	unsigned.Header["typ"] = tokenType
	token, err = unsigned.SignedString(key.Private)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign token: %w", err)
	}
	if len(token) > maxToken {
		return "", time.Time{}, fmt.Errorf("sign token: %d bytes, over %d", len(token), maxToken)
	}
	return token, expires, nil
}

// WriteJWKS writes the public halves of all keys to path, which a reader sees whole or not at all.
func (s *Signer) WriteJWKS(path string) error {
	content, err := encodeJWKS(s.cfg.Keys)
	if err != nil {
		return err
	}
	if err := replaceFile(path, content, jwksMode); err != nil {
		return fmt.Errorf("write JWKS: %w", err)
	}
	return nil
}
