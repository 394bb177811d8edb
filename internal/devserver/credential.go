// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// credential is the user that a server runs as.
type credential struct {
	uid, gid uint32
}

// unprivileged returns the user that Postgres, which refuses root, shall run as: nil (ourselves) unless we are root.
func unprivileged() (*credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &credential{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("postgres refuses to run as root, and there is neither a user postgres nor nobody")
}

// own gives path to the user; nil leaves it as it is.
func (c *credential) own(path string) error {
	if c == nil {
		return nil
	}
	if err := os.Chown(path, int(c.uid), int(c.gid)); err != nil {
		return fmt.Errorf("hand over %s: %w", path, err)
	}
	return nil
}

// reaches tells whether the user may pass through dir and each folder above it. An access list is not looked at.
func (c *credential) reaches(dir string) (bool, error) {
	if c == nil {
		return true, nil
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, fmt.Errorf("resolve directory: %w", err)
	}
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return false, fmt.Errorf("look at directory: %w", err)
		}
		mode, owner := info.Mode().Perm(), info.Sys().(*syscall.Stat_t)
		var bit os.FileMode = 0o001
		switch {
		case owner.Uid == c.uid:
			bit = 0o100
		case owner.Gid == c.gid:
			bit = 0o010
		}
		if mode&bit == 0 {
			return false, nil
		}
		if dir == filepath.Dir(dir) {
			return true, nil
		}
	}
}
