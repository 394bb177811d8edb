// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package redisstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/testdb"
	"github.com/counterfoil/counterfoil/pkg/envelope"
	"github.com/counterfoil/counterfoil/pkg/outbox"
	"github.com/counterfoil/counterfoil/pkg/outbox/outboxtest"
)

// replyError is an error reply as the client gives it.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// A67a, F27: every error becomes a stable code, and keeps none of its text.
func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		kind outbox.FaultKind
		code string
	}{
		{errors.New("dial tcp 10.0.0.7:6379: connect: connection refused"), outbox.FaultBroker, "broker.unavailable"},
		{fmt.Errorf("EOF"), outbox.FaultBroker, "broker.unavailable"},
		{redis.ErrClosed, outbox.FaultBroker, "broker.unavailable"},
		{context.Canceled, outbox.FaultBroker, "broker.unavailable"},
		{context.DeadlineExceeded, outbox.FaultBroker, "broker.timeout"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, outbox.FaultBroker, "broker.timeout"},
		{redis.ErrPoolTimeout, outbox.FaultBroker, "broker.timeout"},
		{replyError("OOM command not allowed when used memory > 'maxmemory'."), outbox.FaultBroker, "broker.oom"},
		{replyError("NOPERM this user has no permissions to run the 'xadd' command"), outbox.FaultBroker, "broker.noperm"},
		{replyError("NOAUTH Authentication required."), outbox.FaultBroker, "broker.noauth"},
		{replyError("WRONGPASS invalid username-password pair or user is disabled."), outbox.FaultBroker, "broker.noauth"},
		{replyError("READONLY You can't write against a read only replica."), outbox.FaultBroker, "broker.readonly"},
		{replyError("LOADING Redis is loading the dataset in memory"), outbox.FaultBroker, "broker.loading"},
		{replyError("MISCONF Redis is configured to save RDB snapshots"), outbox.FaultBroker, "broker.misconf"},
		{replyError("NOREPLICAS Not enough good replicas to write."), outbox.FaultBroker, "broker.noreplicas"},
		{replyError("MASTERDOWN Link with MASTER is down"), outbox.FaultBroker, "broker.masterdown"},
		{replyError("CLUSTERDOWN The cluster is down"), outbox.FaultBroker, "broker.clusterdown"},
		{replyError("MOVED 3999 127.0.0.1:6381"), outbox.FaultBroker, "broker.moved"},
		{replyError("ASK 3999 127.0.0.1:6381"), outbox.FaultBroker, "broker.ask"},
		{replyError("TRYAGAIN Multiple keys request during rehashing of slot"), outbox.FaultBroker, "broker.tryagain"},
		{replyError("WRONGTYPE Operation against a key holding the wrong kind of value"), outbox.FaultBroker, "broker.wrongtype"},
		{replyError("BUSY Redis is busy running a script."), outbox.FaultBroker, "broker.busy"},
		{replyError("ERR The stream has exhausted the last possible ID, unable to add more items"), outbox.FaultBroker, "broker.stream_exhausted"},
		{replyError("ERR max number of clients reached"), outbox.FaultBroker, "broker.max_clients"},
		{replyError("ERR Protocol error: unauthenticated multibulk length"), outbox.FaultBroker, "broker.noauth"},
		{replyError("ERR secret-token is not a stream"), outbox.FaultRefused, "broker.refused"},
		{fmt.Errorf("wrapped: %w", replyError("OOM")), outbox.FaultBroker, "broker.oom"},
	} {
		got := classify(c.err)
		if got.Kind != c.kind || got.Code != c.code {
			t.Errorf("%v: %+v, want %d %s", c.err, got, c.kind, c.code)
		}
	}
}

