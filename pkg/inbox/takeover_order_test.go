// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/pkg/audit"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/inbox"
	"github.com/counterfoil/counterfoil/pkg/inbox/inboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// tracing records the order of what a bridge does to its source.
type tracing struct {
	inbox.Source
	mu    sync.Mutex
	trace []string
	acked []string
	onAck func(ids []string) error
}

func (s *tracing) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, what)
}

func (s *tracing) Ack(ctx context.Context, ids []string) error {
	s.note("ack")
	if s.onAck != nil {
		if err := s.onAck(ids); err != nil {
			return err
		}
	}
	s.acked = append(s.acked, ids...)
	return s.Source.Ack(ctx, ids)
}

// The acknowledgement comes after the commit: when it is sent, the row is there for everyone (U26, U98, BC-61).
func TestTheAcknowledgementFollowsTheCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.add(3)
	src := &tracing{Source: b.stream.Source("a", time.Minute)}
	src.onAck = func([]string) error {
		b.want("rows at the acknowledgement", b.count(`SELECT count(*) FROM consumer_inbox WHERE event_id = ANY ($1)`, ids), 6)
		return nil
	}
	var after []inbox.Takeover
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.Source = src
		o.Acked = func(_ context.Context, tk inbox.Takeover) error { after = append(after, tk); return errBoom }
	})
	b.take(bridge)
	if !slices.Equal(src.trace, []string{"ack"}) || len(after) != 1 || after[0].Received != 3 {
		t.Fatalf("trace %v, after %+v", src.trace, after)
	}
}

// A takeover that fails sends no acknowledgement, and the entry comes again (U26, U34, BC-61).
func TestAFailedTakeoverAcknowledgesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(5)
	b.exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''disk'' USING ERRCODE = ''53100''; END'`)
	b.exec(`CREATE TRIGGER fail BEFORE INSERT ON consumer_inbox FOR EACH STATEMENT EXECUTE FUNCTION fail()`)
	src := &tracing{Source: b.stream.Source("a", time.Minute)}
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) { o.Source = src })
	if _, err := bridge.Once(t.Context()); err == nil {
		t.Fatal("the failure is not reported")
	}
	b.want("acknowledgements", len(src.trace), 0)
	b.want("pending entries", len(b.stream.Pending()), 5)
	b.want("rows", b.count(`SELECT count(*) FROM inbox_events`), 0)
	b.exec(`DROP TRIGGER fail ON consumer_inbox`)
	b.want("taken afterwards", b.take(bridge), 5)
	b.want("rows", b.count(`SELECT count(*) FROM consumer_inbox`), 10)
}

// Trouble that lasts leaves no page behind: each retry begins with the oldest own entries, and takes no
// new ones out of the stream meanwhile.
func TestLastingTroubleLeavesNoPageBehind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(5)
	b.exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''disk'' USING ERRCODE = ''53100''; END'`)
	b.exec(`CREATE TRIGGER fail BEFORE INSERT ON consumer_inbox FOR EACH STATEMENT EXECUTE FUNCTION fail()`)
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) { o.ReclaimEvery = time.Hour })
	for range 4 {
		if _, err := bridge.Once(t.Context()); err == nil {
			t.Fatal("the failure is not reported")
		}
		b.add(1)
	}
	b.want("entries given out meanwhile", len(b.stream.Pending()), 5)
	b.exec(`DROP TRIGGER fail ON consumer_inbox`)
	b.want("taken afterwards", b.take(bridge), 9)
}

// untidy is a source whose stream cannot be tidied.
type untidy struct{ inbox.Source }

func (untidy) Tidy(context.Context) (inbox.Tidied, error) { return inbox.Tidied{}, errBoom }

// A stream that cannot be tidied, for lack of a right, holds up no takeover.
func TestAStreamThatCannotBeTidiedIsTakenOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.Source, o.TidyEvery = untidy{b.stream.Source("a", time.Minute)}, time.Nanosecond
	})
	for range 3 {
		b.add(2)
		n, err := bridge.Once(t.Context())
		if n != 2 || err != nil {
			t.Fatalf("%d taken over, %v; want 2", n, err)
		}
	}
}

