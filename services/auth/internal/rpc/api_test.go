// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/counterfoil/counterfoil/internal/testdb"
	auditv1 "github.com/counterfoil/counterfoil/proto/counterfoil/audit/v1"
	authv1 "github.com/counterfoil/counterfoil/proto/counterfoil/auth/v1"
	"github.com/counterfoil/counterfoil/services/auth/internal/auth"
	"github.com/counterfoil/counterfoil/services/auth/internal/rpc"
)

// reads are the methods that change nothing.
var reads = []string{
	"GetSelf", "GetUser", "ListUsers", "ListRoleGrants", "GetSession", "ListSessions", "GetLoginPolicy",
	"GetOutboxStatus", "ListOutboxEvents", "GetOutboxEvent",
}

// methods lists every method that the server has, but for gRPC's own.
func (b *bundle) methods() []string {
	var all []string
	for service, info := range b.server.ServiceInfo() {
		if strings.HasPrefix(service, "grpc.") {
			continue
		}
		for _, m := range info.Methods {
			all = append(all, "/"+service+"/"+m.Name)
		}
	}
	return all
}

// TestEveryMethodHasARule: what is not in the table is refused to everybody.
func TestEveryMethodHasARule(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if missing := rpc.Policy().Missing(b.server.ServiceInfo()); len(missing) > 0 {
		t.Errorf("methods without a rule: %v", missing)
	}
	if len(rpc.Policy()) != len(b.methods()) {
		t.Errorf("%d rules for %d methods", len(rpc.Policy()), len(b.methods()))
	}
}

// TestCallsThatAreNotLetInAreRecorded: every method refuses a call without a token, and all but a user's own business one
// without the role. The refusal of what would change something is an event; that of reading is none (T18).
func TestCallsThatAreNotLetInAreRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.user("ada")
	ada, here := b.login("ada@example.com", goodPassword)
	revoked, gone := b.login("ada@example.com", goodPassword)
	_, err := b.sessions.RevokeSession(ada, &authv1.RevokeSessionRequest{Name: gone.GetSession().GetName(), RequestId: uuid.NewString()})
	b.must(err)
	open := []string{"Login", "Refresh"}
	own := append([]string{"Logout", "GetSelf", "ChangePassword", "GetUser", "GetSession", "ListSessions", "RevokeSession", "RevokeUserSessions"}, open...)
	for _, full := range b.methods() {
		name := full[strings.LastIndexByte(full, '/')+1:]
		for _, caller := range []struct {
			who    string
			ctx    context.Context
			pass   []string
			code   codes.Code
			reason string
			actor  string // its session; nobody has none
		}{
			{"nobody", t.Context(), open, codes.Unauthenticated, "TOKEN_MISSING", ""},
			{"a user without roles", ada, own, codes.PermissionDenied, "ROLE_REQUIRED", here.GetSession().GetName()},
			{"a user whose session is over", revoked, open, codes.Unauthenticated, "SESSION_ENDED", gone.GetSession().GetName()},
		} {
			if slices.Contains(caller.pass, name) {
				continue
			}
			events := b.recorded(func() { requireCode(t, b.invoke(caller.ctx, full), caller.code) })
			if slices.Contains(reads, name) {
				if len(events) != 0 {
					t.Errorf("%s by %s recorded %d events", name, caller.who, len(events))
				}
				continue
			}
			if len(events) != 1 {
				t.Errorf("%s by %s recorded %d events, want 1", name, caller.who, len(events))
				continue
			}
			e := events[0]
			if !strings.HasSuffix(e.GetAction(), "_refused") || e.GetReason() != caller.reason || e.GetMetadata()["method"] != name ||
				actorSession(e) != caller.actor || e.GetOutcome() != auditv1.Outcome_OUTCOME_DENIED {
				t.Errorf("%s by %s recorded %v", name, caller.who, e)
			}
		}
	}
}

// actorSession is the name of the session that an event's actor acted in.
func actorSession(e *auditv1.AuditEvent) string {
	a := e.GetActor()
	if a.GetType() == "anonymous" && a.GetId() == "" {
		return ""
	}
	return "users/" + a.GetId() + "/sessions/" + a.GetSessionId()
}

// invoke calls a method with an empty request.
func (b *bundle) invoke(ctx context.Context, full string) error {
	b.t.Helper()
	name := strings.ReplaceAll(strings.TrimPrefix(full, "/"), "/", ".")
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	b.must(err)
	m := d.(protoreflect.MethodDescriptor)
	return b.conn.Invoke(ctx, full, dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output()))
}

