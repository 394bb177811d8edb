// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	"github.com/counterfoil/counterfoil/pkg/audit"
)

// SealerOptions configures a Sealer. The zero value works.
type SealerOptions struct {
	// Rows bounds a pass. Default 500.
	Rows int
	// Bytes bounds the payloads of a pass; a first event over it is sealed alone. Default 8 MiB.
	Bytes int64
	// FullScan is how often a pass looks from the start instead of from its mark, and so
	// finds what a failover or a restored copy numbered anew below it. Default 1 min.
	FullScan time.Duration
	// Now is this process's clock, for FullScan alone. Default time.Now.
	Now func() time.Time
}

// Sealer gives committed events the next numbers of the owner's ledger: dense,
// and for each resource in commit order. Writers never wait for it, a rollback
// leaves no hole, and a slow transaction is numbered when it commits (BC-01)
// and holds back nobody (BC-02). The ledger's Merkle tree grows with the numbers,
// in the same transaction.
//
// Any number of sealers may work on one database; they take turns. A crash at
// any point leaves a pass done or undone as a whole.
type Sealer struct {
	db *pgxpool.Pool
	o  SealerOptions

	mu   sync.Mutex
	mark sealMark
	full time.Time // when the mark was last forgotten
}

// NewSealer returns a Sealer for the ledger in db. It does no I/O.
func NewSealer(db *pgxpool.Pool, o SealerOptions) (*Sealer, error) {
	if db == nil {
		return nil, errors.New("outbox: a Sealer needs a database")
	}
	if o.Rows < 0 || o.Bytes < 0 || o.FullScan < 0 {
		return nil, errors.New("outbox: SealerOptions: Rows, Bytes and FullScan must not be negative")
	}
	o.Rows = defaulted(o.Rows, defaultRows)
	o.Bytes = defaulted(o.Bytes, defaultBytes)
	o.FullScan = defaulted(o.FullScan, time.Minute)
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Sealer{db: db, o: o}, nil
}

// Seal is one pass: it numbers up to a page of committed events in the order of
// their INSERT. With a claim the same update also takes the page for it, and the
// claimed page is returned. It returns how many events it numbered, and whether
// there may be more.
//
// Claim only if no older numbered entry waits: claims are taken in number order.
// If ctx ends in the middle of the commit, the pass may have taken effect.
func (s *Sealer) Seal(ctx context.Context, claim *ClaimRequest) (page Page, sealed int, more bool, err error) {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return Page{}, 0, false, fmt.Errorf("seal: %w", err)
	}
	defer conn.Release()
	msgs, more, err := s.pass(ctx, conn, claim)
	if err != nil || len(msgs) == 0 {
		rollback(ctx, conn)
	}
	if err != nil {
		return Page{}, 0, false, fmt.Errorf("seal: %w", err)
	}
	if len(msgs) > 0 {
		failpoint.Hit(failpoint.OutboxSealed)
	}
	if claim == nil {
		return Page{}, len(msgs), more, nil
	}
	return Page{Token: claim.Token, Messages: msgs}, len(msgs), more, nil
}

