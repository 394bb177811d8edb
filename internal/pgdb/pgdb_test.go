// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package pgdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/config"
)

func TestOpenSettings(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	cfg.ApplicationName = "auth"
	db, movers := pool(t, cfg), pool(t, MoverConfig(cfg))
	for name, want := range map[string][2]string{
		"application_name": {"auth", "auth-mover"},
		"timezone":         {"UTC", "UTC"},
	} {
		got := [2]string{one[string](t, db, "SHOW "+name), one[string](t, movers, "SHOW "+name)}
		if got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if db.Config().MaxConns != defaultMaxConns || len(cfg.RuntimeParams) != 0 {
		t.Errorf("pool of %d, parameters %v", db.Config().MaxConns, cfg.RuntimeParams)
	}
}

func TestOpenHidesAMalformedURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://u:hunter2%zz@h/db", "host=h password=hunter2 port=x", "postgres://u:hunter2@h:port/db"} {
		_, err := Open(t.Context(), Config{URL: config.Secret(url)})
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// A service starts without its database, is unready, and becomes ready.
func TestOpenDoesNotNeedTheServer(t *testing.T) {
	t.Parallel()
	db := pool(t, Config{URL: "postgres://u@127.0.0.1:1/db", ConnectTimeout: time.Second})
	err := Ping(t.Context(), db)
	if err == nil || !Trouble(err) {
		t.Errorf("got %v", err)
	}
}

// BC-13: the pool must not keep a session that a failover made read-only.
func TestReadOnlySessionIsNotReused(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	cfg.MaxConns = 1
	db, admin := pool(t, cfg), pool(t, cfg)
	exec(t, db, "CREATE TABLE t (n int)")
	pid := one[int32](t, db, "SELECT pg_backend_pid()")
	insert := func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (1)"); return err }
	// As after a switchover, the setting is the session's: only a new connection is writable again.
	exec(t, db, "SET default_transaction_read_only = on")
	err := InTx(t.Context(), db, insert)
	if Code(err) != readOnlyTransaction || !Trouble(err) {
		t.Fatalf("got %v", err)
	}
	if err := InTx(t.Context(), db, insert); err != nil {
		t.Errorf("the pool did not recover: %v", err)
	}
	if again := one[int32](t, db, "SELECT pg_backend_pid()"); again == pid {
		t.Error("the read-only session was used again")
	}
	exec(t, db, "SET default_transaction_read_only = on")
	if _, err := db.Exec(t.Context(), "INSERT INTO t VALUES (2)"); Code(err) != readOnlyTransaction {
		t.Fatalf("got %v", err)
	}
	exec(t, db, "INSERT INTO t VALUES (2)") // outside InTx alike
	if n := one[int](t, admin, "SELECT count(*) FROM t"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

// BC-12: a migration that changes a column's type makes cached plans invalid on every connection; nobody may notice.
func TestMigrationDoesNotBreakRunningReplicas(t *testing.T) {
	t.Parallel()
	cfg := database(t)
	cfg.MaxConns = 20
	db, admin := pool(t, cfg), pool(t, cfg)
	exec(t, admin, "CREATE TABLE t (id int, v int)")
	exec(t, admin, "INSERT INTO t VALUES (1, 7)")
	const read = "SELECT v FROM t WHERE id = $1"
	prime := func() { // fills the statement cache of every connection
		conns := make([]interface{ Release() }, 0, cfg.MaxConns)
		for range cfg.MaxConns {
			c, err := db.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Exec(t.Context(), read, 1); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			c.Release()
		}
	}
	prime()
	exec(t, admin, "ALTER TABLE t ALTER v TYPE bigint")
	if _, err := db.Exec(t.Context(), read, 1); !isStalePlan(err) || Trouble(err) {
		t.Fatalf("got %v: without a stale plan the test shows nothing", err)
	}
	var v int64
	for range 3 * cfg.MaxConns {
		if err := InTx(t.Context(), db, func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), read, 1).Scan(&v) }); err != nil || v != 7 {
			t.Fatalf("in a transaction: %d, %v", v, err)
		}
	}
	prime()
	exec(t, admin, "ALTER TABLE t ALTER v TYPE int")
	for range 3 * cfg.MaxConns {
		if err := Retry(t.Context(), func() error { return db.QueryRow(t.Context(), read, 1).Scan(&v) }); err != nil || v != 7 {
			t.Fatalf("outside a transaction: %d, %v", v, err)
		}
	}
}

