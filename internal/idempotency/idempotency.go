// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Package idempotency makes a repeated call safe: the same request id with the same body changes nothing and records
// nothing a second time, and the same request id with another body is refused.
//
// A Key is written into the table requests by the business transaction itself, before its other writes, so the answer
// is remembered exactly if the change was made. Nothing is remembered of a call that was refused: its repeat is tried
// anew. A key is kept for Keep; a repeat after that is a new call.
//
// No answer is stored, only the name and version of what it was about: the caller builds the answer of a repeat from
// the resource as it is now. The package promises nothing for calls without a request id.
package idempotency

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/config"
)

const (
	// Keep is how long a request id is remembered.
	Keep = 24 * time.Hour

	minSecret  = 16 // bytes
	keyLabel   = "counterfoil request hash v1"
	recallWait = 5 * time.Second
)

const (
	insertSQL = `
		INSERT INTO requests (principal, method, request_id, body_hash, result_name, result_version)
		VALUES ($1, $2, $3, $4, $5, $6)`
	recallSQL = `
		SELECT body_hash, result_name, result_version
		FROM requests
		WHERE principal = $1 AND method = $2 AND request_id = $3`
	pruneSQL = `
		DELETE FROM requests
		WHERE (principal, method, request_id) IN (
			SELECT principal, method, request_id
			FROM requests
			WHERE created_at < clock_timestamp() - $1::interval
			ORDER BY created_at
			LIMIT $2
			FOR UPDATE SKIP LOCKED)`
)

// Hasher makes keys. It is safe for concurrent use.
type Hasher struct {
	key []byte
}

// NewHasher derives the hash's key from secret, which must have at least 16 bytes. Bodies are hashed under a key because
// some hold a password, and a bare hash could be guessed at. After a change of secret, repeats of earlier calls are
// refused as calls with another body.
func NewHasher(secret config.Secret) (*Hasher, error) {
	if len(secret.Reveal()) < minSecret {
		return nil, fmt.Errorf("request hash secret: needs at least %d bytes", minSecret)
	}
	key, err := hkdf.Key(sha256.New, []byte(secret.Reveal()), nil, keyLabel, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive request hash key: %w", err)
	}
	return &Hasher{key: key}, nil
}

// Key returns the key of one call: who calls, which method, the caller's request id and the whole request. An empty
// request id gives the zero Key, which does nothing; one that is not a UUID is an InvalidArgument error.
func (h *Hasher) Key(principal, method, requestID string, body proto.Message) (Key, error) {
	if requestID == "" {
		return Key{}, nil
	}
	id, err := uuid.Parse(requestID)
	if err != nil {
		return Key{}, apperr.InvalidField("request_id", "must be a UUID").WithCause(err)
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		return Key{}, fmt.Errorf("marshal request: %w", err)
	}
	mac := hmac.New(sha256.New, h.key)
	mac.Write(raw)
	return Key{Principal: principal, Method: method, RequestID: id, BodyHash: mac.Sum(nil)}, nil
}

// Key names one call of one caller. The zero Key is a call without a request id.
type Key struct {
	Principal string // opaque id of the caller
	Method    string // full RPC name
	RequestID uuid.UUID
	BodyHash  []byte
}

// IsZero reports whether the call had no request id.
func (k Key) IsZero() bool { return k.RequestID == uuid.Nil }

// Result says what an answered call was about: the name and row version of a resource, never a token or a personal value.
type Result struct {
	Name    string
	Version int64
}

// Queue adds the key to batch; it must be the first write of the transaction. If the call was answered before, the
// batch fails with a unique violation, the transaction rolls back, and Answered tells what the answer was about. If the same
// call is being answered at this moment, the statement waits for its end first.
func (k Key) Queue(batch *pgx.Batch, r Result) {
	if k.IsZero() {
		return
	}
	batch.Queue(insertSQL, k.Principal, k.Method, k.RequestID, k.BodyHash, r.Name, r.Version)
}

// Insert is Queue in a round trip of its own.
func (k Key) Insert(ctx context.Context, tx pgx.Tx, r Result) error {
	if k.IsZero() {
		return nil
	}
	if _, err := tx.Exec(ctx, insertSQL, k.Principal, k.Method, k.RequestID, k.BodyHash, r.Name, r.Version); err != nil {
		return fmt.Errorf("insert request: %w", err)
	}
	return nil
}

// Querier is a pool or a transaction that can read.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Recall returns what the call was about if it was answered before, and false if it was not or has no request id. A
// request id that was used with another body is an InvalidArgument error.
func (k Key) Recall(ctx context.Context, db Querier) (Result, bool, error) {
	if k.IsZero() {
		return Result{}, false, nil
	}
	var hash []byte
	var r Result
	err := db.QueryRow(ctx, recallSQL, k.Principal, k.Method, k.RequestID).Scan(&hash, &r.Name, &r.Version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Result{}, false, nil
	case err != nil:
		return Result{}, false, fmt.Errorf("recall request: %w", err)
	case !hmac.Equal(hash, k.BodyHash):
		const description = "was used before for another request; use a new one for each request and repeat it only unchanged"
		return Result{}, false, apperr.InvalidArgument("REQUEST_ID_REUSED", "request_id "+description,
			apperr.Violation{Field: "request_id", Description: description})
	}
	return r, true, nil
}

// Answered is Recall after the transaction has ended with an error, whichever: a repeat may fail not only on its request
// id, but also on an etag that its first run made stale or on a row that its first run deleted; and when only the reply to
// COMMIT was lost, the answer is here.
//
// It is asked for up to 5 s although the caller may be gone by now: else what its first run did would be recorded as
// refused. An error other than InvalidArgument leaves open whether the call was answered; then nothing may be recorded of it.
func (k Key) Answered(ctx context.Context, db Querier) (Result, bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recallWait)
	defer cancel()
	return k.Recall(ctx, db)
}

// Execer is a pool or a transaction that can write.
type Execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Prune deletes up to limit request ids older than age, oldest first, and returns how many: call it again while it
// returns limit. It skips what another Prune holds.
func Prune(ctx context.Context, db Execer, age time.Duration, limit int) (int64, error) {
	tag, err := db.Exec(ctx, pruneSQL, age, limit)
	if err != nil {
		return 0, fmt.Errorf("prune requests: %w", err)
	}
	return tag.RowsAffected(), nil
}
