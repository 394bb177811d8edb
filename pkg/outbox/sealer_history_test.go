// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// The three one-statement forms of sealing that look right and are not: one
// statement has one snapshot, taken before it waits for the ledger row.
const (
	// renumbers: the waiter wakes with the new head and its old list.
	sealRenumbering = `
WITH l AS (SELECT ledger_id, head FROM audit_ledger FOR UPDATE),
p AS (SELECT event_id, row_number() OVER (ORDER BY append_no) AS n
      FROM (SELECT event_id, append_no FROM audit_outbox WHERE ledger_seq IS NULL ORDER BY append_no LIMIT 20) u),
s AS (UPDATE audit_outbox o SET ledger_id = l.ledger_id, ledger_seq = l.head + p.n FROM l, p WHERE o.event_id = p.event_id RETURNING 1)
UPDATE audit_ledger SET head = l.head + (SELECT count(*) FROM s) FROM l`
	// duplicates and holes: row_number counts what the waiter then skips.
	sealDuplicating = `
WITH l AS (SELECT ledger_id, head FROM audit_ledger FOR UPDATE),
p AS (SELECT event_id, row_number() OVER (ORDER BY append_no) AS n
      FROM (SELECT event_id, append_no FROM audit_outbox WHERE ledger_seq IS NULL ORDER BY append_no LIMIT 20) u),
s AS (UPDATE audit_outbox o SET ledger_id = l.ledger_id, ledger_seq = l.head + p.n FROM l, p
      WHERE o.event_id = p.event_id AND o.ledger_seq IS NULL RETURNING 1)
UPDATE audit_ledger SET head = l.head + (SELECT count(*) FROM s) FROM l`
	// inverts: pages are taken in one order and numbered in another.
	sealInverting = `
WITH p AS MATERIALIZED (SELECT event_id, append_no FROM audit_outbox WHERE ledger_seq IS NULL ORDER BY append_no LIMIT 3 FOR UPDATE SKIP LOCKED),
n AS MATERIALIZED (SELECT event_id, row_number() OVER (ORDER BY append_no) AS n, pg_sleep(random() * 0.002) FROM p),
l AS (SELECT ledger_id, head FROM audit_ledger WHERE (SELECT count(*) FROM n) >= 0 FOR UPDATE),
s AS (UPDATE audit_outbox o SET ledger_id = l.ledger_id, ledger_seq = l.head + n.n FROM l, n WHERE o.event_id = n.event_id RETURNING 1)
UPDATE audit_ledger SET head = l.head + (SELECT count(*) FROM s) FROM l`
)

// history is one random run: writers over a few contended rows, some of which
// roll back, one transaction held open from before the first to after the last
// write, and two sealers.
type history struct {
	writers, writes int
	seal            func(ctx context.Context, db *pgxpool.Pool, worker int) error
}

const rowsOfHistory = 6

// run returns what is wrong with the numbers that came out of it.
func (h history) run(t *testing.T, db *testdb.DB, seed uint64) error {
	t.Helper()
	setup := fmt.Sprintf("CREATE TABLE IF NOT EXISTS widgets (n int PRIMARY KEY, id uuid NOT NULL DEFAULT gen_random_uuid(), version bigint NOT NULL DEFAULT 0);"+
		"GRANT ALL ON widgets TO auth_service; INSERT INTO widgets (n) SELECT generate_series(0, %d) ON CONFLICT DO NOTHING", rowsOfHistory)
	if _, err := db.Super.Exec(t.Context(), setup); err != nil {
		t.Fatal(err)
	}
	held, err := db.Service.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := changeWidget(t.Context(), held, rowsOfHistory); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sealers, writers sync.WaitGroup
	faults := make(chan error, 2)
	for worker := range 2 {
		sealers.Go(func() {
			for ctx.Err() == nil {
				if err := h.seal(ctx, db.Service, worker); err != nil && ctx.Err() == nil {
					faults <- err
					return
				}
			}
		})
	}
	for w := range h.writers {
		rng := rand.New(rand.NewPCG(seed, uint64(w)))
		writers.Go(func() {
			for range h.writes {
				if err := h.write(t.Context(), db.Service, rng); err != nil {
					t.Errorf("write: %v", err)
				}
			}
		})
	}
	writers.Wait()
	if err := held.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	inTx(t, db.Service, func(tx pgx.Tx) error { return changeWidget(t.Context(), tx, rowsOfHistory) }) // must not pass the slow one
	limit := time.Now().Add(10 * time.Second)
	for len(faults) == 0 && time.Now().Before(limit) && one[bool](t, db.Super, "SELECT EXISTS (SELECT FROM audit_outbox WHERE ledger_seq IS NULL)") {
		pause(5 * time.Millisecond)
	}
	cancel()
	sealers.Wait()
	select {
	case err := <-faults:
		return fmt.Errorf("sealing failed: %w", err)
	default:
		return faultsOfNumbers(t, db.Super)
	}
}