// An acknowledgement that was lost brings the entry again; it is recognised and acknowledged (U35, BC-61).
func TestALostAcknowledgementIsRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(4)
	lose := true
	src := &tracing{Source: b.stream.Source("a", time.Minute)}
	src.onAck = func([]string) error {
		if lose {
			return errors.New("connection reset")
		}
		return nil
	}
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) { o.Source = src })
	if _, err := bridge.Once(t.Context()); err == nil {
		t.Fatal("the lost acknowledgement is not reported")
	}
	lose = false
	b.take(bridge)
	b.want("duplicates", int(bridge.Stats().Duplicates), 4)
	b.want("pending entries", len(b.stream.Pending()), 0)
	b.want("rows", b.count(`SELECT count(*) FROM consumer_inbox`), 8)
}

// What another reader left behind is taken over after the idle time (U34, U69, BC-49, BC-51).
func TestEntriesOfADeadReaderAreReclaimed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(20)
	dead := b.stream.Source("dead", time.Minute)
	if err := dead.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := dead.Read(t.Context(), inbox.New, inbox.Limit{Count: 20}); err != nil {
		t.Fatal(err)
	}
	bridge := b.bridge("b")
	b.run(bridge.Run)
	eventually(t, 10*time.Second, func() error {
		if n := b.count(`SELECT count(*) FROM consumer_inbox`); n != 40 || len(b.stream.Pending()) > 0 {
			return errors.New("not yet reclaimed")
		}
		return nil
	})
}

// Deleted entries are counted and acknowledged, so that the pending list drains (T15, BC-38).
func TestEntriesDeletedWhilePendingAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(10)
	dead := b.stream.Source("dead", time.Minute)
	if err := dead.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := dead.Read(t.Context(), inbox.New, inbox.Limit{Count: 10}); err != nil {
		t.Fatal(err)
	}
	b.stream.Delete(b.stream.Pending()[:7]...)
	bridge := b.bridge("b")
	b.run(bridge.Run)
	eventually(t, 10*time.Second, func() error {
		if s := bridge.Stats(); s.Deleted != 7 || s.Received != 3 || len(b.stream.Pending()) > 0 {
			return errors.New("not yet drained")
		}
		return nil
	})
}

// A page of which the database refuses one entry is taken entry by entry; what was deleted of it is counted all the same.
func TestDeletedEntriesOfARefusedPageAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.add(5)
	dead := b.stream.Source("dead", time.Minute)
	if err := dead.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := dead.Read(t.Context(), inbox.New, inbox.Limit{Count: 5}); err != nil {
		t.Fatal(err)
	}
	b.stream.Delete(b.stream.Pending()[:2]...)
	b.exec(fmt.Sprintf(`ALTER TABLE inbox_events ADD CONSTRAINT no_such_event CHECK (event_id <> '%s')`, ids[4]))
	bridge := b.bridge("b")
	b.run(bridge.Run)
	eventually(t, 10*time.Second, func() error {
		if s := bridge.Stats(); s.Deleted != 2 || s.Received != 2 || len(b.stream.Pending()) != 1 {
			return fmt.Errorf("%d deleted, %d received, %d pending", s.Deleted, s.Received, len(b.stream.Pending()))
		}
		return nil
	})
}

// What a page acknowledged before trouble ended it is counted and told like any other: it never comes again.
func TestWhatWasAcknowledgedBeforeTroubleIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.add(5)
	b.exec(fmt.Sprintf(`ALTER TABLE inbox_events ADD CONSTRAINT no_such_event CHECK (event_id <> '%s')`, ids[1]))
	src := &tracing{Source: b.stream.Source("a", time.Minute)}
	src.onAck = func([]string) error {
		if len(src.acked) == 2 {
			return errBoom
		}
		return nil
	}
	var told int64
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.Source = src
		o.Acked = func(_ context.Context, t inbox.Takeover) error { told += t.Received; return nil }
	})
	if n, err := bridge.Once(t.Context()); n != 2 || !errors.Is(err, errBoom) {
		t.Errorf("Once = %d, %v, want 2 entries and the trouble", n, err)
	}
	if s := bridge.Stats(); s.Received != 2 || told != 2 {
		t.Errorf("%d received, %d told, want the 2 that were acknowledged", s.Received, told)
	}
}

