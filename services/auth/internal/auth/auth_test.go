// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/protobuf/proto"

	"github.com/counterfoil/counterfoil/internal/apperr"
	"github.com/counterfoil/counterfoil/internal/authn"
	"github.com/counterfoil/counterfoil/internal/grpcserver"
	"github.com/counterfoil/counterfoil/internal/idempotency"
	"github.com/counterfoil/counterfoil/internal/testdb"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/store"
)

const (
	rootPassword = "correct horse battery"
	goodPassword = "a fairly long password"
)

// cheap makes hashing take no time; the cost is no part of what is tested.
var cheap = auth.HashParams{MemoryKiB: 64, Passes: 1}

// clock is a clock that tests move.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// newID is a UUIDv7 of the clock's time: an event whose id is of another day is refused.
func (c *clock) newID() uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	milli := c.now().UnixMilli()
	for i := range 6 {
		id[i] = byte(milli >> (40 - 8*i))
	}
	return id
}

// bundle is a service on a database of its own, with a first operator.
type bundle struct {
	*auth.Service
	t     *testing.T
	db    *testdb.DB
	clock *clock
	root  store.User
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := fresh(t)
	var err error
	b.root, err = b.Bootstrap(t.Context(), auth.NewUser{Email: "root@example.com", DisplayName: "Root", Password: rootPassword})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// fresh is setup before bootstrap.
func fresh(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, db: testdb.New(t, testdb.Auth), clock: &clock{}}
	b.Service = b.service(cheap)
	return b
}

// service is another replica on the same database.
func (b *bundle) service(cost auth.HashParams) *auth.Service {
	b.t.Helper()
	return b.serviceOn(b.db.Service, cost)
}

