// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/failpoint"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// maxCuts is how often a row that runs alone may lose its connection before that counts as its own failure.
const maxCuts = 3

// errLostFence says that a row is no longer held under the token. Everything of its transaction is rolled back.
var errLostFence = errors.New("inbox: the lease is another's by now")

// errNotBegun says that no handler ran: whatever kept it from running is nobody's failure.
var errNotBegun = errors.New("begin")

// handlerError is a failure that counts as the handler's own.
type handlerError struct {
	code      string
	permanent bool
	err       error
}

// Error implements error.
func (e *handlerError) Error() string { return e.code + ": " + e.err.Error() }

// apply brings a batch to an end: each of its rows is finished, failed, given back, lost, or owed to
// be settled. It returns how many were finished; the error is trouble, or ctx's.
func (w *worker) apply(ctx context.Context, b batch) (int, error) {
	rows, err := w.prepare(ctx, b)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	err = w.attempt(ctx, b, rows)
	switch {
	case err == nil:
		return len(rows), nil
	case len(rows) > 1 && !nobodys(err) && ctx.Err() == nil:
		if isTimeout(err) {
			w.page = max(w.page/4, 1) // the batch may just be too long for one budget
		}
		return w.applyEach(ctx, b, rows)
	case len(rows) > 1:
		return 0, w.giveBack(ctx, b, rows, err)
	}
	return 0, w.settleOne(ctx, b, rows[0], err)
}

// applyEach redoes a failed batch one by one, in transactions of their own, under the batch's lease.
// The start that the batch counted becomes each row's own.
func (w *worker) applyEach(ctx context.Context, b batch, rows []claimed) (int, error) {
	done := 0
	for i := range rows {
		err := ctx.Err()
		if err == nil {
			err = w.attempt(ctx, b, rows[i:i+1])
		}
		switch {
		case err == nil:
			done++
		case nobodys(err) || ctx.Err() != nil:
			return done, w.giveBack(ctx, b, rows[i:], err)
		default:
			if err := w.settleOne(ctx, b, rows[i], err); err != nil {
				return done, w.giveBack(ctx, b, rows[i+1:], err)
			}
		}
	}
	return done, nil
}

// settleOne records what became of a row that ran alone and did not finish.
func (w *worker) settleOne(ctx context.Context, b batch, row claimed, err error) error {
	var failure *handlerError
	switch {
	case errors.As(err, &failure):
		delete(w.cuts, row.event.ID)
		return w.fail(ctx, b, row, failure)
	case errors.Is(err, errLostFence):
		w.c.count.lostFences.Add(1)
		w.c.log.say(ctx, slog.LevelWarn, "a row's lease was taken over while its handler ran; its work was rolled back",
			slog.String("event_id", row.event.ID.String()))
		return nil
	case disconnected(err) && !errors.Is(err, errNotBegun) && ctx.Err() == nil && w.cut(row):
		return w.fail(ctx, b, row, &handlerError{code: CodeConnectionCut, err: err})
	}
	return w.giveBack(ctx, b, []claimed{row}, err)
}

// cut counts a connection lost while the row ran alone, and says that it was once too often: then it
// is more likely the handler that ends it (a crash of its backend takes Postgres down) than the network.
func (w *worker) cut(row claimed) bool {
	if len(w.cuts) > 10000 {
		clear(w.cuts)
	}
	w.cuts[row.event.ID]++
	return w.cuts[row.event.ID] > maxCuts
}

// nobodys says that err is no failure of the handler: the database's trouble, or the end of the worker.
func nobodys(err error) bool {
	var failure *handlerError
	return !errors.As(err, &failure) && !errors.Is(err, errLostFence)
}

func isTimeout(err error) bool {
	var failure *handlerError
	return errors.As(err, &failure) && failure.code == CodeHandlerTimeout
}

// prepare decodes the batch and takes out what must not run: rows whose payload does not decode, and
// rows whose every start ended with the death of the process.
func (w *worker) prepare(ctx context.Context, b batch) ([]claimed, error) {
	kept := make([]claimed, 0, len(b.rows))
	for i, row := range b.rows {
		failure := w.unfit(&row)
		if failure == nil {
			kept = append(kept, row)
			continue
		}
		if err := w.fail(ctx, b, row, failure); err != nil {
			return nil, w.giveBack(ctx, b, append(kept, b.rows[i+1:]...), err)
		}
	}
	return kept, nil
}