// An owner's position that is lost under a running bridge, as when the database is set back to an earlier copy, is made again.
func TestALostPositionIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bridge := b.bridge("a")
	b.add(2)
	b.want("taken", b.take(bridge), 2)
	b.exec(`DELETE FROM ledger_positions`)
	b.add(3)
	b.want("taken without a position", b.take(bridge), 3)
	b.want("positions", b.count(`SELECT count(*) FROM ledger_positions WHERE owner = 'auth' AND taken_over = 3`), 1)
	b.want("pending entries", len(b.stream.Pending()), 0)
}

// Twenty bridges with copies of the same events in different orders: each event once, nobody deadlocks
// (U70, BC-59, F16).
func TestBridgesAtOnceTakeEachEventOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var entries []map[string]any
	for range 50 {
		entries = append(entries, inboxtest.Values(b.seal()))
	}
	var wg sync.WaitGroup
	for i := range 20 {
		stream := inboxtest.NewStream(nil)
		mixed := slices.Clone(entries)
		if i%2 == 1 {
			slices.Reverse(mixed)
		}
		stream.Add(mixed...)
		bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
			o.Source, o.LockTimeout = stream.Source("a", time.Minute), time.Minute
		})
		wg.Go(func() {
			for taken := 0; taken < len(entries); {
				n, err := bridge.Once(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				taken += n
			}
		})
	}
	wg.Wait()
	b.want("rows", b.count(`SELECT count(*) FROM consumer_inbox`), 100)
	b.want("numbers", b.count(`SELECT count(*) FROM ledger_entries`), 50)
	b.want("taken over", b.count(`SELECT taken_over FROM ledger_positions`), 50)
}

// A late copy, after the inbox rows aged out, never reaches a handler again (F15).
func TestALateCopyAfterRetentionIsADuplicate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := b.seal()
	b.stream.Add(inboxtest.Values(e))
	b.take(b.bridge("a"))
	b.exec(`DELETE FROM consumer_inbox`)
	b.exec(`DELETE FROM inbox_events`)
	b.stream.Add(inboxtest.Values(e))
	bridge := b.bridge("a")
	b.take(bridge)
	b.want("duplicates", int(bridge.Stats().Duplicates), 1)
	b.want("rows", b.count(`SELECT count(*) FROM consumer_inbox`), 0)
}

// A group that vanished is made again at the beginning; what comes again is recognised (BC-39, BC-54, BC-56).
func TestALostGroupIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.Block, o.RepairEvery, o.PauseMin = 20*time.Millisecond, 20*time.Millisecond, 5*time.Millisecond
	})
	b.run(bridge.Run)
	want := 0
	for range 3 {
		b.add(10)
		want += 20
		eventually(t, 10*time.Second, func() error {
			if b.count(`SELECT count(*) FROM consumer_inbox`) != want {
				return errors.New("not all taken")
			}
			return nil
		})
		b.stream.Flush()
	}
	eventually(t, 10*time.Second, func() error {
		if bridge.Stats().Repairs < 1 {
			return errors.New("no repair")
		}
		return nil
	})
}

// A checkpoint entry is handed to its seam in the takeover's transaction, and acknowledged.
func TestCheckpointsAreAcknowledgedThroughTheirSeam(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c := envelope.Entry{EventType: envelope.CheckpointType, Owner: "auth", SchemaVersion: 1, LedgerID: b.ledger, Payload: []byte("c")}
	b.stream.Add(inboxtest.Values(b.resign(c)))
	b.add(1)
	bridge := b.bridge("a")
	b.take(bridge)
	if s := bridge.Stats(); s.Checkpoints != 1 || s.Received != 1 {
		t.Fatalf("takeover = %+v", s.Takeover)
	}
	b.want("pending", len(b.stream.Pending()), 0)
	b.want("numbers", b.count(`SELECT count(*) FROM ledger_entries`), 1)
}

// Pages are bounded by bytes: after a page of large entries the next asks for few (F18).
func TestPagesFollowTheSizeOfEntries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.addLarge(40)
	var sizes []int64
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.PageBytes = 1 << 20
		o.Acked = func(_ context.Context, tk inbox.Takeover) error { sizes = append(sizes, tk.Received); return nil }
	})
	b.take(bridge)
	if sizes[0] > 8 || slices.Max(sizes[1:]) > 4 {
		t.Errorf("pages of 256 KB entries held %v, want at most 4 after the first", sizes)
	}
	b.want("events", b.count(`SELECT count(*) FROM inbox_events`), 40)
}