// TestEveryMutatingMethodCommitsAnEvent walks the API (U86): a method that is neither here nor a read fails the test.
func TestEveryMutatingMethodCommitsAnEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ada, doomed := b.user("ada"), b.user("doomed")
	ctx, login := b.login("ada@example.com", goodPassword)
	refresh := login.GetTokens().GetRefreshToken()
	_, other := b.login("ada@example.com", goodPassword)
	request := uuid.NewString
	steps := []struct {
		method string
		do     func() (proto.Message, error)
	}{
		{"CreateUser", func() (proto.Message, error) {
			return b.users.CreateUser(b.root, &authv1.CreateUserRequest{User: &authv1.User{Email: "eve@example.com", DisplayName: "Eve"}, Password: goodPassword, RequestId: request()})
		}},
		{"UpdateUser", func() (proto.Message, error) {
			return b.users.UpdateUser(b.root, &authv1.UpdateUserRequest{
				User:       &authv1.User{Name: ada.GetName(), DisplayName: "Ada", Etag: ada.GetEtag()},
				UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}}, RequestId: request(),
			})
		}},
		{"GrantRole", func() (proto.Message, error) {
			return b.users.GrantRole(b.root, &authv1.GrantRoleRequest{Parent: doomed.GetName(), Role: authv1.Role_ROLE_OPERATOR, RequestId: request()})
		}},
		{"RevokeRole", func() (proto.Message, error) {
			return b.users.RevokeRole(b.root, &authv1.RevokeRoleRequest{Name: doomed.GetName() + "/roleGrants/operator", RequestId: request()})
		}},
		{"Login", func() (proto.Message, error) {
			return b.auth.Login(t.Context(), &authv1.LoginRequest{Email: "ADA@example.com", Password: goodPassword})
		}},
		{"Refresh", func() (proto.Message, error) {
			return b.auth.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: refresh})
		}},
		{"RevokeSession", func() (proto.Message, error) {
			return b.sessions.RevokeSession(ctx, &authv1.RevokeSessionRequest{Name: other.GetSession().GetName(), RequestId: request()})
		}},
		{"ChangePassword", func() (proto.Message, error) {
			return b.auth.ChangePassword(ctx, &authv1.ChangePasswordRequest{CurrentPassword: goodPassword, NewPassword: "another long password", RequestId: request()})
		}},
		{"Logout", func() (proto.Message, error) { return b.auth.Logout(ctx, &authv1.LogoutRequest{}) }},
		{"RevokeUserSessions", func() (proto.Message, error) {
			b.login("ada@example.com", "another long password")
			return b.sessions.RevokeUserSessions(b.root, &authv1.RevokeUserSessionsRequest{Parent: ada.GetName(), RequestId: request()})
		}},
		{"ResetPassword", func() (proto.Message, error) {
			return b.users.ResetPassword(b.root, &authv1.ResetPasswordRequest{Name: ada.GetName(), NewPassword: goodPassword, RequestId: request()})
		}},
		{"UnlockUser", func() (proto.Message, error) {
			_, err := b.auth.Login(t.Context(), &authv1.LoginRequest{Email: "ada@example.com", Password: "a wrong password"})
			requireCode(t, err, codes.Unauthenticated)
			return b.users.UnlockUser(b.root, &authv1.UnlockUserRequest{Name: ada.GetName(), RequestId: request()})
		}},
		{"DisableUser", func() (proto.Message, error) {
			return b.users.DisableUser(b.root, &authv1.DisableUserRequest{Name: ada.GetName(), RequestId: request()})
		}},
		{"EnableUser", func() (proto.Message, error) {
			return b.users.EnableUser(b.root, &authv1.EnableUserRequest{Name: ada.GetName(), RequestId: request()})
		}},
		{"DeleteUser", func() (proto.Message, error) {
			return b.users.DeleteUser(b.root, &authv1.DeleteUserRequest{Name: doomed.GetName(), RequestId: request()})
		}},
		{"UpdateLoginPolicy", func() (proto.Message, error) {
			return b.policy.UpdateLoginPolicy(b.root, &authv1.UpdateLoginPolicyRequest{
				LoginPolicy: &authv1.LoginPolicy{LockoutDuration: durationpb.New(time.Minute)}, RequestId: request(),
			})
		}},
	}
	covered := append([]string{"RequeueOutboxEvents"}, reads...) // outboxrpc has its own tests
	for _, step := range steps {
		covered = append(covered, step.method)
		var err error
		events := b.recorded(func() { _, err = step.do() })
		if err != nil {
			t.Fatalf("%s: %v", step.method, err)
		}
		if !slices.ContainsFunc(events, func(e *auditv1.AuditEvent) bool { return e.GetOutcome() == auditv1.Outcome_OUTCOME_SUCCEEDED }) {
			t.Errorf("%s committed no event", step.method)
		}
	}
	for _, full := range b.methods() {
		if name := full[strings.LastIndexByte(full, '/')+1:]; !slices.Contains(covered, name) {
			t.Errorf("%s is neither a read nor in this walk", full)
		}
	}
}

