// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// oneToken knows the token "alice" and breaks at "broken".
type oneToken struct{}

func (oneToken) Verify(token string) (Principal, error) {
	switch token {
	case "alice":
		return alice(), nil
	case "broken":
		return Principal{}, apperr.Unavailable("TOKEN_KEYS_UNAVAILABLE", "later", 0)
	default:
		return Principal{}, tokenInvalid(errors.New("unknown"))
	}
}

func incoming(headers ...string) context.Context {
	md := metadata.MD{}
	for _, h := range headers {
		md.Append("authorization", h)
	}
	return metadata.NewIncomingContext(context.Background(), md)
}

func TestAuthenticate(t *testing.T) {
	t.Parallel()
	policy := Policy{
		"/s/Public": Public(), "/s/Any": Authenticated(), "/s/Auditor": AnyRole("operator", "auditor"),
		"/s/Operator": AnyRole("operator"), "/s/Nobody": AnyRole(), "/s/Zero": {},
	}
	for name, tc := range map[string]struct {
		method  string
		headers []string
		kind    apperr.Kind // KindInternal: let in
		reason  string
		known   bool
	}{
		"public, nobody":            {"/s/Public", nil, 0, "", false},
		"public, good token":        {"/s/Public", []string{"Bearer alice"}, 0, "", true},
		"public, bad token":         {"/s/Public", []string{"Bearer mallory"}, 0, "", false},
		"public, keys away":         {"/s/Public", []string{"Bearer broken"}, 0, "", false},
		"authenticated":             {"/s/Any", []string{"bearer alice"}, 0, "", true},
		"authenticated, nobody":     {"/s/Any", nil, apperr.KindUnauthenticated, "TOKEN_MISSING", false},
		"authenticated, bad token":  {"/s/Any", []string{"Bearer mallory"}, apperr.KindUnauthenticated, "TOKEN_INVALID", false},
		"authenticated, two tokens": {"/s/Any", []string{"Bearer alice", "Bearer alice"}, apperr.KindUnauthenticated, "TOKEN_INVALID", false},
		"authenticated, basic":      {"/s/Any", []string{"Basic alice"}, apperr.KindUnauthenticated, "TOKEN_INVALID", false},
		"authenticated, keys away":  {"/s/Any", []string{"Bearer broken"}, apperr.KindUnavailable, "TOKEN_KEYS_UNAVAILABLE", false},
		"role":                      {"/s/Auditor", []string{"Bearer alice"}, 0, "", true},
		"another role":              {"/s/Operator", []string{"Bearer alice"}, apperr.KindPermissionDenied, "ROLE_REQUIRED", true},
		"no role is enough":         {"/s/Nobody", []string{"Bearer alice"}, apperr.KindPermissionDenied, "ROLE_REQUIRED", true},
		"zero rule":                 {"/s/Zero", []string{"Bearer alice"}, apperr.KindPermissionDenied, "METHOD_NOT_ALLOWED", true},
		"not in the table":          {"/s/Forgotten", []string{"Bearer alice"}, apperr.KindPermissionDenied, "METHOD_NOT_ALLOWED", true},
		"not in the table, nobody":  {"/s/Forgotten", nil, apperr.KindUnauthenticated, "TOKEN_MISSING", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refusals []Refusal
			a, err := NewAuthenticator(AuthenticatorConfig{Verifier: oneToken{}, Policy: policy, Refused: func(ctx context.Context, r Refusal) {
				if _, known := PrincipalFrom(ctx); known != r.Known {
					t.Error("the hook's context and its argument differ")
				}
				refusals = append(refusals, r)
			}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, err := a.Authenticate(incoming(tc.headers...), tc.method)
			if (err == nil) != (tc.kind == apperr.KindInternal) || apperr.KindOf(err) != tc.kind || apperr.ReasonOf(err) != tc.reason {
				t.Fatalf("got %v, want %s %s", err, tc.kind, tc.reason)
			}
			p, known := PrincipalFrom(ctx)
			if known != tc.known || known && !cmp.Equal(p, alice()) {
				t.Errorf("principal %+v, %t", p, known)
			}
			refused := tc.kind == apperr.KindUnauthenticated || tc.kind == apperr.KindPermissionDenied
			if (len(refusals) == 1) != refused || len(refusals) > 1 {
				t.Fatalf("%d refusals were told", len(refusals))
			}
			if refused && (refusals[0].Method != tc.method || refusals[0].Reason != tc.reason || refusals[0].Known != tc.known) {
				t.Errorf("told %+v", refusals[0])
			}
		})
	}
}

func TestCheckCanRefuseAGoodToken(t *testing.T) {
	t.Parallel()
	revoked := apperr.Unauthenticated("SESSION_REVOKED", "the session has ended; log in again")
	var told []Refusal
	a, err := NewAuthenticator(AuthenticatorConfig{
		Verifier: oneToken{}, Policy: Policy{"/s/Any": Authenticated(), "/s/Public": Public()},
		Check: func(_ context.Context, p Principal) error {
			if p.SessionID == "s-1" {
				return revoked
			}
			return nil
		},
		Refused: func(ctx context.Context, r Refusal) {
			if p, known := PrincipalFrom(ctx); !known || !cmp.Equal(p, alice()) {
				t.Errorf("the hook's context names %+v, %t", p, known)
			}
			told = append(told, r)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Authenticate(incoming("Bearer alice"), "/s/Any"); !errors.Is(err, revoked) {
		t.Errorf("got %v", err)
	}
	ctx, err := a.Authenticate(incoming("Bearer alice"), "/s/Public")
	if _, known := PrincipalFrom(ctx); err != nil || known {
		t.Errorf("public: known %t, %v", known, err)
	}
	want := Refusal{Method: "/s/Any", Reason: "SESSION_REVOKED", Principal: alice(), Known: true, Err: revoked}
	if len(told) != 1 || !cmp.Equal(told[0], want, cmpopts.EquateErrors()) {
		t.Errorf("told %+v, want %+v", told, want)
	}
}

func TestInterceptors(t *testing.T) {
	t.Parallel()
	a, err := NewAuthenticator(AuthenticatorConfig{Verifier: oneToken{}, Policy: Policy{"/s/Any": Authenticated()}})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	note := func(ctx context.Context) {
		p, _ := PrincipalFrom(ctx)
		seen = append(seen, p.UserID)
	}
	unary := func(ctx context.Context) error {
		_, err := a.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/s/Any"}, func(ctx context.Context, _ any) (any, error) { note(ctx); return nil, nil })
		return err
	}
	stream := func(ctx context.Context) error {
		return a.Stream()(nil, fakeStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/s/Any"}, func(_ any, s grpc.ServerStream) error { note(s.Context()); return nil })
	}
	for _, call := range []func(context.Context) error{unary, stream} {
		if err := call(incoming("Bearer alice")); err != nil {
			t.Error(err)
		}
		if err := call(incoming()); status.Code(err) != codes.Unauthenticated {
			t.Errorf("got %v", err)
		}
	}
	if diff := cmp.Diff([]string{"u-1", "u-1"}, seen); diff != "" {
		t.Error(diff)
	}
}

type fakeStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // as grpc.ServerStream
}

func (s fakeStream) Context() context.Context { return s.ctx }

func TestPolicyMissing(t *testing.T) {
	t.Parallel()
	services := map[string]grpc.ServiceInfo{
		"x.S":                   {Methods: []grpc.MethodInfo{{Name: "B"}, {Name: "A"}, {Name: "Known"}}},
		"grpc.health.v1.Health": {Methods: []grpc.MethodInfo{{Name: "Check"}}},
	}
	if diff := cmp.Diff([]string{"/x.S/A", "/x.S/B"}, Policy{"/x.S/Known": Public()}.Missing(services)); diff != "" {
		t.Error(diff)
	}
}

func TestNewAuthenticatorNeedsAVerifier(t *testing.T) {
	t.Parallel()
	if _, err := NewAuthenticator(AuthenticatorConfig{}); err == nil {
		t.Error("accepted")
	}
}

func TestHasRole(t *testing.T) {
	t.Parallel()
	if p := alice(); !p.HasRole("x", "auditor") || p.HasRole("x") || p.HasRole() || (Principal{}).HasRole("") {
		t.Error("HasRole is wrong")
	}
}

func TestParseBearer(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"Bearer abc": "abc", "bearer a.b-c_d~e+f/g==": "a.b-c_d~e+f/g==", "BEARER x": "x",
		"": "", "Bearer": "", "Bearer ": "", "Bearer  abc": "", " Bearer abc": "", "Bearer abc ": "", "Bearer a b": "", "Bearer a,b": "",
		"Bearer =": "", "Bearer a=b": "", "Bearer é": "", "Bearer a\x00": "", "Basic abc": "", "Bearerabc": "", "Bearer\tabc": "",
		"Bearer " + strings.Repeat("a", maxToken+1): "",
	} {
		got, err := ParseBearer(header)
		if got != want || (err == nil) != (want != "") || err != nil && apperr.ReasonOf(err) != "TOKEN_INVALID" {
			t.Errorf("%.40q: %q, %v", header, got, err)
		}
	}
}

// FuzzParseBearer: what is accepted has the allowed form and comes back unchanged.
func FuzzParseBearer(f *testing.F) {
	for _, seed := range []string{"Bearer abc", "bearer a=", "Bearer ", "Bearer a b", "Basic x", "Bearer \xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		token, err := ParseBearer(header)
		if err != nil {
			if token != "" || apperr.KindOf(err) != apperr.KindUnauthenticated {
				t.Errorf("%q: %q, %v", header, token, err)
			}
			return
		}
		if len(token) > maxToken || strings.ContainsAny(token, " \t\r\n,\x00") || !strings.EqualFold(header, "bearer "+token) {
			t.Errorf("%q gave %q", header, token)
		}
	})
}

// FuzzVerify: whatever is sent as a token, only one that was signed is believed.
func FuzzVerify(f *testing.F) {
	b := newBench(f)
	good := b.sign(f, alice())
	strip := strings.NewReplacer("\r", "", "\n", "") // encoding/base64 passes over line ends; ParseBearer does not
	for _, seed := range []string{"", "a.b.c", good, good[:len(good)-1], strings.ToUpper(good), "." + good} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := b.verifier.Verify(token); err == nil && strip.Replace(token) != good {
			t.Errorf("believed %q", token)
		} else if err != nil && apperr.KindOf(err) != apperr.KindUnauthenticated {
			t.Errorf("%q: %v", token, err)
		}
	})
}
