// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

func tokens(access string) *authv1.Tokens {
	return &authv1.Tokens{
		AccessToken: access, AccessTokenExpireTime: timestamppb.New(time.Now().Add(10 * time.Minute)),
		RefreshToken: strings.Repeat("n", 43), RefreshTokenExpireTime: timestamppb.New(time.Now().Add(12 * time.Hour)),
	}
}

func (w *world) kept() loginFile {
	w.t.Helper()
	text, err := os.ReadFile(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	var login loginFile
	if err := json.Unmarshal(text, &login); err != nil {
		w.t.Fatal(err)
	}
	return login
}

// TestLogin: the password comes from where the user wants, the tokens go into a file of the user's own and nowhere else.
func TestLogin(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, []byte("correct horse\nand more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	terminal := types("", "correct horse")
	for name, c := range map[string]struct {
		stdin interface{ Read([]byte) (int, error) }
		args  []string
		asks  string
	}{
		"standard input": {strings.NewReader("correct horse\r\n"), nil, ""},
		"dash":           {strings.NewReader("correct horse"), []string{"--password-file", "-"}, ""},
		"file":           {strings.NewReader(""), []string{"--password-file", file}, ""},
		"terminal":       {terminal, nil, "Password: \n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.config = filepath.Join(t.TempDir(), "new", "folder", "login.json")
			w.env["COUNTERFOIL_CONFIG"] = w.config
			w.says("AuthService/Login", &authv1.LoginResponse{Tokens: tokens("fresh"), User: ada(), Session: session()})
			o := w.runWith(c.stdin, append([]string{"login", "Ada@example.com"}, c.args...)...)
			if o.code != exitOK || o.err != c.asks {
				t.Fatalf("exit code %d, %q", o.code, o.err)
			}
			has(t, o.out, "Ada Lovelace <ada@example.com>", "admin, auditor", "2026-11-30 22:00:00 UTC", w.addresses[serviceAdmin])
			if got := only[*authv1.LoginRequest](w, "AuthService/Login"); got.GetPassword() != "correct horse" || got.GetEmail() != "Ada@example.com" {
				t.Errorf("logged in with %v", got)
			}
			if len(w.asked("AuthService/Login")[0].metadata.Get("authorization")) != 0 {
				t.Error("a login carried a token")
			}
			login := w.kept()
			if login.AccessToken != "fresh" || login.RefreshToken != strings.Repeat("n", 43) || login.App != w.addresses[serviceApp] {
				t.Errorf("kept %+v", login)
			}
			info, err := os.Stat(w.config)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			if strings.Contains(o.out+o.err, "fresh") || strings.Contains(o.out+o.err, "nnnn") {
				t.Error("a token was printed")
			}
		})
	}
}

// TestLoginKeepsAddresses: after a login elsewhere, commands go there without being told again.
func TestLoginKeepsAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.says("AuthService/GetSelf", &authv1.GetSelfResponse{User: ada(), Session: session()})
	delete(w.env, "COUNTERFOIL_AUTH")
	has(t, w.must("whoami"), "auth          "+w.addresses[serviceAuth], "session       users/")
}

func TestPasswordsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if o := w.run("login", "ada@example.com"); o.code != exitUsage || !strings.Contains(o.err, "password is empty") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	if o := w.run("login", "ada@example.com", "--password-file", "/does/not/exist"); o.code != exitUsage {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	o := w.runWith(types("", "first secret", "other secret"), "user", "create", "a@example.com", "--display-name", "A")
	if o.code != exitUsage || !strings.Contains(o.err, "the two passwords differ") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	if len(w.calls) != 0 {
		t.Errorf("services were called: %v", w.calls)
	}
}

// TestLoginFileOfOthers: a file that others can read is not used: whoever read it is logged in, too.
func TestLoginFileOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := os.Chmod(w.config, 0o644); err != nil {
		t.Fatal(err)
	}
	o := w.run("whoami")
	if o.code != exitFailure || !strings.Contains(o.err, "mode 0644") || !strings.Contains(o.err, "chmod 600") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	if len(w.calls) != 0 {
		t.Error("its token was sent")
	}
}

func TestNobodyLoggedIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := os.Remove(w.config); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"whoami"}, {"user", "get", "me"}, {"trace", eventID}, {"audit", "export"}} {
		if o := w.run(args...); o.code != exitDenied || !strings.Contains(o.err, "nobody is logged in") || !strings.Contains(o.err, "counterfoil login EMAIL") {
			t.Errorf("%v: exit code %d: %s", args, o.code, o.err)
		}
	}
}

// TestTokensStayAtTheirServer: a login at one Auth is not shown to another.
func TestTokensStayAtTheirServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := newWorld(t)
	o := w.run("whoami", "--auth", other.addresses[serviceAuth])
	if o.code != exitDenied || !strings.Contains(o.err, "its tokens are not sent elsewhere") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	if len(other.calls) != 0 {
		t.Errorf("the other Auth got %v", other.calls)
	}
}

