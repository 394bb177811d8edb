// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

// Command worker is a consumer of Admin's inbox that misbehaves in a chosen way. The drills run it instead of the service,
// with the lease, budget and backoff that the service has. It records events in a shorter form than the service would.
//
//	DATABASE_URL  Admin's database
//	TIME_SCALE    divides every time
//	WORKER        the name in its leases
//	EXIT_ON       an event id: the process ends, without any cleaning up, whenever its handler meets that event
//	TAKE          how long the handler works on one event, inside its transaction; a batch of several it refuses
//
// For each event that a handler starts alone it prints a line "alone ID". It ends when its standard input does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // whatever its end is, it is one
		stop()
	}()
	if err := run(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, getenv func(string) string, out io.Writer) error {
	db, err := pgxpool.New(ctx, getenv("DATABASE_URL"))
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	scale, err := strconv.ParseFloat(getenv("TIME_SCALE"), 64)
	if err != nil {
		return fmt.Errorf("read TIME_SCALE: %w", err)
	}
	h := handler{exitOn: getenv("EXIT_ON"), out: out}
	if take := getenv("TAKE"); take != "" {
		if h.take, err = time.ParseDuration(take); err != nil {
			return fmt.Errorf("read TAKE: %w", err)
		}
	}
	consumer, err := inbox.NewConsumer(inbox.ConsumerOptions{
		DB: db, Name: "audit-log", LeaseOwner: getenv("WORKER"), Handler: h.handle,
	}.Scaled(scale))
	if err != nil {
		return err
	}
	return consumer.Run(ctx)
}

// handler is what the variables made of it.
type handler struct {
	exitOn string
	take   time.Duration
	out    io.Writer
}

// handle records the events.
func (h handler) handle(ctx context.Context, tx pgx.Tx, batch []inbox.Event) error {
	if len(batch) == 1 {
		if _, err := fmt.Fprintln(h.out, "alone", batch[0].ID); err != nil {
			return err
		}
	} else if h.take > 0 {
		return errors.New("one by one, please")
	}
	for _, e := range batch {
		if e.ID.String() == h.exitOn {
			os.Exit(137)
		}
		if err := h.record(ctx, tx, e); err != nil {
			return err
		}
	}
	return nil
}

// record writes what the oracle looks at.
func (h handler) record(ctx context.Context, tx pgx.Tx, e inbox.Event) error {
	if h.take > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(h.take):
		}
	}
	a := e.Audit
	_, err := tx.Exec(ctx, `
		INSERT INTO audit_logs (event_id, ledger_id, ledger_seq, occur_time, resource_version, schema_version, owner, event_type,
		    action, operation, outcome, actor_type, actor_id, resource_type, resource_id, payload)
		VALUES ($1, $2, $3, $4, nullif($5::bigint, 0), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
		ON CONFLICT (event_id) DO NOTHING`,
		e.ID, e.LedgerID, e.LedgerSeq, a.GetOccurTime().AsTime(), a.GetResource().GetVersion(), e.SchemaVersion, e.Owner, e.Type,
		a.GetAction(), strings.TrimPrefix(a.GetOperation().String(), "OPERATION_"),
		strings.TrimPrefix(a.GetOutcome().String(), "OUTCOME_"), a.GetActor().GetType(), a.GetActor().GetId(),
		a.GetResource().GetType(), a.GetResource().GetId(), e.Payload)
	return err
}