func TestSpansShowNoParameters(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	cfg := database(t)
	cfg.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	ctx, span := cfg.TracerProvider.Tracer("test").Start(t.Context(), "parent") // without one, nothing is traced
	if _, err := pool(t, cfg).Exec(ctx, "SELECT $1::text", "hunter2"); err != nil {
		t.Fatal(err)
	}
	span.End()
	if len(spans.Ended()) < 2 {
		t.Fatal("no span of the statement")
	}
	if all := fmt.Sprint(tracetest.SpanStubsFromReadOnlySpans(spans.Ended())); strings.Contains(all, "hunter2") {
		t.Errorf("a parameter is in a span: %s", all)
	}
	if MoverConfig(cfg).TracerProvider != nil {
		t.Error("movers make spans")
	}
}

func TestTrouble(t *testing.T) {
	t.Parallel()
	pg := func(code string) error { return fmt.Errorf("x: %w", &pgconn.PgError{Code: code}) }
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"nil": {nil, false}, "plain": {errors.New("x"), false}, "no rows": {pgx.ErrNoRows, false},
		"connection": {pg("08006"), true}, "serialization": {pg("40001"), true}, "deadlock": {pg("40P01"), true},
		"disk full": {pg("53100"), true}, "too many connections": {pg("53300"), true}, "shutdown": {pg("57P01"), true},
		"cancelled by the server": {pg("57014"), true}, "io error": {pg("58030"), true}, "lock time-out": {pg("55P03"), true},
		"read-only": {pg("25006"), true}, "idle in transaction": {pg("25P03"), true},
		"unique": {pg("23505"), false}, "syntax": {pg("42601"), false}, "permission": {pg("42501"), false},
		"aborted transaction": {pg("25P02"), false}, "object in use": {pg("55006"), false}, "raised": {pg("P0001"), false},
		"network": {fmt.Errorf("read: %w", refused), true}, "end of file": {fmt.Errorf("x: %w", io.ErrUnexpectedEOF), true},
		"closed socket": {net.ErrClosed, true}, "unknown commit": {&commitUnknownError{context.DeadlineExceeded}, true},
		"caller cancelled": {fmt.Errorf("x: %w", context.Canceled), false}, "caller's deadline": {fmt.Errorf("x: %w", context.DeadlineExceeded), false},
	} {
		if got := Trouble(tc.err); got != tc.want {
			t.Errorf("%s: Trouble(%v) = %t", name, tc.err, got)
		}
		got := AppError(tc.err)
		if (apperr.KindOf(got) == apperr.KindUnavailable) != tc.want || tc.err != nil && !errors.Is(got, tc.err) {
			t.Errorf("%s: AppError gives %v", name, got)
		}
	}
}

func TestAppErrorKeepsAKind(t *testing.T) {
	t.Parallel()
	known := apperr.Aborted("ETAG_MISMATCH", "changed").WithCause(&pgconn.PgError{Code: serializationFailure})
	if got := AppError(known); !errors.Is(got, known) || apperr.KindOf(got) != apperr.KindAborted {
		t.Errorf("got %v", got)
	}
}

func TestCodeAndConstraint(t *testing.T) {
	t.Parallel()
	db := open(t)
	exec(t, db, "CREATE TABLE p (id int CONSTRAINT p_pkey PRIMARY KEY, n int CONSTRAINT p_n_check CHECK (n > 0))")
	exec(t, db, "CREATE TABLE c (p int CONSTRAINT c_p_fkey REFERENCES p)")
	exec(t, db, "INSERT INTO p VALUES (1, 1)")
	type answer struct {
		Code, Constraint           string
		Unique, ForeignKey, Checks bool
	}
	for sql, want := range map[string]answer{
		"INSERT INTO p VALUES (1, 1)":  {"23505", "p_pkey", true, false, false},
		"INSERT INTO p VALUES (2, -1)": {"23514", "p_n_check", false, false, true},
		"INSERT INTO c VALUES (9)":     {"23503", "c_p_fkey", false, true, false},
		"SELECT nothing":               {"42703", "", false, false, false},
	} {
		_, err := db.Exec(t.Context(), sql)
		err = fmt.Errorf("wrapped: %w", err)
		name := ConstraintName(err)
		got := answer{Code(err), name, IsUnique(err, name), IsForeignKey(err, name), IsCheck(err, name)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", sql, diff)
		}
	}
	if Code(errors.New("x")) != "" || ConstraintName(nil) != "" {
		t.Error("an error that is not the server's has a code")
	}
}