// TestRevokedSessionsAreRefusedAtOnce, before their access tokens expire.
func TestRevokedSessionsAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.user("ada")
	ada, _ := b.login("ada@example.com", goodPassword)
	if _, err := b.auth.GetSelf(ada, &authv1.GetSelfRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := b.auth.Logout(ada, &authv1.LogoutRequest{})
	b.must(err)
	_, err = b.auth.GetSelf(ada, &authv1.GetSelfRequest{})
	requireCode(t, err, codes.Unauthenticated)
}

// TestPagesNeitherSkipNorRepeat, and their tokens answer one question only.
func TestPagesNeitherSkipNorRepeat(t *testing.T) {
	t.Parallel()
	b := setup(t)
	want := []string{b.rootName}
	for _, name := range []string{"ada", "bob", "cyd", "dan"} {
		want = append(want, b.user(name).GetName())
	}
	var got []string
	request := &authv1.ListUsersRequest{PageSize: 2}
	for {
		page, err := b.users.ListUsers(b.root, request)
		b.must(err)
		for _, u := range page.GetUsers() {
			got = append(got, u.GetName())
		}
		if request.PageToken = page.GetNextPageToken(); request.GetPageToken() == "" {
			break
		}
		if len(got) == 2 {
			_, err := b.users.ListUsers(b.root, &authv1.ListUsersRequest{PageToken: request.GetPageToken(), Email: "ada@example.com"})
			requireCode(t, err, codes.InvalidArgument)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages hold %v, want %v", got, want)
	}
	for range 3 {
		b.login("ada@example.com", goodPassword)
	}
	sessions := &authv1.ListSessionsRequest{Parent: want[1], PageSize: 2}
	first, err := b.sessions.ListSessions(b.root, sessions)
	b.must(err)
	sessions.PageToken = first.GetNextPageToken()
	second, err := b.sessions.ListSessions(b.root, sessions)
	b.must(err)
	if len(first.GetSessions()) != 2 || len(second.GetSessions()) != 1 || second.GetNextPageToken() != "" ||
		first.GetSessions()[1].GetName() <= second.GetSessions()[0].GetName() {
		t.Errorf("pages of sessions: %v, then %v", first, second)
	}
	grants, err := b.users.ListRoleGrants(b.root, &authv1.ListRoleGrantsRequest{Parent: b.rootName, PageSize: 2})
	b.must(err)
	if len(grants.GetRoleGrants()) != 2 || grants.GetNextPageToken() == "" {
		t.Errorf("first page of grants: %v", grants)
	}
}

// TestBadTextGetsAClearAnswer and never reaches the database.
func TestBadTextGetsAClearAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, request := range map[string]*authv1.CreateUserRequest{
		"NUL in a name":         {User: &authv1.User{Email: "x@example.com", DisplayName: "a\x00b"}, Password: goodPassword},
		"NUL in a password":     {User: &authv1.User{Email: "x@example.com", DisplayName: "x"}, Password: goodPassword + "\x00"},
		"NUL in an address":     {User: &authv1.User{Email: "x\x00@example.com", DisplayName: "x"}, Password: goodPassword},
		"no address":            {User: &authv1.User{DisplayName: "x"}, Password: goodPassword},
		"no user":               {Password: goodPassword},
		"a bad request id":      {User: &authv1.User{Email: "x@example.com", DisplayName: "x"}, Password: goodPassword, RequestId: "7"},
		"an over-long name":     {User: &authv1.User{Email: "x@example.com", DisplayName: strings.Repeat("x", 201)}, Password: goodPassword},
		"an over-long password": {User: &authv1.User{Email: "x@example.com", DisplayName: "x"}, Password: strings.Repeat("x", 257)},
	} {
		if _, err := b.users.CreateUser(b.root, request); err == nil {
			t.Errorf("%s passed", name)
		} else {
			requireCode(t, err, codes.InvalidArgument)
		}
	}
	// Invalid UTF-8 cannot be put into a string field by this client: the bytes are sent as another message's field.
	raw := dynamicpb.NewMessage((&authv1.LoginRequest{}).ProtoReflect().Descriptor())
	raw.SetUnknown(protoreflect.RawFields("\x0a\x01\xff\x12\x01x"))
	err := b.conn.Invoke(b.root, authv1.AuthService_Login_FullMethodName, raw, &authv1.LoginResponse{})
	if err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("invalid UTF-8: %v", err)
	}
	for _, mask := range []string{"etag", "roles", "nothing"} {
		_, err := b.users.UpdateUser(b.root, &authv1.UpdateUserRequest{User: &authv1.User{Name: b.rootName}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{mask}}})
		requireCode(t, err, codes.InvalidArgument)
	}
	_, err = b.users.UpdateUser(b.root, &authv1.UpdateUserRequest{User: &authv1.User{Name: b.rootName}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"email"}}})
	requireCode(t, err, codes.InvalidArgument)
}

