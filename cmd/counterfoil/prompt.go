// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// maxPassword bounds what is read as a password, in bytes.
const maxPassword = 4096

// terminal is an input with a person behind it.
type terminal interface {
	// ReadPassword reads a line without showing it.
	ReadPassword() (string, error)
}

// fileTerminal is a terminal of the operating system.
type fileTerminal struct{ file *os.File }

// ReadPassword implements terminal.
func (f fileTerminal) ReadPassword() (string, error) {
	text, err := term.ReadPassword(int(f.file.Fd()))
	return string(text), err
}

// person returns the terminal at the other end of the input, if there is one.
func (a *app) person() (terminal, bool) {
	switch in := a.in.(type) {
	case terminal:
		return in, true
	case *os.File:
		return fileTerminal{in}, term.IsTerminal(int(in.Fd()))
	default:
		return nil, false
	}
}

// confirm asks before something that cannot be taken back. Without a person to ask, --yes is the answer or there is none.
func (a *app) confirm(format string, args ...any) error {
	if a.Yes {
		return nil
	}
	question := clean(fmt.Sprintf(format, args...))
	if _, ok := a.person(); !ok {
		return &failure{code: exitUsage, text: question + " Nobody is here to ask", hint: "add --yes"}
	}
	tell(a.stderr, question+" [y/N] ")
	answer, err := a.readLine()
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	default:
		return &failure{code: exitFailure, text: "nothing was done"}
	}
}

// readLine reads one line and not a byte more, so that what follows is there for the next reader.
func (a *app) readLine() (string, error) {
	var line []byte
	one := make([]byte, 1)
	for len(line) < maxPassword {
		n, err := a.in.Read(one)
		if n == 1 {
			if one[0] == '\n' {
				break
			}
			line = append(line, one[0])
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", fmt.Errorf("read input: %w", err)
		}
	}
	return strings.TrimSuffix(string(line), "\r"), nil
}

// password gets a password: from a file, from a person without showing it, or from a line of the input. It never comes
// from an argument, which other users of the computer could see.
func (a *app) password(prompt, file string) (string, error) {
	text, err := a.secret(prompt, file)
	if err != nil {
		return "", err
	}
	if text == "" {
		return "", usage("the %s is empty: give it on the input, with --password-file, or at a terminal", strings.ToLower(prompt))
	}
	return text, nil
}

func (a *app) secret(prompt, file string) (string, error) {
	if file != "" && file != "-" {
		return secretFile(file)
	}
	asked, ok := a.person()
	if !ok || file == "-" {
		return a.readLine()
	}
	tell(a.stderr, prompt+": ")
	text, err := asked.ReadPassword()
	tell(a.stderr, "\n")
	if err != nil {
		return "", fmt.Errorf("read %s: %w", strings.ToLower(prompt), err)
	}
	return text, nil
}

// secretFile reads the first line of a file.
func secretFile(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", usage("--password-file: %v", err)
	}
	defer file.Close() //nolint:errcheck // only read
	line, err := bufio.NewReader(io.LimitReader(file, maxPassword)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// newPassword gets a password that is about to be set; a person types it twice.
func (a *app) newPassword(file string) (string, error) {
	first, err := a.password("New password", file)
	if err != nil {
		return "", err
	}
	if _, ok := a.person(); !ok || file != "" {
		return first, nil
	}
	again, err := a.password("New password again", file)
	if err != nil {
		return "", err
	}
	if again != first {
		return "", usage("the two passwords differ")
	}
	return first, nil
}