var errRolledBack = errors.New("rolled back on purpose")

func (h history) write(ctx context.Context, db *pgxpool.Pool, rng *rand.Rand) error {
	err := tryTx(ctx, db, func(tx pgx.Tx) error {
		if err := changeWidget(ctx, tx, rng.IntN(rowsOfHistory)); err != nil {
			return err
		}
		if rng.IntN(4) == 0 {
			pause(time.Duration(rng.IntN(2000)) * time.Microsecond)
		}
		if rng.IntN(6) == 0 {
			return errRolledBack
		}
		return nil
	})
	if errors.Is(err, errRolledBack) {
		return nil
	}
	return err
}

// pause lets other goroutines of the history go on.
func pause(d time.Duration) { <-time.After(d) }

// changeWidget gives row n its next version and records it.
func changeWidget(ctx context.Context, tx pgx.Tx, n int) error {
	e := outboxtest.Event()
	e.OccurTime = timestamppb.Now()
	if err := tx.QueryRow(ctx, "UPDATE widgets SET version = version + 1 WHERE n = $1 RETURNING id::text, version", n).
		Scan(&e.Resource.Id, &e.Resource.Version); err != nil {
		return err
	}
	return outbox.Append(ctx, tx, e)
}

// faultsOfNumbers checks the promise: dense from 1 to head, each once, and for each resource in the order of its versions.
func faultsOfNumbers(t *testing.T, db *pgxpool.Pool) error {
	t.Helper()
	for fault, sql := range map[string]string{
		"events without a number":   "SELECT count(*) FROM audit_outbox WHERE ledger_seq IS NULL",
		"duplicate numbers":         "SELECT count(*) - count(DISTINCT ledger_seq) FROM audit_outbox WHERE ledger_seq IS NOT NULL",
		"holes":                     "SELECT coalesce(max(ledger_seq), 0) - count(DISTINCT ledger_seq) FROM audit_outbox",
		"numbers from the head off": "SELECT abs(head - (SELECT coalesce(max(ledger_seq), 0) FROM audit_outbox)) FROM audit_ledger",
		"inversions": "SELECT count(*) FROM (SELECT resource_version - lag(resource_version) OVER (PARTITION BY resource_id ORDER BY ledger_seq) AS step " +
			"FROM audit_outbox) s WHERE step <> 1",
	} {
		if n := one[int](t, db, sql); n != 0 {
			return fmt.Errorf("%d %s", n, fault)
		}
	}
	return nil
}

