// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoadOrCreateKeyMakesOneAndKeepsIt(t *testing.T) {
	t.Parallel()
	for range 100 { // replicas that start on one volume at the same time must end with the same key
		path := filepath.Join(t.TempDir(), "signing.pem")
		var (
			wg    sync.WaitGroup
			ids   [8]string
			start = make(chan struct{})
		)
		for i := range ids {
			wg.Go(func() {
				<-start
				keys, err := LoadOrCreateKey(path)
				if err != nil || len(keys) != 1 {
					t.Errorf("%d keys, %v", len(keys), err)
					return
				}
				ids[i] = keys[0].ID
			})
		}
		close(start)
		wg.Wait()
		for _, id := range ids {
			if id != ids[0] || id == "" {
				t.Fatalf("different keys: %v", ids)
			}
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("mode %v, %v", info.Mode(), err)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".signing*")); len(left) != 0 {
			t.Fatalf("left over: %v", left)
		}
	}
}

func TestAddKeyAppendsTheNewest(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "signing.pem")
	first, err := LoadOrCreateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	added, err := AddKey(path)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := LoadOrCreateKey(path)
	if err != nil || len(keys) != 2 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	if diff := cmp.Diff([]string{first[0].ID, added.ID}, []string{keys[0].ID, keys[1].ID}); diff != "" {
		t.Error(diff)
	}
	if _, err := AddKey(path + ".missing"); err == nil {
		t.Error("a key was added to no file")
	}
}

func TestLoadOrCreateKeyRefuses(t *testing.T) {
	t.Parallel()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(ec)
	if err != nil {
		t.Fatal(err)
	}
	one, _, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"an empty file": nil,
		"another kind":  pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}),
		"no PKCS #8":    pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: []byte("x")}),
		"too many keys": bytes.Repeat(one, maxKeys+1),
	} {
		path := filepath.Join(t.TempDir(), "k")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadOrCreateKey(path); err == nil {
			t.Errorf("%s was accepted", name)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(after, content) {
			t.Errorf("%s was overwritten", name)
		}
	}
	if _, err := LoadOrCreateKey(filepath.Join(t.TempDir(), "no", "folder")); err == nil {
		t.Error("a missing folder was accepted")
	}
}

// The vector of RFC 8037, appendix A.3.
func TestThumbprint(t *testing.T) {
	t.Parallel()
	keys, err := decodeJWKS([]byte(`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := thumbprint(keys["a"]); got != "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" {
		t.Errorf("got %s", got)
	}
}

func TestJWKSHoldsNoPrivateKey(t *testing.T) {
	t.Parallel()
	keys, err := LoadOrCreateKey(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	content, err := encodeJWKS(keys)
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(content, &set); err != nil || len(set.Keys) != 1 {
		t.Fatalf("%s: %v", content, err)
	}
	if _, has := set.Keys[0]["d"]; has || set.Keys[0]["kid"] != keys[0].ID || set.Keys[0]["alg"] != "EdDSA" {
		t.Errorf("got %s", content)
	}
	public, err := decodeJWKS(content)
	if err != nil || !public[keys[0].ID].Equal(keys[0].Private.Public()) {
		t.Errorf("does not come back: %v", err)
	}
}

func TestDecodeJWKS(t *testing.T) {
	t.Parallel()
	const good = `{"kty":"OKP","crv":"Ed25519","kid":"a","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}`
	for name, tc := range map[string]struct {
		content string
		keys    int
	}{
		"one":                  {`{"keys":[` + good + `]}`, 1},
		"beside another kind":  {`{"keys":[{"kty":"RSA","kid":"r","n":"AQ"},` + good + `]}`, 1},
		"for encryption":       {`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","use":"enc","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`, 0},
		"without id":           {`{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`, 0},
		"short":                {`{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AAAA"}]}`, 0},
		"none":                 {`{"keys":[]}`, 0},
		"no JSON":              {`keys`, 0},
		"half a file":          {`{"keys":[` + good, 0},
		"nothing":              {``, 0},
		"an object of another": {`[]`, 0},
	} {
		keys, err := decodeJWKS([]byte(tc.content))
		if len(keys) != tc.keys || (err == nil) != (tc.keys > 0) {
			t.Errorf("%s: %d keys, %v", name, len(keys), err)
		}
	}
}
