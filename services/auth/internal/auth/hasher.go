// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/alexedwards/argon2id"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

// The cost of one hash, after OWASP's first choice for argon2id: 19 MiB, two passes, one lane.
const (
	hashMemory     = 19 * 1024 // KiB
	hashPasses     = 2
	hashConcurrent = 4
	hashWait       = 5 * time.Second
)

// HashParams is the cost of one password hash; the zero value stands for the defaults above.
type HashParams struct {
	MemoryKiB uint32
	Passes    uint32
}

// Hasher hashes and compares passwords with argon2id, a bounded number at once: each takes its memory for tens of
// milliseconds, and callers who are not logged in yet can ask for one. It is safe for concurrent use.
type Hasher struct {
	params *argon2id.Params
	slots  chan struct{}
	wait   time.Duration
	decoy  string
}

// NewHasher returns a hasher that runs at most concurrent hashes at once (0: 4).
func NewHasher(p HashParams, concurrent int) (*Hasher, error) {
	if p.MemoryKiB == 0 {
		p.MemoryKiB = hashMemory
	}
	if p.Passes == 0 {
		p.Passes = hashPasses
	}
	if concurrent <= 0 {
		concurrent = hashConcurrent
	}
	h := &Hasher{
		params: &argon2id.Params{Memory: p.MemoryKiB, Iterations: p.Passes, Parallelism: 1, SaltLength: 16, KeyLength: 32},
		slots:  make(chan struct{}, concurrent), wait: hashWait,
	}
	decoy, err := argon2id.CreateHash(rand.Text(), h.params)
	if err != nil {
		return nil, fmt.Errorf("hash decoy: %w", err)
	}
	h.decoy = decoy
	return h, nil
}

// Hash returns the PHC form of a password's hash, under a fresh salt. When all slots stay taken for 5 s it is
// ResourceExhausted (PASSWORD_WORK_BUSY).
func (h *Hasher) Hash(ctx context.Context, password string) (string, error) {
	release, err := h.acquire(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	hash, err := argon2id.CreateHash(password, h.params)
	if err != nil {
		return "", fmt.Errorf("hash password: %w", err)
	}
	return hash, nil
}

// Matches compares a password with a hash. An empty hash, which stands for no account, matches nothing and takes as
// long as any other. stale says that the hash matched and was made at another cost than today's.
func (h *Hasher) Matches(ctx context.Context, password, hash string) (matches, stale bool, err error) {
	release, err := h.acquire(ctx)
	if err != nil {
		return false, false, err
	}
	defer release()
	known := hash != ""
	if !known {
		hash = h.decoy
	}
	matches, params, err := argon2id.CheckHash(password, hash)
	if err != nil {
		return false, false, fmt.Errorf("compare password: %w", err)
	}
	return matches && known, matches && *params != *h.params, nil
}

func (h *Hasher) acquire(ctx context.Context) (release func(), err error) {
	timer := time.NewTimer(h.wait)
	defer timer.Stop()
	select {
	case h.slots <- struct{}{}:
		return func() { <-h.slots }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for password work: %w", ctx.Err())
	case <-timer.C:
		return nil, apperr.ResourceExhausted("PASSWORD_WORK_BUSY", "too many passwords are being checked at the moment; try again").WithRetry(time.Second)
	}
}

// requireStrong refuses a password that the policy does not allow.
func requireStrong(p store.LoginPolicy, password string) error {
	if utf8.RuneCountInString(password) >= p.MinPasswordLength {
		return nil
	}
	description := fmt.Sprintf("must have at least %d characters", p.MinPasswordLength)
	return apperr.InvalidArgument("PASSWORD_TOO_SHORT", "the password "+description,
		apperr.Violation{Field: "password", Description: description, Reason: "PASSWORD_TOO_SHORT"}).
		With("min_password_length", fmt.Sprint(p.MinPasswordLength))
}