func (b *bundle) serviceOn(db *pgxpool.Pool, cost auth.HashParams) *auth.Service {
	b.t.Helper()
	keys, err := authn.LoadOrCreateKey(b.t.TempDir() + "/key.pem")
	if err != nil {
		b.t.Fatal(err)
	}
	signer, err := authn.NewSigner(authn.SignerConfig{Keys: keys, TTL: 5 * time.Minute})
	if err != nil {
		b.t.Fatal(err)
	}
	hasher, err := auth.NewHasher(cost, 8)
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := auth.New(auth.Options{
		DB: db, Hasher: hasher, Signer: signer, Secret: "0123456789abcdef", Now: b.clock.now, NewID: b.clock.newID,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// from is a call of nobody, from an address.
func (b *bundle) from(address string) context.Context {
	return grpcserver.WithInfo(b.t.Context(), grpcserver.Info{
		Method: "/counterfoil.auth.v1.TestService/Test", ClientAddress: address, UserAgent: "test", CorrelationID: "c-1",
	})
}

// as is a call of a user in a session.
func (b *bundle) as(u store.User, session uuid.UUID) context.Context {
	return authn.WithPrincipal(b.from("192.0.2.1"), authn.Principal{
		UserID: u.ID.String(), SessionID: session.String(), DisplayName: u.DisplayName, Roles: u.Roles,
	})
}

// asRoot is a call of the first operator, in a session that need not exist.
func (b *bundle) asRoot() context.Context { return b.as(b.root, uuid.UUID{15: 1}) }

// user makes an account.
func (b *bundle) user(name string) store.User {
	b.t.Helper()
	u, err := b.CreateUser(b.asRoot(), idempotency.Key{}, auth.NewUser{
		Email: strings.ToLower(name) + "@example.com", DisplayName: name, Password: goodPassword,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return u
}

func (b *bundle) login(u store.User, password string) (auth.Tokens, store.Session) {
	b.t.Helper()
	in, err := b.Login(b.from("192.0.2.1"), u.Email, password)
	if err != nil {
		b.t.Fatal(err)
	}
	return in.Tokens, in.Session
}

// key is a request id of root's; the same hash is the same body.
func key(id uuid.UUID, hash string) idempotency.Key {
	return idempotency.Key{Principal: "root", Method: "test", RequestID: id, BodyHash: []byte(hash)}
}

// events returns what was recorded, oldest first.
func (b *bundle) events() []*auditv1.AuditEvent {
	b.t.Helper()
	rows, err := b.db.Service.Query(context.Background(), `SELECT payload FROM audit_outbox ORDER BY append_no`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	var events []*auditv1.AuditEvent
	for rows.Next() {
		var payload []byte
		e := &auditv1.AuditEvent{}
		if err := rows.Scan(&payload); err != nil {
			b.t.Fatal(err)
		}
		if err := proto.Unmarshal(payload, e); err != nil {
			b.t.Fatal(err)
		}
		events = append(events, e)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return events
}

// recorded runs do and returns the events that it recorded.
func (b *bundle) recorded(do func()) []*auditv1.AuditEvent {
	b.t.Helper()
	before := len(b.events())
	do()
	return b.events()[before:]
}

// expect runs do and compares the events that it recorded, as lines, in any order.
func (b *bundle) expect(do func(), want ...string) []*auditv1.AuditEvent {
	b.t.Helper()
	events := b.recorded(do)
	var got []string
	for _, e := range events {
		got = append(got, line(e))
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		b.t.Errorf("recorded events (-want +got):\n%s", diff)
	}
	return events
}

// line is what matters of an event: type, operation, resource and version, outcome and reason, actor, changes.
func line(e *auditv1.AuditEvent) string {
	short := func(s string) string { return strings.TrimPrefix(s, strings.SplitAfter(s, "_")[0]) }
	parts := []string{
		e.GetEventType(), short(e.GetOperation().String()), fmt.Sprintf("%s@%d", e.GetResource().GetType(), e.GetResource().GetVersion()),
		short(e.GetOutcome().String()),
	}
	if e.GetReason() != "" {
		parts = append(parts, e.GetReason())
	}
	actor := e.GetActor().GetType()
	if name := e.GetActor().GetDisplayName().GetPlain(); name != "" {
		actor = name
	}
	parts = append(parts, "by "+actor)
	for _, c := range e.GetChanges() {
		old, now := c.GetOldValue().GetPlain(), c.GetNewValue().GetPlain()
		if strings.HasSuffix(c.GetField(), "_time") {
			old, now = strings.Repeat("t", min(1, len(old))), strings.Repeat("t", min(1, len(now)))
		}
		parts = append(parts, fmt.Sprintf("%s:%s>%s", c.GetField(), old, now))
	}
	return strings.Join(parts, " ")
}

// requireReason fails unless err has the kind and reason.
func requireReason(t *testing.T, err error, kind apperr.Kind, reason string) {
	t.Helper()
	if apperr.KindOf(err) != kind || apperr.ReasonOf(err) != reason {
		t.Errorf("got %v, want %v (%s)", err, kind, reason)
	}
}

// requireWhole checks, in SQL of its own, that each version of each audited row has one event and that no event names a
// version that its row never had (I1).
func (b *bundle) requireWhole() {
	b.t.Helper()
	rows, err := b.db.Service.Query(context.Background(), `
		WITH standing AS (
			SELECT 'user' AS type, id::text, version FROM users
			UNION ALL SELECT 'role_grant', id::text, version FROM role_grants
			UNION ALL SELECT 'session', id::text, version FROM sessions
			UNION ALL SELECT 'login_policy', id::text, version FROM login_policies
		), said AS (
			SELECT resource_type AS type, resource_id AS id, count(*) AS events, count(DISTINCT resource_version) AS versions,
			       max(resource_version) AS version, bool_or(operation = 'DELETE') AS deleted
			FROM audit_outbox WHERE resource_version IS NOT NULL GROUP BY 1, 2
		)
		SELECT coalesce(standing.type, said.type), coalesce(standing.id, said.id), standing.version, said.version, said.events
		FROM standing FULL JOIN said USING (type, id)
		WHERE said.events IS NULL OR said.events <> said.versions OR said.events <> said.version
		   OR standing.version IS NULL AND NOT said.deleted OR standing.version <> said.version`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Errorf("row and events differ (type, id, row's version, last recorded version, events): %v", values)
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
}
