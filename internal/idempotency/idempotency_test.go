// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/config"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/testdb"
	appv1 "github.com/counterfoil/counterfoil/proto/counterfoil/app/v1"
)

const secret = config.Secret("a secret of sixteen bytes or more")

func key(t *testing.T, principal, method, id string, body proto.Message) idempotency.Key {
	t.Helper()
	h, err := idempotency.NewHasher(secret)
	must(t, err)
	k, err := h.Key(principal, method, id, body)
	must(t, err)
	return k
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func body(slug string) proto.Message {
	return &appv1.CreateProjectRequest{Project: &appv1.Project{Slug: slug}}
}

// answer is one business transaction under k.
func answer(ctx context.Context, db *testdb.DB, k idempotency.Key, r idempotency.Result) error {
	return pgdb.InTx(ctx, db.Service, func(tx pgx.Tx) error {
		var batch pgx.Batch
		k.Queue(&batch, r)
		batch.Queue("SELECT 1")
		return tx.SendBatch(ctx, &batch).Close()
	})
}

// TestRecall: a call is known once its transaction committed, by the same caller, method, id and body, and not before.
func TestRecall(t *testing.T) {
	t.Parallel()
	db, ctx, id := testdb.New(t, testdb.App), t.Context(), uuid.NewString()
	k := key(t, "ada", "Create", id, body("orion"))
	wanted := idempotency.Result{Name: "projects/1", Version: 3}

	undone := errors.New("business error")
	err := pgdb.InTx(ctx, db.Service, func(tx pgx.Tx) error {
		must(t, k.Insert(ctx, tx, wanted))
		return undone
	})
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	if _, seen, err := k.Recall(ctx, db.Service); seen || err != nil {
		t.Errorf("a call that was rolled back is remembered: %v, %v", seen, err)
	}

	must(t, answer(ctx, db, k, wanted))
	if got, seen, err := k.Recall(ctx, db.Service); got != wanted || !seen || err != nil {
		t.Errorf("recalled %v, %v, %v", got, seen, err)
	}
	if err := answer(ctx, db, k, wanted); !pgdb.IsUnique(err, "requests_pkey") {
		t.Errorf("a repeat was let through: %v", err)
	}
	for name, other := range map[string]idempotency.Key{
		"another caller": key(t, "bob", "Create", id, body("orion")),
		"another method": key(t, "ada", "Update", id, body("orion")),
		"another id":     key(t, "ada", "Create", uuid.NewString(), body("orion")),
	} {
		if _, seen, err := other.Recall(ctx, db.Service); seen || err != nil {
			t.Errorf("%s is taken for a repeat: %v, %v", name, seen, err)
		}
	}
	_, seen, err := key(t, "ada", "Create", id, body("vega")).Recall(ctx, db.Service)
	if seen || apperr.ReasonOf(err) != "REQUEST_ID_REUSED" || apperr.KindOf(err) != apperr.KindInvalidArgument {
		t.Errorf("another body: %v, %v", seen, err)
	}
}

// TestOneOfManyCopies: copies of a call that run at once wait for each other, and one commits.
func TestOneOfManyCopies(t *testing.T) {
	t.Parallel()
	db, k := testdb.New(t, testdb.App), key(t, "ada", "Create", uuid.NewString(), body("orion"))
	var committed atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			switch err := answer(t.Context(), db, k, idempotency.Result{Name: "x", Version: 1}); {
			case err == nil:
				committed.Add(1)
			case !pgdb.IsUnique(err, "requests_pkey"):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := committed.Load(); n != 1 {
		t.Errorf("%d copies committed", n)
	}
}

// TestNoRequestID: the zero key does nothing, twice.
func TestNoRequestID(t *testing.T) {
	t.Parallel()
	db, k := testdb.New(t, testdb.App), key(t, "ada", "Create", "", body("orion"))
	if !k.IsZero() {
		t.Fatalf("key is %v", k)
	}
	for range 2 {
		must(t, answer(t.Context(), db, k, idempotency.Result{}))
		must(t, pgdb.InTx(t.Context(), db.Service, func(tx pgx.Tx) error { return k.Insert(t.Context(), tx, idempotency.Result{}) }))
		if _, seen, err := k.Recall(t.Context(), db.Service); seen || err != nil {
			t.Errorf("recalled %v, %v", seen, err)
		}
	}
}

// TestHash: the hash depends on the whole body and on the secret, and is no bare hash that could be guessed at.
func TestHash(t *testing.T) {
	t.Parallel()
	if _, err := idempotency.NewHasher("short"); err == nil {
		t.Error("a short secret was accepted")
	}
	id := uuid.NewString()
	first, again, other := key(t, "a", "m", id, body("x")), key(t, "a", "m", id, body("x")), key(t, "a", "m", id, body("y"))
	if !bytes.Equal(first.BodyHash, again.BodyHash) || bytes.Equal(first.BodyHash, other.BodyHash) {
		t.Error("the hash is not that of the body")
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(body("x"))
	must(t, err)
	if bare := sha256.Sum256(raw); bytes.Equal(first.BodyHash, bare[:]) {
		t.Error("the hash has no key")
	}
	h, err := idempotency.NewHasher("another secret of sixteen bytes")
	must(t, err)
	if k, err := h.Key("a", "m", id, body("x")); err != nil || bytes.Equal(k.BodyHash, first.BodyHash) {
		t.Errorf("the hash does not depend on the secret: %v", err)
	}
	if _, err := h.Key("a", "m", "not a uuid", body("x")); apperr.KindOf(err) != apperr.KindInvalidArgument {
		t.Errorf("a request id that is no UUID: %v", err)
	}
}

// TestPrune deletes what is older than a day, in pages, and nothing else.
func TestPrune(t *testing.T) {
	t.Parallel()
	db, ctx := testdb.New(t, testdb.App), t.Context()
	_, err := db.Super.Exec(ctx, `
		INSERT INTO requests (principal, method, request_id, body_hash, result_name, result_version, created_at)
		SELECT 'ada', 'm', gen_random_uuid(), '', '', 1, clock_timestamp() - CASE WHEN i <= 2500 THEN interval '25 hours' ELSE interval '23 hours' END
		FROM generate_series(1, 2510) i`)
	must(t, err)
	if n, err := idempotency.Prune(ctx, db.Service, idempotency.Keep, 100); n != 100 || err != nil {
		t.Errorf("pruned %d, %v, want a page of 100", n, err)
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- idempotency.Pruner{DB: db.Service, Logger: slog.New(slog.DiscardHandler), Every: time.Millisecond}.Run(ctx)
	}()
	left := -1
	for deadline := time.Now().Add(20 * time.Second); left != 10 && time.Now().Before(deadline); {
		must(t, db.Super.QueryRow(t.Context(), "SELECT count(*) FROM requests").Scan(&left))
	}
	stop()
	must(t, <-done)
	if left != 10 {
		t.Errorf("%d request ids are left, want the 10 of the last day", left)
	}
}
