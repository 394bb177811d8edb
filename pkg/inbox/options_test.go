// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package inbox_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

func TestNewBridgeRefusesWhatIsIncomplete(t *testing.T) {
	t.Parallel()
	if _, err := inbox.NewBridge(inbox.BridgeOptions{}); err == nil {
		t.Error("empty options are accepted")
	}
	b := setup(t)
	whole := inbox.BridgeOptions{
		DB: b.db.Service, Source: b.stream.Source("a", time.Minute), Owner: "auth", Keys: b.keys, Catalog: catalog("log"),
	}
	if _, err := inbox.NewBridge(whole); err != nil {
		t.Fatal(err)
	}
	for name, o := range negatives(whole) {
		if _, err := inbox.NewBridge(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a negative %s: %v", name, err)
		}
	}
	twice := catalog("log", "log")
	if _, err := inbox.NewPostgres(b.db.Service, twice); err == nil {
		t.Error("one consumer subscribed twice is accepted")
	}
}

// A negative number means nothing, and certainly not "without a limit": rows would be dead before they were started.
func TestNewConsumerRefusesNegativeNumbers(t *testing.T) {
	t.Parallel()
	whole := inbox.ConsumerOptions{DB: setup(t).db.Service, Name: "log", Handler: record}
	if _, err := inbox.NewConsumer(whole); err != nil {
		t.Fatal(err)
	}
	for name, o := range negatives(whole) {
		if _, err := inbox.NewConsumer(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a negative %s: %v", name, err)
		}
	}
}

// negatives returns copies of options, each with one of its numbers and durations negative, by the field's name.
func negatives[O any](whole O) map[string]O {
	out := map[string]O{}
	for i := range reflect.TypeFor[O]().NumField() {
		o := whole
		if f := reflect.ValueOf(&o).Elem().Field(i); f.CanInt() {
			f.SetInt(-1)
			out[reflect.TypeFor[O]().Field(i).Name] = o
		}
	}
	return out
}
