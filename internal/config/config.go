// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package config reads a service's configuration from the environment into one struct, and shows it without its secrets.
//
// The struct is the complete list of what can be configured: its tags env, envDefault and doc give name, default and
// explanation of each field, from which configdoc writes docs/configuration.md. The package reads no files but those named
// by NAME_FILE variables, keeps no state and knows no service.
package config

//go:generate go run ./configdoc -root ../..

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"

	"github.com/caarlos0/env/v11"
)

// fileSuffix marks the variable that names a file holding the secret, as container engines mount them.
const fileSuffix = "_FILE"

// maxSecretFile bounds, in bytes, a file named by a _FILE variable.
const maxSecretFile = 64 << 10

// Load fills cfg, a pointer to a struct with env tags, from getenv, then runs checks (which see the filled struct).
//
// An empty variable counts as unset. A field of type Secret may be given as NAME or, by path, as NAME_FILE, without the
// file's trailing newline; giving both is an error. All problems are reported in one error that names each variable;
// the value of a secret is in none. When Load fails the content of cfg is undefined.
func Load(getenv func(string) string, cfg any, checks ...func() error) error {
	fields, err := walk(cfg)
	if err != nil {
		return err
	}
	environment := make(map[string]string, len(fields))
	var problems []string
	for _, f := range fields {
		value, err := lookup(getenv, f)
		if err != nil {
			problems = append(problems, err.Error())
			value = "unreadable" // keeps "required" from being reported as a second problem
		}
		if value != "" {
			environment[f.name] = value
		}
	}
	problems = append(problems, parse(cfg, environment, fields)...)
	if len(problems) == 0 {
		for _, check := range checks {
			if err := check(); err != nil {
				problems = append(problems, strings.Split(err.Error(), "\n")...)
			}
		}
	}
	return summary(problems)
}

// lookup reads one variable, from its file if NAME_FILE is given.
func lookup(getenv func(string) string, f entry) (string, error) {
	value := getenv(f.name)
	if !f.secret {
		return value, nil
	}
	path := getenv(f.name + fileSuffix)
	switch {
	case path == "":
		return value, nil
	case value != "":
		return "", fmt.Errorf("%s and %s are both set: give one of them", f.name, f.name+fileSuffix)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.name+fileSuffix, err)
	}
	if info.Size() > maxSecretFile {
		return "", fmt.Errorf("%s: %s is larger than %d bytes", f.name+fileSuffix, path, maxSecretFile)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.name+fileSuffix, err)
	}
	value = strings.TrimRight(string(content), "\r\n")
	if value == "" {
		return "", fmt.Errorf("%s: %s is empty", f.name+fileSuffix, path)
	}
	return value, nil
}

// parse lets the env library fill cfg and words its complaints by variable name.
func parse(cfg any, environment map[string]string, fields []entry) []string {
	err := env.ParseWithOptions(cfg, env.Options{Environment: environment})
	if err == nil {
		return nil
	}
	var aggregate env.AggregateError
	if !errors.As(err, &aggregate) {
		return []string{err.Error()}
	}
	byGoName := make(map[string]string, len(fields))
	for _, f := range fields {
		byGoName[f.goName] = f.name
	}
	problems := make([]string, 0, len(aggregate.Errors))
	for _, e := range aggregate.Errors {
		problems = append(problems, reword(e, byGoName))
	}
	return problems
}

func reword(err error, byGoName map[string]string) string {
	var (
		notSet env.VarIsNotSetError
		empty  env.EmptyVarError
		bad    env.ParseError
	)
	switch {
	case errors.As(err, &notSet):
		return notSet.Key + " is required and not set"
	case errors.As(err, &empty):
		return empty.Key + " must not be empty"
	case errors.As(err, &bad):
		name := byGoName[bad.Name]
		if name == "" {
			name = bad.Name
		}
		return fmt.Sprintf("%s is not a valid %s: %v", name, bad.Type, bad.Err)
	default:
		return err.Error()
	}
}

func summary(problems []string) error {
	switch len(problems) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("configuration: %s", problems[0])
	default:
		sort.Strings(problems)
		return fmt.Errorf("configuration: %d problems:\n  %s", len(problems), strings.Join(problems, "\n  "))
	}
}

// entry is one variable and the field that holds it.
type entry struct {
	name   string // of the variable, prefixes included
	secret bool   // never printed, and may be given as NAME_FILE
	goName string
	value  reflect.Value
}

// walk lists the fields of cfg, a struct or a pointer to one, nested structs included, in the order of declaration.
func walk(cfg any) ([]entry, error) {
	v := reflect.ValueOf(cfg)
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil, fmt.Errorf("configuration: %T is not a struct", cfg)
	}
	return walkStruct(v, ""), nil
}

func walkStruct(v reflect.Value, prefix string) []entry {
	var entries []entry
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("env")
		if !tagged && f.Type.Kind() == reflect.Struct && f.IsExported() {
			entries = append(entries, walkStruct(v.Field(i), prefix+f.Tag.Get("envPrefix"))...)
			continue
		}
		name, _, _ := strings.Cut(tag, ",")
		if !tagged || name == "" || name == "-" {
			continue
		}
		entries = append(entries, entry{
			name: prefix + name, secret: f.Type == reflect.TypeFor[Secret](), goName: f.Name, value: v.Field(i),
		})
	}
	return entries
}
