// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	pemType   = "PRIVATE KEY"
	keyMode   = 0o600
	jwksMode  = 0o644
	maxKeys   = 16       // in one file
	maxJWKS   = 64 << 10 // bytes
	curve     = "Ed25519"
	keyType   = "OKP" // RFC 8037
	algorithm = "EdDSA"
)

// Key is a signing key; ID is the RFC 7638 thumbprint of its public half and the kid of its tokens.
type Key struct {
	ID      string
	Private ed25519.PrivateKey
}

func newKey(private ed25519.PrivateKey) Key {
	return Key{ID: thumbprint(private.Public().(ed25519.PublicKey)), Private: private}
}

// thumbprint is RFC 7638 over the members that RFC 8037 requires, in lexical order.
func thumbprint(public ed25519.PublicKey) string {
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + base64.RawURLEncoding.EncodeToString(public) + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// LoadOrCreateKey reads the signing keys at path, PEM blocks of PKCS #8 with Ed25519, oldest first; the last one signs.
// If there is no file it makes one with a fresh key, readable by its owner only. Of two processes that create at the
// same time one wins and both return its key; a crash in between leaves no half-written file.
func LoadOrCreateKey(path string) ([]Key, error) {
	keys, err := loadKeys(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	block, _, err := generate()
	if err != nil {
		return nil, err
	}
	temp, err := writeTemp(path, block, keyMode)
	if err != nil {
		return nil, fmt.Errorf("create signing key: %w", err)
	}
	defer os.Remove(temp) //nolint:errcheck // a left-over temporary file harms nobody
	// Unlike a rename, a link fails if the other process was first.
	if err := os.Link(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create signing key: %w", err)
	}
	return loadKeys(path)
}

// AddKey appends a fresh key to the file at path, atomically, and returns it. It signs once the services that sign have
// loaded it; publish the JWKS first. It is an operator's step: two at the same time may lose one of the two keys.
func AddKey(path string) (Key, error) {
	old, err := os.ReadFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("add signing key: %w", err)
	}
	block, key, err := generate()
	if err != nil {
		return Key{}, err
	}
	if err := replaceFile(path, append(bytes.TrimRight(old, "\n"), append([]byte("\n"), block...)...), keyMode); err != nil {
		return Key{}, fmt.Errorf("add signing key: %w", err)
	}
	return key, nil
}

func generate() ([]byte, Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, Key{}, fmt.Errorf("generate signing key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, Key{}, fmt.Errorf("encode signing key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), newKey(private), nil
}

func loadKeys(path string) ([]Key, error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("load signing keys: %w", err)
	}
	var keys []Key
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("load signing keys: block %d of %s is not PKCS #8", len(keys)+1, path)
		}
		private, ok := parsed.(ed25519.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("load signing keys: block %d of %s is not an Ed25519 key", len(keys)+1, path)
		}
		keys = append(keys, newKey(private))
	}
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("load signing keys: %s holds %d keys, want 1 to %d", path, len(keys), maxKeys)
	}
	return keys, nil
}

// jwk is one public key of RFC 7517 with the members of RFC 8037.
type jwk struct {
	KeyType   string `json:"kty"`
	Curve     string `json:"crv"`
	X         string `json:"x"`
	KeyID     string `json:"kid"`
	Use       string `json:"use"`
	Algorithm string `json:"alg"`
}

type jwks struct {
	Keys []jwk `json:"keys"`
}

func encodeJWKS(keys []Key) ([]byte, error) {
	set := jwks{Keys: make([]jwk, 0, len(keys))}
	for _, k := range keys {
		set.Keys = append(set.Keys, jwk{
			KeyType: keyType, Curve: curve, KeyID: k.ID, Use: "sig", Algorithm: algorithm,
			X: base64.RawURLEncoding.EncodeToString(k.Private.Public().(ed25519.PublicKey)),
		})
	}
	out, err := json.MarshalIndent(set, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode JWKS: %w", err)
	}
	return append(out, '\n'), nil
}

// decodeJWKS reads the Ed25519 keys of a JWKS by key id. Keys of other kinds are passed over, as RFC 7517 asks; a set
// without any usable key is an error.
func decodeJWKS(content []byte) (map[string]ed25519.PublicKey, error) {
	var set jwks
	if err := json.Unmarshal(content, &set); err != nil {
		return nil, fmt.Errorf("decode JWKS: %w", err)
	}
	keys := make(map[string]ed25519.PublicKey, len(set.Keys))
	for _, k := range set.Keys {
		if k.KeyType != keyType || k.Curve != curve || k.KeyID == "" || k.Use != "" && k.Use != "sig" {
			continue
		}
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return nil, fmt.Errorf("decode JWKS: key %q is not an Ed25519 public key", k.KeyID)
		}
		keys[k.KeyID] = ed25519.PublicKey(x)
	}
	if len(keys) == 0 {
		return nil, errors.New("decode JWKS: no Ed25519 signing key in it")
	}
	return keys, nil
}

// replaceFile writes content to path so that a reader sees the old content or the new one, never a part.
func replaceFile(path string, content []byte, mode fs.FileMode) error {
	temp, err := writeTemp(path, content, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp) //nolint:errcheck // the rename's error is the one to report
		return fmt.Errorf("replace file: %w", err)
	}
	return nil
}

// writeTemp writes and syncs a temporary file in the folder of path.
func writeTemp(path string, content []byte, mode fs.FileMode) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return "", fmt.Errorf("temporary file: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name()) //nolint:errcheck // the first error is the one to report
		}
	}()
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return "", fmt.Errorf("temporary file: %w", err)
	}
	return f.Name(), nil
}
