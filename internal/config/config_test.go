// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const hidden = "hunter2-hunter2"

type sample struct {
	Addr    string         `env:"ADDR" envDefault:"127.0.0.1:1" doc:"Where to listen | and more."`
	Grace   time.Duration  `env:"GRACE" envDefault:"10s" doc:"How long."`
	URL     Secret         `env:"URL,required" doc:"The database."`
	Key     Secret         `env:"KEY" doc:"A key."`
	Level   slog.Level     `env:"LEVEL" envDefault:"INFO" doc:"Least level."`
	Proxies []netip.Prefix `env:"PROXIES" doc:"Trusted."`
	On      bool           `env:"ON" doc:"Switch."`
	Redis   struct {
		Pool int `env:"POOL" envDefault:"7" doc:"Connections."`
	} `envPrefix:"REDIS_"`
	derived string
}

func from(env map[string]string) func(string) string {
	return func(name string) string { return env[name] }
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadFillsValuesAndDefaults(t *testing.T) {
	t.Parallel()
	var cfg sample
	err := Load(from(map[string]string{
		"URL": "postgres://u:" + hidden + "@h/db", "KEY_FILE": file(t, hidden+"\r\n"), "GRACE": "3s", "LEVEL": "debug",
		"PROXIES": "10.0.0.0/8,::1/128", "ON": "true", "REDIS_POOL": "3", "ADDR": "",
	}), &cfg, func() error { cfg.derived = cfg.Addr; return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := sample{
		Addr: "127.0.0.1:1", Grace: 3 * time.Second, URL: "postgres://u:" + hidden + "@h/db", Key: hidden, Level: slog.LevelDebug,
		Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}, On: true, derived: "127.0.0.1:1",
	}
	want.Redis.Pool = 3
	if diff := cmp.Diff(want, cfg, cmp.AllowUnexported(sample{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestLoadReportsEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env    map[string]string
		checks []func() error
		want   []string
	}{
		"required": {nil, nil, []string{"URL is required and not set"}},
		"several": {
			map[string]string{"GRACE": "soon", "LEVEL": "loud", "REDIS_POOL": "many", "PROXIES": "10.0.0.0/99", "ON": "perhaps"},
			nil,
			[]string{"6 problems", "URL is required", "GRACE is not a valid", "LEVEL is not a valid", "REDIS_POOL is not a valid", "PROXIES is not a valid", "ON is not a valid"},
		},
		"both variants": {
			map[string]string{"URL": "x", "KEY": hidden, "KEY_FILE": "/nowhere"}, nil, []string{"KEY and KEY_FILE are both set"},
		},
		"missing file": {map[string]string{"URL_FILE": "/nowhere/at/all"}, nil, []string{"URL_FILE", "no such file"}},
		"empty file":   {map[string]string{"URL_FILE": file(t, "\n")}, nil, []string{"URL_FILE", "is empty"}},
		"huge file":    {map[string]string{"URL_FILE": file(t, strings.Repeat("x", maxSecretFile+1))}, nil, []string{"URL_FILE", "larger than"}},
		"checks": {
			map[string]string{"URL": "x"},
			[]func() error{func() error { return errors.Join(errors.New("a is bad"), errors.New("b is bad")) }},
			[]string{"2 problems", "a is bad", "b is bad"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var cfg sample
			err := Load(from(tc.env), &cfg, tc.checks...)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), hidden) {
				t.Errorf("the error shows a secret: %v", err)
			}
			if name == "missing file" && strings.Contains(err.Error(), "required") {
				t.Errorf("one problem is reported twice: %v", err)
			}
		})
	}
}

func TestLoadRefusesWhatIsNoStruct(t *testing.T) {
	t.Parallel()
	for _, cfg := range []any{nil, 3, (*sample)(nil), new(int)} {
		if err := Load(from(nil), cfg); err == nil {
			t.Errorf("%T was accepted", cfg)
		}
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	s := Secret(hidden)
	cfg := sample{URL: s, Key: s}
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	logger.InfoContext(t.Context(), "x", slog.Any("s", s), slog.Any("cfg", cfg), slog.Any("redacted", Redacted(&cfg)))
	slog.New(slog.NewTextHandler(&log, nil)).InfoContext(t.Context(), "x", slog.Any("s", s), slog.Any("cfg", cfg), slog.Any("redacted", Redacted(cfg)))
	encoded, err := json.Marshal(map[string]any{"s": s, "cfg": cfg})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(encoded)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d"} {
		all += fmt.Sprintf(verb, s) + fmt.Sprintf(verb, cfg) + fmt.Sprintf(verb, &cfg)
	}
	all += fmt.Sprintln(s, []Secret{s}, struct{ S Secret }{s}, fmt.Errorf("e %v", s))
	for _, form := range []string{hidden, fmt.Sprintf("%x", hidden), fmt.Sprintf("%X", hidden), fmt.Sprintf("% x", hidden)} {
		if strings.Contains(all, form) {
			t.Errorf("a secret is printed as %q in %s", form, all)
		}
	}
	if !strings.Contains(all, "***") || s.Reveal() != hidden || Secret("").String() != "" {
		t.Error("a secret must show as ***, an empty one as empty, and reveal its value")
	}
}

func TestRedactedShowsEveryVariable(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	for _, a := range Redacted(&sample{URL: hidden, Grace: time.Second}).Group() {
		got[a.Key] = a.Value.String()
	}
	want := map[string]string{
		"ADDR": "", "GRACE": "1s", "URL": "***", "KEY": "", "LEVEL": "INFO", "PROXIES": "[]", "ON": "false", "REDIS_POOL": "0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
