// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/internal/dispatch"
	"github.com/counterfoil/counterfoil/internal/pgdb"
	"github.com/counterfoil/counterfoil/internal/telemetry"
	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	"github.com/counterfoil/counterfoil/test/harness"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// configured is a Config with everything in it, of owner auth.
func configured(t *testing.T, db *testdb.DB, broker *redis.Client) dispatch.Config {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "auth", Stderr: io.Discard, SampleRatio: 1})
	must(t, err)
	t.Cleanup(func() { _ = tel.Shutdown(context.Background()) })
	keys, err := envelope.ParseKeyring("k1:" + strings.Repeat("5a", 32))
	must(t, err)
	return dispatch.Config{Owner: "auth", DB: db.Service, Broker: broker, Keys: keys, Telemetry: tel, TimeScale: 1}
}

// TestWhatIsCommittedIsCarried to the owner's stream, authentic, and counted.
func TestWhatIsCommittedIsCarried(t *testing.T) {
	t.Parallel()
	db, broker := testdb.New(t, testdb.Auth).WithoutGuard(t), testdb.Redis(t)
	config := configured(t, db, broker.Client)
	dispatcher, err := dispatch.New(config)
	must(t, err)
	event := outboxtest.Event()
	must(t, pgdb.InTx(t.Context(), db.Service, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, event) }))

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- dispatcher.Run(ctx) }()
	var entry envelope.Entry
	harness.Eventually(t, 20*time.Second, func() error {
		messages, err := broker.Client.XRange(t.Context(), envelope.StreamKey("auth"), "-", "+").Result()
		if err != nil || len(messages) != 1 {
			return fmt.Errorf("%d entries, %w", len(messages), err)
		}
		entry, err = envelope.Parse(messages[0].Values)
		return err
	})
	stop()
	must(t, <-ended)
	if err := config.Keys.Verify(&entry, envelope.ToAdmin); err != nil || entry.EventID.String() != event.GetAuditId() {
		t.Errorf("event %s arrived, %v", entry.EventID, err)
	}
	families, err := config.Telemetry.Registry.Gather()
	must(t, err)
	var head float64
	for _, f := range families {
		if f.GetName() == "counterfoil_outbox_ledger_head" {
			head = f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	if head != 1 {
		t.Errorf("the metrics tell of %v numbers given, want 1", head)
	}
}

// TestABrokerThatRepeatsIsRefused before anything runs: a client that repeats XADD by itself doubles entries.
func TestABrokerThatRepeatsIsRefused(t *testing.T) {
	t.Parallel()
	broker := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = broker.Close() }()
	if _, err := dispatch.New(configured(t, testdb.New(t, testdb.Auth).WithoutGuard(t), broker)); err == nil {
		t.Error("it was taken")
	}
}
