// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// maxGiveBackDelay bounds how long a row that was given back waits. It must wait a little: else the
// row that meets trouble each time is always claimed first.
const maxGiveBackDelay = 2 * time.Second

// debtKind is what a debt owes.
type debtKind int

const (
	owesToken   debtKind = iota // give back whatever is under the token: the claim's reply was lost
	owesRows                    // give rows back
	owesFailure                 // record a failure
)

// debt is a settle that could not be written because of the database. It is tried again until it
// lands or matches nothing any more, which means that the token was lost or the outcome had landed. One
// that the database refuses for what it says is dropped: the leases of its rows expire by themselves.
type debt struct {
	kind  debtKind
	token uuid.UUID
	mark  int64 // owesToken: where the claim looked

	ids   [][16]byte
	delay time.Duration

	code string // owesFailure
	dead bool
}

// pay writes all debts, or returns the trouble that keeps it from doing so.
func (w *worker) pay(ctx context.Context) error {
	for len(w.debts) > 0 {
		d := w.debts[0]
		err := w.write(ctx, d)
		if err != nil && !refused(ctx, err) {
			return err
		}
		w.debts = w.debts[1:]
		if err != nil {
			w.forgo(ctx, d, err)
		}
	}
	return nil
}

// refused says that the database will have none of it, today or tomorrow.
func refused(ctx context.Context, err error) bool {
	return isPostgres(err) && !trouble(err) && ctx.Err() == nil
}

// forgo gives up a settle that was refused. Of several rows, each is tried alone once more: it may be one of them that the
// database refuses. A row that stays leased is claimed again when its lease has expired, and that start counts.
func (w *worker) forgo(ctx context.Context, d debt, err error) {
	if len(d.ids) > 1 {
		for i := range d.ids {
			alone := d
			alone.ids = d.ids[i : i+1]
			w.debts = append(w.debts, alone)
		}
		return
	}
	attrs := []slog.Attr{slog.String("error", err.Error())}
	if len(d.ids) == 1 {
		attrs = append(attrs, slog.String("event_id", uuid.UUID(d.ids[0]).String()))
	}
	w.c.log.say(ctx, slog.LevelError, "an outcome cannot be written; its row stays leased until the lease expires", attrs...)
}

// owe writes a settle now or keeps it as a debt, unless it is refused. When the worker is being stopped it still gets a
// moment.
func (w *worker) owe(ctx context.Context, d debt) error {
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
	}
	err := w.write(ctx, d)
	if err != nil && refused(ctx, err) {
		w.forgo(ctx, d, err)
		return nil
	}
	if err != nil {
		w.debts = append(w.debts, d)
	}
	return err
}

func (w *worker) write(ctx context.Context, d debt) error {
	return inTx(ctx, w.c.o.DB, w.begin, func(tx pgx.Tx) error {
		name, token := w.c.o.Name, [16]byte(d.token)
		sql, args := sqlGiveBack, []any{name, d.ids, token, d.delay}
		switch d.kind {
		case owesToken:
			sql, args = sqlGiveBackToken, []any{name, token, d.mark}
		case owesFailure:
			sql, args = sqlFail, []any{name, d.ids, token, d.code, d.delay, d.dead, w.c.o.MaxAttempts}
		}
		tag, err := tx.Exec(ctx, sql, args...)
		if err != nil {
			return fmt.Errorf("settle rows: %w", err)
		}
		n := &w.c.count
		got := tag.RowsAffected()
		switch d.kind {
		case owesFailure:
			n.failed.Add(got)
			if d.dead {
				n.died.Add(got)
			}
			n.lostFences.Add(int64(len(d.ids)) - got)
		case owesRows:
			n.givenBack.Add(got)
			n.lostFences.Add(int64(len(d.ids)) - got)
		case owesToken:
			n.givenBack.Add(got)
		}
		return nil
	})
}

// giveBack returns rows to PENDING as if they had not been started, and then the cause, or the
// trouble that kept it from doing so.
func (w *worker) giveBack(ctx context.Context, b batch, rows []claimed, cause error) error {
	if len(rows) == 0 {
		return cause
	}
	delay := time.Duration(0)
	if ctx.Err() == nil {
		delay = min(2*w.c.o.PauseMin, maxGiveBackDelay)
	}
	if err := w.owe(ctx, debt{kind: owesRows, token: b.token, ids: idsOf(rows), delay: delay}); err != nil {
		return err
	}
	return cause
}

// fail records one row's own failure, in a transaction of its own.
func (w *worker) fail(ctx context.Context, b batch, row claimed, failure *handlerError) error {
	dead := failure.permanent || row.attempts >= w.c.o.MaxAttempts
	level, message := slog.LevelWarn, "a handler failed; its event is tried again"
	if dead {
		level, message = slog.LevelError, "an event is dead"
	}
	w.c.log.say(ctx, level, message, slog.String("event_id", row.event.ID.String()), slog.String("event_type", row.event.Type),
		slog.String("code", failure.code), slog.Int("attempt", row.attempts), slog.String("error", failure.err.Error()))
	return w.owe(ctx, debt{
		kind: owesFailure, token: b.token, ids: idsOf([]claimed{row}), code: failure.code, dead: dead,
		delay: w.backoff(row.attempts),
	})
}

// backoff is 2^attempts units, capped.
func (w *worker) backoff(attempts int) time.Duration {
	d := float64(w.c.o.BackoffUnit) * math.Exp2(float64(attempts))
	return time.Duration(min(d, float64(w.c.o.BackoffMax)))
}
