// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package migrations

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// scramIterations is what Postgres itself uses.
const scramIterations = 4096

// scramVerifier returns what Postgres stores for a password (RFC 5803). Only printable ASCII is taken: the rest would
// have to be normalised first, and generated passwords have none.
func scramVerifier(password string) (string, error) {
	for _, c := range []byte(password) {
		if c < ' ' || c > '~' {
			return "", errors.New("it holds something other than printable ASCII")
		}
	}
	var salt [16]byte
	_, _ = rand.Read(salt[:]) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt[:], scramIterations, sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive key: %w", err)
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s",
		scramIterations, encode(salt[:]), encode(stored[:]), encode(sign("Server Key"))), nil
}
