// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/memory"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
)

// A32, A33, A36: the store passes the suite but for what one process cannot show.
func TestStoreSuite(t *testing.T) {
	t.Parallel()
	outboxtest.RunStoreSuite(t, func(*testing.T) outboxtest.Harness {
		s := memory.New(memory.Options{})
		return outboxtest.Harness{
			Store: s,
			Add: func(t testing.TB, events ...*auditv1.AuditEvent) {
				t.Helper()
				if err := s.Add(events...); err != nil {
					t.Fatal(err)
				}
			},
			OneProcess: "a store in one process's memory proves nothing about several",
		}
	})
}

// A34: nothing outlives the store.
func TestNewStoreIsEmpty(t *testing.T) {
	t.Parallel()
	if err := memory.New(memory.Options{}).Add(outboxtest.Event()); err != nil {
		t.Fatal(err)
	}
	records, err := memory.New(memory.Options{}).List(t.Context(), outbox.Filter{})
	if err != nil || len(records) != 0 {
		t.Errorf("a new store has %d records, %v", len(records), err)
	}
}

func TestAddRefusesACopy(t *testing.T) {
	t.Parallel()
	s, e := memory.New(memory.Options{}), outboxtest.Event()
	if err := s.Add(e); err != nil {
		t.Fatal(err)
	}
	if err := s.Add(outboxtest.Event(), e); err == nil {
		t.Error("the same id was added twice")
	}
	if st, _ := s.Status(t.Context()); st.Head != 1 {
		t.Errorf("%d entries after a refused Add, want 1", st.Head)
	}
}