// pass is the sealing transaction. If it finds nothing it is left open, to be rolled back.
func (s *Sealer) pass(ctx context.Context, conn *pgxpool.Conn, claim *ClaimRequest) ([]Message, bool, error) {
	rows, bytes := s.o.Rows, s.o.Bytes
	if claim != nil {
		rows, bytes = min(rows, claim.Rows), min(bytes, claim.Bytes)
	}

	// 1. Lock the ledger; then, in a new statement and so a new snapshot, read.
	l, msgs, err := s.read(ctx, conn, rows, bytes)
	if err != nil {
		return nil, false, err
	}
	if !l.locked {
		// What was read all the same was committed meanwhile: the next pass has it.
		return nil, len(msgs) > 0, s.expectLedger(ctx, conn, len(msgs))
	}

	if l.tree.size() < l.head {
		return nil, true, s.fold(ctx, conn, l, bytes)
	}

	// 2. Number, and extend the tree.
	for i := range msgs {
		msgs[i].LedgerID, msgs[i].LedgerSeq = l.id, l.head+int64(i)+1
		if claim != nil {
			msgs[i].ClaimCount = 1
		}
	}
	if err := l.tree.add(msgs); err != nil {
		return nil, false, err
	}

	// 3. Write numbers, head and tree, each exactly as read, and commit; anything else rolls back.
	if len(msgs) > 0 {
		if err := s.write(ctx, conn, l, msgs, claim); err != nil {
			return nil, false, err
		}
	}
	// The next event, of at most audit.MaxPayload bytes, may not have fitted any more.
	more := len(msgs) == rows || len(msgs) > 0 && l.bytes+audit.MaxPayload > bytes
	last := int64(0)
	if len(msgs) > 0 {
		last = msgs[len(msgs)-1].AppendNo
	}
	s.mu.Lock()
	s.mark.pass(l.began, l.xid, l.xmin, last, !more)
	s.mu.Unlock()
	return msgs, more, nil
}

// ledger is the ledger row, and what the pass must know of its snapshot.
type ledger struct {
	locked bool // there is something to number
	id     uuid.UUID
	head   int64
	tree   tree
	began  int64 // the mark's candidate when the pass began
	xid    int64 // of the sealing transaction
	xmin   int64 // the oldest transaction still running when the page was read
	bytes  int64 // payloads read
}

func (s *Sealer) read(ctx context.Context, conn *pgxpool.Conn, rows int, bytes int64) (ledger, []Message, error) {
	var l ledger
	var msgs []Message
	mark := s.markNow()
	l.began = mark.candidate
	batch := &pgx.Batch{}
	batch.Queue(sqlBegin)
	batch.Queue(sqlSync)
	batch.Queue(sqlLockLedger, mark.safe).Query(func(found pgx.Rows) error {
		for found.Next() {
			var size int64
			var hashes [][]byte
			if err := found.Scan(&l.id, &l.head, &size, &hashes, &l.xid); err != nil {
				return err
			}
			var err error
			if l.tree, err = newTree(size, hashes); err != nil {
				return fmt.Errorf("audit_ledger: %w", err)
			}
			l.locked = true
		}
		return found.Err()
	})
	// Other databases' transactions hold xmin back too: look closer if one did.
	bound, writers := int64(0), true
	if mark.heldBack {
		bound = mark.bound
		batch.Queue(sqlOlderWriters, bound).QueryRow(func(row pgx.Row) error { return row.Scan(&writers) })
	}
	batch.Queue(sqlReadUnsealed, mark.safe, rows, bytes).Query(func(found pgx.Rows) error {
		for found.Next() {
			var m Message
			if err := found.Scan(&m.EventID, &m.AppendNo, &m.EventType, &m.SchemaVersion, &m.Payload, &m.Traceparent,
				&m.Tracestate, &m.Status, &m.MaxAttempts, &l.xmin); err != nil {
				return err
			}
			l.bytes += int64(len(m.Payload))
			msgs = append(msgs, m)
		}
		return found.Err()
	})
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return ledger{}, nil, fmt.Errorf("read unsealed events: %w", err)
	}
	if !writers {
		l.xmin = max(l.xmin, bound)
	}
	return l, msgs, nil
}

// expectLedger tells a database without a ledger from one in which nothing was to be done a moment ago.
func (s *Sealer) expectLedger(ctx context.Context, conn *pgxpool.Conn, found int) error {
	if found == 0 {
		return nil
	}
	var there bool
	if err := conn.QueryRow(ctx, sqlHasLedger).Scan(&there); err != nil {
		return fmt.Errorf("look for the ledger: %w", err)
	}
	if !there {
		return errors.New("audit_ledger has no row: the migrations make it")
	}
	return nil
}

