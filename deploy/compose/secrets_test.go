// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A secret that an end in the middle left empty is made again: a user of the broker with an empty password is worse than
// none. One that has something in it stays, as does what holds it.
func TestSecretsLeftEmptyAreMadeAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(content))
	}
	makeSecrets := func() {
		cmd := exec.CommandContext(t.Context(), "./secrets.sh")
		cmd.Env = append(os.Environ(), "SECRETS_DIR="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "auth_redis_password"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	makeSecrets()
	password := read("auth_redis_password")
	if len(password) != 32 {
		t.Fatalf("the password is %q", password)
	}
	if url := read("auth_redis_url"); !strings.Contains(url, "auth:"+password+"@") {
		t.Errorf("%s is without the password", url)
	}
	makeSecrets()
	if again := read("auth_redis_password"); again != password {
		t.Error("a secret that was there was made again")
	}
	for line := range strings.SplitSeq(read("redis_users"), "\n") {
		if strings.Contains(line, "_PASSWORD") || strings.HasSuffix(strings.Fields(line)[0], ">") {
			t.Errorf("a user without a password: %s", line)
		}
	}
}
