// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package pagetoken makes opaque, authenticated keyset page tokens (AIP-158).
//
// A token holds the position where the next page starts, encrypted under a key of the service, and is bound to the
// question that it continues: method, parent, filter and order. It grants nothing; who may read is checked on each call.
// Tokens do not expire and are not revoked; they end with the secret they were made under.
package pagetoken

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/config"
)

const (
	minSecret = 16   // bytes
	maxToken  = 4096 // characters; longer ones are refused before any work
	keyLabel  = "counterfoil page token v1"
)

// Binding is the question whose answer is being paged. A token is good for exactly one.
type Binding struct {
	Method  string // full RPC name
	Parent  string
	Filter  string // as the caller sent it
	OrderBy string
}

// hash is length-prefixed, so that moving a character from one field to its neighbour changes it.
func (b Binding) hash() []byte {
	h := sha256.New()
	for _, s := range []string{b.Method, b.Parent, b.Filter, b.OrderBy} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	return h.Sum(nil)
}

// Codec seals and opens tokens. It is safe for concurrent use.
type Codec struct {
	aeads []cipher.AEAD // the first seals, all open
}

// New derives a key from secret, which must have at least 16 bytes. Tokens made under a previous secret still open.
func New(secret config.Secret, previous ...config.Secret) (*Codec, error) {
	c := &Codec{}
	for _, s := range append([]config.Secret{secret}, previous...) {
		aead, err := derive(s.Reveal())
		if err != nil {
			return nil, err
		}
		c.aeads = append(c.aeads, aead)
	}
	return c, nil
}

func derive(secret string) (cipher.AEAD, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("page token secret: needs at least %d bytes", minSecret)
	}
	key, err := hkdf.Key(sha256.New, []byte(secret), nil, keyLabel, 32)
	if err != nil {
		return nil, fmt.Errorf("derive page token key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("page token cipher: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("page token cipher: %w", err)
	}
	return aead, nil
}

// Seal returns the token for cursor, a small value that encoding/json can write, bound to b.
func (c *Codec) Seal(b Binding, cursor any) (string, error) {
	plain, err := json.Marshal(cursor)
	if err != nil {
		return "", fmt.Errorf("encode page cursor: %w", err)
	}
	token := base64.RawURLEncoding.EncodeToString(c.aeads[0].Seal(nil, nil, plain, b.hash()))
	if len(token) > maxToken {
		return "", fmt.Errorf("encode page cursor: token of %d characters is over %d", len(token), maxToken)
	}
	return token, nil
}

// Open reads token into cursor and returns true. An empty token is the first page: false, and cursor is untouched.
//
// A token that was altered, made under another secret or for another question is an InvalidArgument error on the field
// page_token; cursor is then untouched too.
func (c *Codec) Open(b Binding, token string, cursor any) (bool, error) {
	if token == "" {
		return false, nil
	}
	if len(token) > maxToken {
		return false, invalid(errors.New("too long"))
	}
	// Strict, so that no two spellings stand for the same token.
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return false, invalid(err)
	}
	aad := b.hash()
	for _, aead := range c.aeads {
		plain, err := aead.Open(nil, nil, sealed, aad)
		if err != nil {
			continue
		}
		if err := json.Unmarshal(plain, cursor); err != nil {
			return false, invalid(err) // ours, but of an older shape: the caller starts again
		}
		return true, nil
	}
	return false, invalid(errors.New("not authentic for this request"))
}

func invalid(cause error) error {
	const description = "is not a token of this list; pass the last next_page_token with the same parent, filter and order, or start from the first page"
	return apperr.InvalidArgument("PAGE_TOKEN_INVALID", "page_token "+description,
		apperr.Violation{Field: "page_token", Description: description}).WithCause(cause)
}

// PageSize applies AIP-158 to a requested page size: 0 is standard, more than maximum is maximum, a negative one is an
// InvalidArgument error.
func PageSize(requested int32, standard, maximum int) (int, error) {
	switch {
	case requested < 0:
		return 0, apperr.InvalidField("page_size", "must not be negative").With("page_size", strconv.Itoa(int(requested)))
	case requested == 0:
		return standard, nil
	default:
		return min(int(requested), maximum), nil
	}
}
