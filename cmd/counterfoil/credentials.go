// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
)

// loginFile is what `login` keeps: where the services are, who is logged in, and the tokens. Whoever can read it can act
// as that user until the session ends, so it is written with mode 0600 and refused with a wider one.
type loginFile struct {
	Auth           string    `json:"auth"`
	App            string    `json:"app"`
	Admin          string    `json:"admin"`
	TLS            bool      `json:"tls,omitempty"`
	CAFile         string    `json:"ca_file,omitempty"`
	User           string    `json:"user"` // resource name
	Email          string    `json:"email"`
	AccessToken    string    `json:"access_token"`
	AccessExpires  time.Time `json:"access_token_expire_time"`
	RefreshToken   string    `json:"refresh_token"`
	RefreshExpires time.Time `json:"refresh_token_expire_time"`
}

// early is how long before its end an access token is replaced: a call must not arrive after it.
const early = 20 * time.Second

// loginPath is where the login is kept.
func (a *app) loginPath() (string, error) {
	if path := or(a.Config, a.getenv("COUNTERFOIL_CONFIG")); path != "" {
		return path, nil
	}
	dir := a.getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := a.getenv("HOME")
		if home == "" {
			var err error
			if dir, err = os.UserConfigDir(); err != nil {
				return "", usage("there is no folder for the login: set $COUNTERFOIL_CONFIG or give --config FILE")
			}
			return filepath.Join(dir, "counterfoil", "login.json"), nil
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "counterfoil", "login.json"), nil
}

// saved returns the login, or nil if nobody is logged in. It is read once.
func (a *app) saved() (*loginFile, error) {
	if a.login != nil {
		return a.login, nil
	}
	path, err := a.loginPath()
	if err != nil {
		return nil, err
	}
	login, err := readLogin(path)
	if err != nil || login == nil {
		return nil, err
	}
	a.login = login
	return login, nil
}

// readLogin returns nil for a file that does not exist.
func readLogin(path string) (*loginFile, error) {
	file, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read login: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read login: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, &failure{
			code: exitFailure, text: fmt.Sprintf("%s holds tokens and has mode %04o: others can read it", path, mode),
			hint: "if nobody has: chmod 600 " + path + "; otherwise delete it, log in again and revoke your other sessions",
		}
	}
	var login loginFile
	if err := json.NewDecoder(file).Decode(&login); err != nil {
		return nil, &failure{code: exitFailure, text: "read login: " + path + ": " + err.Error(), hint: "delete the file and log in again", cause: err}
	}
	return &login, nil
}

// save keeps the login. The file is replaced as a whole: a crash leaves the old one or the new one.
func (a *app) save(login *loginFile) error {
	path, err := a.loginPath()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(login, "", "  ")
	if err != nil {
		return fmt.Errorf("keep login: %w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep login: %w", err)
	}
	file, err := os.CreateTemp(dir, ".login-*") // mode 0600
	if err != nil {
		return fmt.Errorf("keep login: %w", err)
	}
	_, err = file.Write(append(text, '\n'))
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		os.Remove(file.Name()) //nolint:errcheck // the first error is the one to tell
		return fmt.Errorf("keep login: %w", err)
	}
	a.login = login
	return nil
}

// forget removes the login. That it is not there is no error.
func (a *app) forget() error {
	path, err := a.loginPath()
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget login: %w", err)
	}
	a.login = nil
	return nil
}

// token returns an access token that is good for some time yet, refreshed if need be. used, if not empty, is a token that
// a service did not take: it is not returned again.
func (a *app) token(ctx context.Context, used string) (string, error) {
	a.tokens.Lock()
	defer a.tokens.Unlock()
	login, err := a.saved()
	switch {
	case err != nil:
		return "", err
	case login == nil:
		return "", &failure{code: exitDenied, text: "nobody is logged in", hint: "counterfoil login EMAIL"}
	}
	if auth := a.address(serviceAuth); auth != login.Auth {
		return "", &failure{
			code: exitDenied, text: fmt.Sprintf("the login is at %s, not at %s: its tokens are not sent elsewhere", login.Auth, auth),
			hint: "counterfoil login EMAIL --auth " + auth + ", or leave --auth and $COUNTERFOIL_AUTH out",
		}
	}
	if a.usable(login, used) {
		return login.AccessToken, nil
	}
	return a.refresh(ctx, used)
}

func (a *app) usable(login *loginFile, used string) bool {
	return login.AccessToken != used && a.now().Before(login.AccessExpires.Add(-early))
}

// refresh exchanges the refresh token. It works once, and Auth takes a second use for theft: so only one process at a time
// refreshes, and who had to wait looks first at what the other one got.
func (a *app) refresh(ctx context.Context, used string) (string, error) {
	path, err := a.loginPath()
	if err != nil {
		return "", err
	}
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	login, err := readLogin(path)
	switch {
	case err != nil:
		return "", err
	case login == nil:
		return "", &failure{code: exitDenied, text: "nobody is logged in any more", hint: "counterfoil login EMAIL"}
	case a.usable(login, used):
		a.login = login
		return login.AccessToken, nil
	}
	r, err := authv1.NewAuthServiceClient(a.conn(serviceAuth)).Refresh(ctx, &authv1.RefreshRequest{RefreshToken: login.RefreshToken})
	if err != nil {
		return "", err
	}
	login.keep(r.GetTokens())
	if err := a.save(login); err != nil {
		return "", err
	}
	return login.AccessToken, nil
}

// keep takes over new tokens.
func (l *loginFile) keep(t *authv1.Tokens) {
	l.AccessToken, l.AccessExpires = t.GetAccessToken(), t.GetAccessTokenExpireTime().AsTime()
	l.RefreshToken, l.RefreshExpires = t.GetRefreshToken(), t.GetRefreshTokenExpireTime().AsTime()
}