// Small entries make a page of many; if those turn out large, the page is given up and read again in small ones (F18).
func TestAPageLargerThanExpectedIsReadAgainInSmallerOnes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(200)
	b.addLarge(40)
	var large []int64
	seen := int64(0)
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) {
		o.PageBytes, o.ReclaimEvery = 1<<20, time.Hour
		o.Acked = func(_ context.Context, tk inbox.Takeover) error {
			if seen += tk.Received; seen > 200 {
				large = append(large, tk.Received)
			}
			return nil
		}
	})
	b.take(bridge)
	b.take(bridge) // of what was given up
	b.want("events", b.count(`SELECT count(*) FROM inbox_events`), 240)
	if most := slices.Max(large); most > 8 { // twice PageBytes
		t.Errorf("pages of 256 KB entries held %v, want at most 8", large)
	}
}

// addLarge adds n entries of 256 KB.
func (b *bundle) addLarge(n int) {
	for range n {
		b.stream.Add(inboxtest.Values(b.seal(func(e *auditv1.AuditEvent) {
			for i := range 64 {
				e.Changes = append(e.Changes, &auditv1.Change{Field: "f" + strings.Repeat("x", i%9), NewValue: audit.Plain(strings.Repeat("y", 4000))})
			}
			e.Changes = e.Changes[:64]
		})))
	}
}

// An entry that the database refuses by itself stays pending and holds up no other (BC-57).
func TestAnEntryThatCannotBeWrittenHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids := b.add(10)
	b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no'' USING ERRCODE = ''22023''; END'`)
	b.exec(`CREATE TRIGGER refuse BEFORE INSERT ON inbox_events FOR EACH ROW WHEN (NEW.event_id = '` + ids[4].String() + `') EXECUTE FUNCTION refuse()`)
	bridge := b.bridge("a")
	for range 2 {
		if _, err := bridge.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.want("events", b.count(`SELECT count(*) FROM inbox_events`), 9)
	b.want("pending", len(b.stream.Pending()), 1)
	b.exec(`DROP TRIGGER refuse ON inbox_events`)
	b.run(bridge.Run)
	eventually(t, 10*time.Second, func() error {
		if n := b.count(`SELECT count(*) FROM inbox_events`); n != 10 {
			return errors.New("the refused entry was not tried again")
		}
		return nil
	})
}

// insertIfAbsent: a row that is there already, for whatever reason, is left as it is and holds up nothing (U32).
func TestARowThatExistsIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 50} {
		b := setup(t)
		ids := b.add(n)
		b.exec(`INSERT INTO consumer_inbox (event_id, consumer, attempts) VALUES ($1, 'log', 7)`, ids[0])
		b.take(b.bridge("a"))
		b.want("rows", b.count(`SELECT count(*) FROM consumer_inbox`), 2*n)
		b.want("attempts of the old row", b.count(`SELECT attempts FROM consumer_inbox WHERE consumer = 'log' AND event_id = $1`, ids[0]), 7)
	}
}

// Takeovers of one owner are serial: the owner's position is locked before anything is written, so what a
// takeover finds on record stays true until it commits (F16).
func TestATakeoverLocksTheOwnersPositionFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.add(3)
	bridge := b.bridge("a", func(o *inbox.BridgeOptions) { o.LockTimeout = time.Minute })
	b.exec(`INSERT INTO ledger_positions (owner, stream) VALUES ('auth', 's')`)
	tx, err := b.db.Super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := tx.Exec(t.Context(), `SELECT FROM ledger_positions WHERE owner = 'auth' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	taken := make(chan int, 1)
	go func() {
		n, err := bridge.Once(t.Context())
		if err != nil {
			t.Error(err)
		}
		taken <- n
	}()
	eventually(t, 10*time.Second, func() error {
		if b.count(`SELECT count(*) FROM pg_stat_activity WHERE usename = 'admin_service' AND datname = $1 AND wait_event_type = 'Lock'`, b.db.Name) == 0 {
			return errors.New("the takeover does not wait")
		}
		return nil
	})
	b.want("tables written to by the one that waits", b.count(`SELECT count(*) FROM pg_locks WHERE mode = 'RowExclusiveLock'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		AND relation IN ('ledger_entries'::regclass, 'inbox_events'::regclass, 'consumer_inbox'::regclass)`), 0)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.want("taken afterwards", <-taken, 3)
}