// TestNoSecretIsStored pushes marked secrets through every call that takes or gives one, then looks for them, and for what
// was made of them, in every table and in the log (A70).
func TestNoSecretIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const marked = "canary-Passw0rd-"
	create := &authv1.CreateUserRequest{User: &authv1.User{Email: "ada@example.com", DisplayName: "Ada"}, Password: marked + "1", RequestId: uuid.NewString()}
	created, err := b.users.CreateUser(b.root, create)
	b.must(err)
	_, err = b.users.CreateUser(b.root, create)
	b.must(err)
	ctx, login := b.login("ada@example.com", marked+"1")
	refreshed, err := b.auth.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: login.GetTokens().GetRefreshToken()})
	b.must(err)
	_, err = b.auth.Refresh(t.Context(), &authv1.RefreshRequest{RefreshToken: marked + strings.Repeat("0", 43-len(marked))})
	requireCode(t, err, codes.Unauthenticated)
	_, err = b.auth.Login(t.Context(), &authv1.LoginRequest{Email: "ada@example.com", Password: marked + "2"})
	requireCode(t, err, codes.Unauthenticated)
	_, err = b.auth.Login(t.Context(), &authv1.LoginRequest{Email: marked + "typed-into-the-wrong-field", Password: "x"})
	requireCode(t, err, codes.Unauthenticated)
	_, err = b.auth.ChangePassword(ctx, &authv1.ChangePasswordRequest{CurrentPassword: marked + "3", NewPassword: marked + "4", RequestId: uuid.NewString()})
	requireCode(t, err, codes.PermissionDenied)
	_, err = b.auth.ChangePassword(ctx, &authv1.ChangePasswordRequest{CurrentPassword: marked + "1", NewPassword: marked + "5", RequestId: uuid.NewString()})
	b.must(err)
	_, err = b.users.ResetPassword(b.root, &authv1.ResetPasswordRequest{Name: created.GetUser().GetName(), NewPassword: marked + "6", RequestId: uuid.NewString()})
	b.must(err)
	_, err = b.auth.GetSelf(b.with(marked), &authv1.GetSelfRequest{})
	requireCode(t, err, codes.Unauthenticated)

	dump := dumpTables(t, b.db)
	// A text inside bytea is dumped as hex: the payloads are looked at as they are.
	rows, err := b.db.Owner.Query(t.Context(), `SELECT encode(payload, 'escape') FROM audit_outbox`)
	b.must(err)
	defer rows.Close()
	for rows.Next() {
		var payload string
		b.must(rows.Scan(&payload))
		dump += payload + "\n"
	}
	everything := strings.ToLower(dump + b.log.String())
	for _, secret := range []string{
		marked, login.GetTokens().GetRefreshToken(), login.GetTokens().GetAccessToken(),
		refreshed.GetTokens().GetRefreshToken(), refreshed.GetTokens().GetAccessToken(), rootPassword,
	} {
		if at := strings.Index(everything, strings.ToLower(secret)); at >= 0 {
			t.Errorf("a secret is stored: …%s…", everything[max(0, at-200):min(len(everything), at+100)])
		}
	}
	if !strings.Contains(dump, auth.ActionPasswordReset) || !strings.Contains(dump, "argon2id") {
		t.Error("the dump does not hold what it must: it would not find a secret either")
	}
	if n := strings.Count(dump, "argon2id"); n != 2 {
		t.Errorf("password hashes are stored %d times, want once for each account", n)
	}
}

// dumpTables is the text of every row of every table.
func dumpTables(t *testing.T, db *testdb.DB) string {
	t.Helper()
	rows, err := db.Owner.Query(t.Context(), `SELECT format('%I', tablename) FROM pg_tables WHERE schemaname = 'public'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var tables []string
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			t.Fatal(err)
		}
		tables = append(tables, table)
	}
	var all strings.Builder
	for _, table := range tables {
		var text string
		err := db.Owner.QueryRow(t.Context(), `SELECT coalesce(string_agg(r::text, E'\n'), '') FROM `+table+` r`).Scan(&text)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(text + "\n")
	}
	return all.String()
}