// faultsOfTree checks the promise: the ledger row holds the tree over all numbers, in their order.
func faultsOfTree(t *testing.T, db *pgxpool.Pool) error {
	t.Helper()
	rows, err := db.Query(t.Context(), "SELECT event_id, payload FROM audit_outbox WHERE ledger_seq IS NOT NULL ORDER BY ledger_seq")
	if err != nil {
		t.Fatal(err)
	}
	leaves, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]byte, error) {
		var id uuid.UUID
		var payload []byte
		err := row.Scan(&id, &payload)
		leaf := sha256.Sum256(slices.Concat([]byte{0}, id[:], payload))
		return leaf[:], err
	})
	if err != nil {
		t.Fatal(err)
	}
	size := one[int](t, db, "SELECT tree_size FROM audit_ledger")
	if size != len(leaves) {
		return fmt.Errorf("a tree of %d leaves for %d numbers", size, len(leaves))
	}
	if got, want := one[[][]byte](t, db, "SELECT compact_range FROM audit_ledger"), subtrees(leaves); !cmp.Equal(got, want, cmpopts.EquateEmpty()) {
		return fmt.Errorf("the tree's compact range is %x, want %x", got, want)
	}
	return nil
}

// subtrees returns the roots of the full subtrees of a tree, the largest first, straight from the definition (RFC 6962 2.1).
func subtrees(leaves [][]byte) [][]byte {
	if len(leaves) == 0 {
		return nil
	}
	n := 1 << (bits.Len(uint(len(leaves))) - 1)
	level := slices.Clone(leaves[:n])
	for ; len(level) > 1; level = level[:len(level)/2] {
		for i := range len(level) / 2 {
			node := sha256.Sum256(slices.Concat([]byte{1}, level[2*i], level[2*i+1]))
			level[i] = node[:]
		}
	}
	return append(level, subtrees(leaves[n:])...)
}

// The numbers are dense and in commit order for each resource, under writers that
// roll back, a transaction that is held open, and two sealers (F1, BC-01, BC-02, BC-21);
// and the tree over them is that of RFC 6962.
func TestNumbersAreDenseAndInCommitOrder(t *testing.T) {
	t.Parallel()
	db := testdb.New(t, testdb.Auth).WithoutGuard(t)
	var sealers [2]*outbox.Sealer
	for i := range sealers {
		s, err := outbox.NewSealer(db.Service, outbox.SealerOptions{Rows: 20})
		if err != nil {
			t.Fatal(err)
		}
		sealers[i] = s
	}
	h := history{writers: 20, writes: 30, seal: func(ctx context.Context, _ *pgxpool.Pool, worker int) error {
		_, _, _, err := sealers[worker].Seal(ctx, nil)
		return err
	}}
	for round := range 3 {
		seed := rand.Uint64()
		if err := h.run(t, db, seed); err != nil {
			t.Fatalf("round %d, seed %d: %v", round, seed, err)
		}
		if err := faultsOfTree(t, db.Super); err != nil {
			t.Fatalf("round %d, seed %d: %v", round, seed, err)
		}
	}
	if n := one[int](t, db.Super, "SELECT head FROM audit_ledger"); n < 3*20*15 {
		t.Errorf("the history had %d events only", n)
	}
}

// The property test catches the three broken forms: it can fail.
func TestOneStatementSealsAreCaught(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]string{
		"renumbering": sealRenumbering, "duplicating": sealDuplicating, "inverting": sealInverting,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.New(t, testdb.Auth).WithoutGuard(t)
			if _, err := db.Super.Exec(t.Context(), "DROP TRIGGER audit_outbox_number_once ON audit_outbox; DROP INDEX audit_outbox_number_key"); err != nil {
				t.Fatal(err) // the form must fail by itself, not by the database's second line
			}
			h := history{writers: 8, writes: 40, seal: func(ctx context.Context, db *pgxpool.Pool, _ int) error {
				_, err := db.Exec(ctx, form)
				var e *pgconn.PgError
				if errors.As(err, &e) && e.Code == "40P01" {
					return nil
				}
				return err
			}}
			for round := range 20 {
				if err := h.run(t, db, uint64(round)); err != nil {
					t.Logf("caught in round %d: %v", round, err)
					return
				}
			}
			t.Error("twenty histories did not catch it")
		})
	}
}