// TestRefresh: a token that is used up, by this computer's clock or the service's, is replaced without a word.
func TestRefresh(t *testing.T) {
	t.Parallel()
	self := func(good string) answer {
		return func(c received) ([]proto.Message, error) {
			if c.metadata.Get("authorization")[0] != "Bearer "+good {
				return nil, refusal(codes.Unauthenticated, "TOKEN_EXPIRED", "the access token has expired")
			}
			return []proto.Message{&authv1.GetSelfResponse{User: ada(), Session: session()}}, nil
		}
	}
	for name, expires := range map[string]time.Duration{"by our clock": -time.Second, "about to": early / 2, "by the service's clock": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.logIn("old", time.Now().Add(expires))
			w.says("AuthService/Refresh", &authv1.RefreshResponse{Tokens: tokens("new")})
			w.on("AuthService/GetSelf", self("new"))
			w.must("whoami")
			w.must("whoami")
			if got := only[*authv1.RefreshRequest](w, "AuthService/Refresh"); got.GetRefreshToken() != strings.Repeat("r", 43) {
				t.Errorf("refreshed with %q", got.GetRefreshToken())
			}
			if login := w.kept(); login.AccessToken != "new" || login.RefreshToken != strings.Repeat("n", 43) || login.Email != "ada@example.com" {
				t.Errorf("kept %+v", login)
			}
		})
	}
}

// TestRefreshOnce: Auth takes a second use of a refresh token for theft, so commands that run at the same moment use it once.
func TestRefreshOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.logIn("old", time.Now().Add(-time.Minute))
	w.says("AuthService/Refresh", &authv1.RefreshResponse{Tokens: tokens("new")})
	w.says("AuthService/GetSelf", &authv1.GetSelfResponse{User: ada(), Session: session()})
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if o := w.run("whoami"); o.code != exitOK {
				t.Errorf("exit code %d: %s", o.code, o.err)
			}
		})
	}
	wait.Wait()
	if n := len(w.asked("AuthService/Refresh")); n != 1 {
		t.Errorf("refreshed %d times", n)
	}
}

func TestSessionIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.logIn("old", time.Now().Add(-time.Minute))
	w.fails("AuthService/Refresh", refusal(codes.Unauthenticated, "INVALID_REFRESH_TOKEN", "the session is over"))
	o := w.run("whoami")
	if o.code != exitDenied {
		t.Errorf("exit code %d", o.code)
	}
	has(t, o.err, "auth: the session is over (INVALID_REFRESH_TOKEN)", "log in: counterfoil login EMAIL")
}

// TestLogout: the tokens are forgotten once the session is over, and not before, unless that is asked for.
func TestLogout(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		args   []string
		code   int
		forgot bool
		calls  int
	}{
		"done":           {nil, nil, exitOK, true, 1},
		"over already":   {refusal(codes.Unauthenticated, "SESSION_ENDED", "it has ended"), nil, exitOK, true, 1},
		"no answer":      {refusal(codes.Internal, "INTERNAL", "internal error"), nil, exitFailure, false, 1},
		"only forgotten": {nil, []string{"--forget"}, exitOK, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.says("AuthService/Logout", &authv1.LogoutResponse{})
			if c.err != nil {
				w.fails("AuthService/Logout", c.err)
			}
			o := w.run(append([]string{"logout"}, c.args...)...)
			_, err := os.Stat(w.config)
			if o.code != c.code || os.IsNotExist(err) != c.forgot || len(w.asked("AuthService/Logout")) != c.calls {
				t.Errorf("exit code %d, file %v, %d calls: %s", o.code, err, len(w.asked("AuthService/Logout")), o.err)
			}
			if c.forgot {
				if o := w.run("logout"); o.code != exitOK || o.err != "nobody is logged in\n" {
					t.Errorf("again: exit code %d: %s", o.code, o.err)
				}
			}
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has(t, w.must("version"), "counterfoil devel", "go1.")
	has(t, w.must("version", "-o", "json"), `"version": "devel`)
}

// TestCreateWithRoles: an account is made with its roles, and it is said if only some were granted.
func TestCreateWithRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bare := ada()
	bare.Roles = nil
	w.says("UserService/CreateUser", &authv1.CreateUserResponse{User: bare})
	w.says("UserService/GrantRole", &authv1.GrantRoleResponse{})
	args := []string{"user", "create", "ada@example.com", "--display-name", "Ada", "--role", "operator", "--role", "auditor"}
	o := w.runWith(types("", "correct horse", "correct horse"), args...)
	if o.code != exitOK {
		t.Fatal(o.err)
	}
	has(t, o.out, "operator, auditor")
	if n := len(w.asked("UserService/GrantRole")); n != 2 {
		t.Errorf("%d grants", n)
	}
	w.fails("UserService/GrantRole", refusal(codes.PermissionDenied, "ROLE_REQUIRED", "needs the role admin"))
	if o := w.runWith(strings.NewReader("correct horse"), args...); o.code != exitDenied || !strings.Contains(o.err, "not all of its roles") {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
	if o := w.run("user", "create", "a@example.com", "--display-name", "A", "--role", "king"); o.code != exitUsage ||
		!strings.Contains(o.err, `"king" is not one of admin, auditor, operator`) {
		t.Errorf("exit code %d: %s", o.code, o.err)
	}
}
