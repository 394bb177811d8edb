// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"errors"
	"maps"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/counterfoil/counterfoil/internal/apperr"
)

// TokenVerifier turns a token into the principal that it states; *Verifier is one.
type TokenVerifier interface {
	Verify(token string) (Principal, error)
}

// Refusal is a call that was not let in.
type Refusal struct {
	// Method is the full method name.
	Method string
	// Reason is the reason code of Err: TOKEN_MISSING, TOKEN_INVALID, TOKEN_EXPIRED, ROLE_REQUIRED, METHOD_NOT_ALLOWED,
	// or what the configured Check gave.
	Reason string
	// Principal is who the token names, where Known is true: its signature was good, even if Check then refused it.
	Principal Principal
	Known     bool
	// Err is what the caller gets.
	Err error
}

// AuthenticatorConfig puts verification and policy together.
type AuthenticatorConfig struct {
	Verifier TokenVerifier
	Policy   Policy
	// Check is asked after the token was found good and before the role is looked at, except where a method is public
	// (there its refusal makes the call anonymous). It is for what a token cannot know, such as a revoked session.
	Check func(ctx context.Context, p Principal) error
	// Refused is called for each refusal, in the call's own goroutine and before the caller gets its answer, so that a
	// service can record it. Anyone can cause refusals: the service bounds what it spends on them.
	Refused func(ctx context.Context, r Refusal)
}

// Authenticator decides, per call, who is calling and whether they may. It is safe for concurrent use.
type Authenticator struct {
	cfg AuthenticatorConfig
}

// NewAuthenticator checks cfg; the policy is copied.
func NewAuthenticator(cfg AuthenticatorConfig) (*Authenticator, error) {
	if cfg.Verifier == nil {
		return nil, errors.New("authenticator: no verifier")
	}
	cfg.Policy = maps.Clone(cfg.Policy)
	return &Authenticator{cfg: cfg}, nil
}

// Authenticate returns ctx with the Principal, or the refusal as an apperr error (Unauthenticated, PermissionDenied).
// Trouble that is no refusal, such as keys that are not there yet, is returned without calling Refused.
func (a *Authenticator) Authenticate(ctx context.Context, fullMethod string) (context.Context, error) {
	p, known, err := a.admit(ctx, fullMethod)
	if known {
		ctx = WithPrincipal(ctx, p)
	}
	if err == nil {
		return ctx, nil
	}
	switch apperr.KindOf(err) {
	case apperr.KindUnauthenticated, apperr.KindPermissionDenied:
		if a.cfg.Refused != nil {
			a.cfg.Refused(ctx, Refusal{Method: fullMethod, Reason: apperr.ReasonOf(err), Principal: p, Known: known, Err: err})
		}
	}
	return ctx, err
}

func (a *Authenticator) admit(ctx context.Context, fullMethod string) (p Principal, known bool, err error) {
	rule := a.cfg.Policy[fullMethod]
	p, known, err = a.identify(ctx)
	if rule.access == public {
		if err != nil {
			p = Principal{}
		}
		return p, err == nil, nil
	}
	if err != nil {
		return p, known, err
	}
	if rule.access == denied {
		return p, true, apperr.PermissionDenied("METHOD_NOT_ALLOWED", "the method may not be called")
	}
	if rule.access == withRole && !p.HasRole(rule.roles...) {
		roles := strings.Join(rule.roles, ", ")
		return p, true, apperr.PermissionDenied("ROLE_REQUIRED", "the call needs one of the roles: "+roles).With("roles", roles)
	}
	return p, true, nil
}

// identify returns the caller by its token. One whom Check refuses is known all the same: a refusal is told with who it was.
func (a *Authenticator) identify(ctx context.Context) (p Principal, known bool, err error) {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	switch len(values) {
	case 0:
		return Principal{}, false, apperr.Unauthenticated("TOKEN_MISSING", "the call needs an access token: log in and send it as authorization: Bearer TOKEN")
	case 1:
	default:
		return Principal{}, false, tokenInvalid(errors.New("more than one authorization header"))
	}
	token, err := ParseBearer(values[0])
	if err != nil {
		return Principal{}, false, err
	}
	if p, err = a.cfg.Verifier.Verify(token); err != nil {
		return Principal{}, false, err
	}
	if a.cfg.Check != nil {
		err = a.cfg.Check(ctx, p)
	}
	return p, true, err
}

// ParseBearer returns the token of an authorization header after RFC 6750: the scheme in any case, one space, and a
// token of the characters that RFC 7235 allows, at most 8 KiB. Anything else is apperr.Unauthenticated (TOKEN_INVALID).
func ParseBearer(header string) (string, error) {
	scheme, token, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", tokenInvalid(errors.New("not a bearer header"))
	}
	if token == "" || len(token) > maxToken {
		return "", tokenInvalid(errors.New("token is empty or too long"))
	}
	body := strings.TrimRight(token, "=")
	if body == "" || strings.ContainsFunc(body, notToken68) {
		return "", tokenInvalid(errors.New("token has characters that are not allowed"))
	}
	return token, nil
}

func notToken68(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	default:
		return !strings.ContainsRune("-._~+/", r)
	}
}

// Unary is Authenticate as an interceptor, for servers that package grpcserver did not make. It applies the policy to
// every method, those of health and reflection included.
func (a *Authenticator) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := a.Authenticate(ctx, info.FullMethod)
		if err != nil {
			return nil, apperr.ToStatus(err, apperr.Domain).Err()
		}
		return handler(ctx, req)
	}
}

// Stream is Unary for streams.
func (a *Authenticator) Stream() grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := a.Authenticate(stream.Context(), info.FullMethod)
		if err != nil {
			return apperr.ToStatus(err, apperr.Domain).Err()
		}
		return handler(srv, &streamWithContext{stream, ctx})
	}
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // grpc.ServerStream carries its context by design
}

func (s *streamWithContext) Context() context.Context { return s.ctx }