func ring(t testing.TB) *envelope.Keyring {
	t.Helper()
	r, err := envelope.ParseKeyring("k1:" + strings.Repeat("ab", 32))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func publisher(t testing.TB, o *redis.Options, max int) *Publisher {
	t.Helper()
	client := redis.NewClient(ClientOptions(*o))
	t.Cleanup(func() { _ = client.Close() })
	p, err := New(Options{Client: client, Owner: "auth", Keys: ring(t), MaxPayload: max})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func messages(t testing.TB, n int) []outbox.Message {
	t.Helper()
	out := make([]outbox.Message, n)
	for i, e := range outboxtest.Events(n) {
		payload, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = outbox.Message{
			EventID: uuid.MustParse(e.GetAuditId()), EventType: e.GetEventType(), SchemaVersion: 1, LedgerID: uuid.New(),
			LedgerSeq: int64(i) + 1, Payload: payload, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		}
	}
	return out
}

// U9, U21, A55: the entry is the row, and its id finds it.
func TestPublishWritesTheEntry(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	p, msgs := publisher(t, r.Options(), 0), messages(t, 3)
	for i, res := range p.Publish(t.Context(), msgs) {
		if !res.Accepted() {
			t.Fatalf("message %d: %+v", i, res.Fault)
		}
		found, err := r.Client.XRange(t.Context(), "audit:{auth}", res.RecordID, res.RecordID).Result()
		if err != nil || len(found) != 1 {
			t.Fatalf("entry %s: %v, %v", res.RecordID, found, err)
		}
		got, err := envelope.Parse(found[0].Values)
		if err != nil {
			t.Fatal(err)
		}
		if err := ring(t).Verify(&got, envelope.ToAdmin); err != nil {
			t.Errorf("mac: %v", err)
		}
		got.KeyID, got.MAC = "", nil
		m := msgs[i]
		want := envelope.Entry{
			EventID: m.EventID, EventType: m.EventType, Owner: "auth", SchemaVersion: 1, LedgerID: m.LedgerID, LedgerSeq: m.LedgerSeq,
			Payload: m.Payload, Traceparent: m.Traceparent,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("entry (-want +got):\n%s", diff)
		}
	}
}

// BC-37, BC-25: what this publisher cannot send is refused by itself, and the rest of the page goes.
func TestUnfitEntriesArePermanent(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	msgs := messages(t, 4)
	foreign := outboxtest.Event()
	foreign.Owner, foreign.Action, foreign.EventType = "app", "app.x", "app.x.v1"
	payload, err := proto.Marshal(foreign)
	if err != nil {
		t.Fatal(err)
	}
	msgs[0].Payload = payload
	msgs[1].Payload = append(msgs[1].Payload, make([]byte, 4096)...)
	msgs[2].Payload = []byte{0xff, 0xff}
	got := publisher(t, r.Options(), 2048).Publish(t.Context(), msgs)
	for i, code := range []string{outbox.CodeForeignOwner, outbox.CodeTooLarge, outbox.CodeMalformed, ""} {
		if got[i].Fault.Code != code || (code != "") != (got[i].Fault.Kind == outbox.FaultPermanent) {
			t.Errorf("message %d: %+v, want %q", i, got[i], code)
		}
	}
	if n := r.Client.XLen(t.Context(), "audit:{auth}").Val(); n != 1 {
		t.Errorf("%d entries in the stream, want 1", n)
	}
}

// Broker states on a real server (T3, F27).
func TestBrokerTrouble(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		break_ []any
		code   string
	}{
		"wrong type":  {[]any{"SET", "audit:{auth}", "x"}, "broker.wrongtype"},
		"read only":   {[]any{"REPLICAOF", "127.0.0.1", "1"}, "broker.readonly"},
		"no memory":   {[]any{"CONFIG", "SET", "maxmemory", "1"}, "broker.oom"},
		"no rights":   {[]any{"ACL", "SETUSER", "default", "-xadd"}, "broker.noperm"},
		"no login":    {[]any{"CONFIG", "SET", "requirepass", "secret"}, "broker.noauth"},
		"no replicas": {[]any{"CONFIG", "SET", "min-replicas-to-write", "1"}, "broker.noreplicas"},
		"exhausted":   {[]any{"XADD", "audit:{auth}", "18446744073709551615-18446744073709551615", "a", "b"}, "broker.stream_exhausted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testdb.Redis(t)
			if err := r.Client.Do(t.Context(), c.break_...).Err(); err != nil {
				t.Fatal(err)
			}
			for i, res := range publisher(t, r.Options(), 0).Publish(t.Context(), messages(t, 5)) {
				if i > 0 && name == "no login" {
					c.code = "broker.unavailable" // the server hangs up after the first
				}
				if res.Fault.Kind != outbox.FaultBroker || res.Fault.Code != c.code {
					t.Errorf("message %d: %+v, want %s", i, res, c.code)
				}
			}
		})
	}
	t.Run("down", func(t *testing.T) {
		t.Parallel()
		r := testdb.Redis(t)
		p := publisher(t, r.Options(), 0)
		r.Kill()
		for i, res := range p.Publish(t.Context(), messages(t, 5)) {
			if res.Fault.Kind != outbox.FaultBroker || res.Fault.Code != "broker.unavailable" {
				t.Errorf("message %d: %+v", i, res)
			}
		}
	})
}

