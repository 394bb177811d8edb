// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package auth is what Auth does: accounts and their roles, login with lock-out, sessions with rotating refresh tokens,
// and the login policy.
//
// Every operation that changes something reads alike: what is refused, what is slow and therefore outside, then one
// transaction with the locks, the rows and their events, and settle. The row and its event are sent in one round trip
// and commit together or not at all; events.go lists every event. What was refused or failed is recorded after the
// rollback in a short transaction of its own, as far as the database allows: that record is best effort, the record of
// a change is not. A call that is malformed, and trouble of the database itself, are no attempts and are not recorded.
//
// The package trusts the caller that its context names, and checks that one may act on another's account only where the
// method's role rule cannot (requireSelfOr).
package auth

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/idempotency"
)

// The roles.
const (
	RoleAdmin    = "admin"
	RoleAuditor  = "auditor"
	RoleOperator = "operator"
)

const (
	opaqueLabel  = "counterfoil unknown account v1"
	anonymousPer = 50  // records per second of calls from whoever is not logged in
	anonymousMax = 200 // … and at once
)

// Options says what a Service works with. DB, Hasher, Signer and Secret are needed; bootstrap needs only DB and Hasher.
type Options struct {
	DB     *pgxpool.Pool
	Hasher *Hasher
	Signer *authn.Signer
	// Secret, at least 16 bytes, keys the opaque ids of accounts that do not exist. Replicas share it.
	Secret config.Secret
	// Wake is called after each commit that appended an event; default: nothing.
	Wake func()
	// Logger gets what no caller sees; default: discarded.
	Logger *slog.Logger
	// Now is the clock; default time.Now. NewID makes UUIDv7; default uuid.NewV7.
	Now   func() time.Time
	NewID func() uuid.UUID
}

// Service is Auth's operations. It is safe for concurrent use.
type Service struct {
	db        *pgxpool.Pool
	hasher    *Hasher
	signer    *authn.Signer
	wake      func()
	log       *slog.Logger
	clock     func() time.Time
	newID     func() uuid.UUID
	opaqueKey []byte
	anonymous *rate.Limiter // bounds what callers who are not logged in can make us record
}

// New fills the defaults of o.
func New(o Options) (*Service, error) {
	if o.DB == nil || o.Hasher == nil {
		return nil, errors.New("auth service: needs a database and a hasher")
	}
	key, err := hkdf.Key(sha256.New, []byte(o.Secret.Reveal()), nil, opaqueLabel, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive key of opaque ids: %w", err)
	}
	s := &Service{
		db: o.DB, hasher: o.Hasher, signer: o.Signer, wake: o.Wake, log: o.Logger, clock: o.Now, newID: o.NewID,
		opaqueKey: key, anonymous: rate.NewLimiter(anonymousPer, anonymousMax),
	}
	if s.wake == nil {
		s.wake = func() {}
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.newID == nil {
		s.newID = func() uuid.UUID { return uuid.Must(uuid.NewV7()) }
	}
	return s, nil
}

// now is the clock at the precision that the database keeps.
func (s *Service) now() time.Time { return s.clock().UTC().Truncate(time.Microsecond) }

// settle ends an operation whose transaction ended with err. After a commit it wakes the dispatcher. After a failure it
// first asks whether this call was answered before, whatever it failed on this time, and has replay build the answer
// again; otherwise it records the refusal and returns err.
func (s *Service) settle(ctx context.Context, try attempt, err error, replay func(idempotency.Result) error) error {
	if err == nil {
		s.wake()
		return nil
	}
	done, repeated, recallErr := try.key.Answered(ctx, s.db)
	switch {
	case repeated:
		s.wake() // the first run's reply may have been lost with its wake-up
		return replay(done)
	case apperr.KindOf(recallErr) == apperr.KindInvalidArgument:
		err = recallErr // the request id belongs to another call
	case recallErr != nil:
		return recallErr // it may have been done before: there is no refusal to record
	}
	return s.refuse(ctx, try, err)
}

// requireSelfOr refuses a caller who is neither the user nor has one of roles. It looks at nothing else, so its answer
// does not tell whether the user exists.
func requireSelfOr(ctx context.Context, user uuid.UUID, roles ...string) error {
	p, _ := authn.PrincipalFrom(ctx)
	if p.UserID == user.String() || p.HasRole(roles...) {
		return nil
	}
	return apperr.PermissionDenied("NOT_OWN_ACCOUNT", "only an admin may do this to another's account")
}

// requireETag refuses a change that was based on another version. Without an etag there is nothing to compare.
func requireETag(etag string, version int64) error {
	if etag == "" || etag == ETag(version) {
		return nil
	}
	return apperr.Aborted("ETAG_MISMATCH", "the resource has changed since it was read: read it again and repeat the change")
}

// ETag is the etag of a row at a version.
func ETag(version int64) string { return strconv.FormatInt(version, 10) }

// opaqueID stands for an address that no account has. The same address gives the same id, so that attempts on it can be
// counted; without the key it tells nothing, and the address itself is recorded nowhere: people type passwords there.
func (s *Service) opaqueID(email string) string {
	mac := hmac.New(sha256.New, s.opaqueKey)
	mac.Write([]byte(email))
	return "unknown-" + hex.EncodeToString(mac.Sum(nil)[:16])
}

// newRefreshToken returns 256 random bits as text, and the hash under which they are stored.
func newRefreshToken() (token string, hash []byte) {
	raw := make([]byte, 32)
	rand.Read(raw) // never fails: it ends the process instead
	token = base64.RawURLEncoding.EncodeToString(raw)
	return token, hashToken(token)
}

func hashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}