func (w *worker) unfit(row *claimed) *handlerError {
	if row.attempts > w.c.o.MaxAttempts {
		return &handlerError{code: CodeMaxStarts, permanent: true, err: errors.New("no start had an outcome")}
	}
	var e auditv1.AuditEvent
	if err := proto.Unmarshal(row.event.Payload, &e); err != nil {
		return &handlerError{code: CodeUndecodable, permanent: true, err: err}
	}
	row.event.Audit = &e
	if w.c.o.IdempotencyKey != nil {
		row.event.IdempotencyKey = w.c.o.IdempotencyKey(row.event)
	}
	return nil
}

// attempt runs the handler and marks the rows in one transaction. The effects come first and the
// mark last, so that no row is locked while the handler runs. It returns nil after the commit, a
// *handlerError, errLostFence, or what is nobody's failure.
func (w *worker) attempt(ctx context.Context, b batch, rows []claimed) error {
	budget, cancel := context.WithTimeout(ctx, w.c.o.Budget)
	defer cancel()
	w.beat.calling(true)
	defer w.beat.calling(false)
	tx, err := w.c.o.DB.BeginTx(budget, pgx.TxOptions{BeginQuery: w.begin})
	if err != nil {
		return fmt.Errorf("%w: %w", errNotBegun, err)
	}
	defer rollback(ctx, tx)
	if err := w.call(budget, tx, rows); err != nil {
		return w.blame(ctx, budget, err)
	}
	failpoint.Hit(failpoint.InboxEffectApplied)

	// The effects are in: mark and commit are short, and worth finishing when a stop comes now.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer done()
	marked := int64(0)
	var finish pgx.Batch
	finish.Queue(w.own)
	finish.Queue(sqlFinish, w.c.o.Name, idsOf(rows), [16]byte(b.token)).Exec(func(tag pgconn.CommandTag) error {
		marked = tag.RowsAffected()
		return nil
	})
	if err := tx.SendBatch(ctx, &finish).Close(); err != nil {
		return w.blame(ctx, ctx, fmt.Errorf("mark: %w", err))
	}
	if marked != int64(len(rows)) {
		return errLostFence
	}
	failpoint.Hit(failpoint.InboxMarked)
	if err := tx.Commit(ctx); err != nil {
		return w.blame(ctx, ctx, fmt.Errorf("commit: %w", err))
	}
	failpoint.Hit(failpoint.InboxCommitted)
	return nil
}

// call runs the handler; a panic is its failure.
func (w *worker) call(ctx context.Context, tx pgx.Tx, rows []claimed) (err error) {
	defer func() {
		if p := recover(); p != nil {
			w.c.o.Logger.LogAttrs(ctx, slog.LevelError, "a handler panicked", slog.String("consumer", w.c.o.Name),
				slog.String("stack", string(debug.Stack())))
			err = &handlerError{code: CodeHandlerPanic, err: fmt.Errorf("panic of type %T", p)}
		}
	}()
	events := make([]Event, len(rows))
	for i, r := range rows {
		events[i] = r.event
	}
	return w.c.o.Handler(ctx, guardedTx{tx}, events)
}

// blame decides whose failure an error of the transaction is. A handler that exceeds its budget
// fails by itself, whatever shape the error has: the end of a context closes the connection, and the
// server may answer 57014.
func (w *worker) blame(ctx, budget context.Context, err error) error {
	var failure *handlerError
	switch {
	case errors.As(err, &failure):
		return err
	case ctx.Err() != nil:
		return ctx.Err() // a stop, or a commit that did not come back: nobody's
	case errors.Is(budget.Err(), context.DeadlineExceeded):
		return &handlerError{code: CodeHandlerTimeout, err: err}
	case trouble(err):
		return err
	}
	code, permanent := codeOf(err)
	return &handlerError{code: code, permanent: permanent, err: err}
}