// U17: the owner's user may write its own stream and nothing else of it.
func TestOwnerMayOnlyAdd(t *testing.T) {
	t.Parallel()
	r := testdb.Redis(t)
	if err := r.Client.Do(t.Context(), "ACL", "SETUSER", "auth", "on", ">pw", "resetkeys", "%W~audit:{auth}", "%R~receipts:{auth}",
		"-@all", "+xadd", "+xread", "+xrevrange", "+ping", "+client|setname").Err(); err != nil {
		t.Fatal(err)
	}
	o := r.Options()
	o.Username, o.Password = "auth", "pw"
	p := publisher(t, o, 0)
	for i, res := range p.Publish(t.Context(), messages(t, 2)) {
		if !res.Accepted() {
			t.Errorf("message %d: %+v", i, res.Fault)
		}
	}
	p.stream = envelope.StreamKey("app")
	if res := p.Publish(t.Context(), messages(t, 1)); res[0].Fault.Code != "broker.noperm" {
		t.Errorf("another owner's stream: %+v, want NOPERM", res[0])
	}
	if err := p.o.Client.XRead(t.Context(), &redis.XReadArgs{Streams: []string{"audit:{auth}", "0"}, Block: -1}).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
		t.Errorf("reading its own stream: %v, want NOPERM", err)
	}
}

// A reply that was read counts; those that never came are the broker's trouble.
func TestRepliesCutOff(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go cutOff(listener)
	got := publisher(t, &redis.Options{Addr: listener.Addr().String(), Protocol: 2, DisableIdentity: true}, 0).Publish(t.Context(), messages(t, 4))
	for i, want := range []string{"1-1", "", "1-2", ""} {
		if got[i].RecordID != want {
			t.Errorf("message %d: record %q, want %q", i, got[i].RecordID, want)
		}
	}
	if got[1].Fault.Kind != outbox.FaultRefused || got[3].Fault.Kind != outbox.FaultBroker {
		t.Errorf("faults %+v and %+v; want refused, and the broker's", got[1].Fault, got[3].Fault)
	}
}

// cutOff answers three commands of a pipeline, one of them by an error, and closes.
func cutOff(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		in := bufio.NewReader(conn)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				break
			}
			if strings.EqualFold(strings.TrimSpace(line), "xadd") {
				_, _ = conn.Write([]byte("$3\r\n1-1\r\n-ERR no such thing\r\n$3\r\n1-2\r\n"))
				break
			}
			if strings.EqualFold(strings.TrimSpace(line), "hello") {
				_, _ = conn.Write([]byte("-ERR unknown command\r\n"))
			}
		}
		_ = conn.Close()
	}
}

// BC-24: a client that repeats commands is refused at start.
func TestRetryingClientIsRefused(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	if _, err := New(Options{Client: client, Owner: "auth", Keys: ring(t)}); err == nil {
		t.Error("a client with retries was accepted")
	}
	for name, o := range map[string]Options{"no client": {Owner: "auth", Keys: ring(t)}, "no owner": {Client: client, Keys: ring(t)}, "no keys": {Client: client, Owner: "auth"}} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A stop is not held up by a broker that accepts and says nothing.
func TestSilentBrokerObeysTheContext(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	p := publisher(t, &redis.Options{Addr: listener.Addr().String()}, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	res := p.Publish(ctx, messages(t, 1))
	if res[0].Fault.Kind != outbox.FaultBroker || time.Since(start) > 2*time.Second {
		t.Errorf("%+v after %v", res[0], time.Since(start))
	}
}