func (s *Sealer) write(ctx context.Context, conn *pgxpool.Conn, l ledger, msgs []Message, claim *ClaimRequest) error {
	ids, places := make([][16]byte, len(msgs)), make([]int64, len(msgs))
	for i := range msgs {
		ids[i], places[i] = msgs[i].EventID, msgs[i].AppendNo // in the order of append_no
	}
	var owner *string
	var token *uuid.UUID
	var lease *int64
	if claim != nil {
		us := claim.Lease.Microseconds()
		owner, token, lease = &claim.Owner, &claim.Token, &us
	}
	batch := &pgx.Batch{}
	batch.Queue(sqlNumber, l.id, l.head, ids, owner, token, lease, places, l.tree.compactRange())
	batch.Queue(sqlCommit)
	err := conn.SendBatch(ctx, batch).Close()
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code == "23502" && refusal.ColumnName == "head" {
		return fmt.Errorf("the %d events read are not what there is to number: someone changes the outbox under the lock", len(msgs))
	}
	if err != nil {
		return fmt.Errorf("write numbers: %w", err)
	}
	return nil
}

// foldRows is how many leaves a pass adds to a tree that is behind its ledger's numbers.
const foldRows = 5000

// fold adds to the tree a page of what was numbered before there was a tree, and
// commits. Numbering goes on when the tree has every number.
func (s *Sealer) fold(ctx context.Context, conn *pgxpool.Conn, l ledger, bytes int64) error {
	next := l.tree.size() + 1
	rows, err := conn.Query(ctx, sqlReadNumbered, l.id, next, foldRows, bytes)
	if err != nil {
		return fmt.Errorf("read numbered events: %w", err)
	}
	msgs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Message, err error) {
		return m, row.Scan(&m.LedgerSeq, &m.EventID, &m.Payload)
	})
	if err != nil {
		return fmt.Errorf("read numbered events: %w", err)
	}
	for i := range msgs {
		if msgs[i].LedgerSeq != next+int64(i) {
			msgs = msgs[:i]
			break
		}
	}
	if len(msgs) == 0 {
		return fmt.Errorf("number %d of ledger %s is not in audit_outbox, and the tree does not cover it yet: restore the row", next, l.id)
	}
	if err := l.tree.add(msgs); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	batch.Queue(sqlFold, l.tree.size(), l.tree.compactRange())
	batch.Queue(sqlCommit)
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write the tree: %w", err)
	}
	return nil
}

// sealMark is an append_no up to which every event is numbered or rolled back,
// so that a pass need not walk the index entries of what is numbered, which a
// held snapshot keeps from being removed.
//
// It may move to the last number of a pass only when nobody can still commit
// below it. A transaction draws its id before its append_no, so whoever drew
// less is older than a transaction that begins now (bound); once no writer
// older than that runs, and a page has taken what they left, nothing can come.
// Moving it at once would let version n+1 of a row pass a slow version n.
type sealMark struct {
	safe      int64
	candidate int64 // 0: none
	bound     int64 // 0: not known before the next pass
	heldBack  bool  // xmin alone did not tell a pass that the bound is reached
}

// pass takes note of a committed pass. began is the candidate when it began: one that
// has waited for the ledger since then drew its id too early to bound another. xmin is
// the oldest transaction that could still commit below, last the last append_no of the
// page (0: it was empty), and complete is true if the page held all that was committed.
func (m *sealMark) pass(began, xid, xmin, last int64, complete bool) {
	if m.candidate != 0 && m.bound == 0 && m.candidate == began {
		m.bound = xid
	}
	m.heldBack = xmin < m.bound
	if m.bound != 0 && xmin >= m.bound && (complete || last >= m.candidate) {
		m.safe = max(m.safe, m.candidate)
		m.candidate, m.bound = 0, 0
	}
	if m.candidate == 0 && last != 0 {
		m.candidate = last
	}
}

// markNow returns the mark, and forgets it now and then: the numbers that it speaks
// of can begin again lower, on a standby that was promoted without the newest of them.
func (s *Sealer) markNow() sealMark {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.o.Now(); now.Sub(s.full) >= s.o.FullScan {
		s.mark, s.full = sealMark{}, now
	}
	return s.mark
}
