// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

const (
	maxCorrelation = 64
	maxUserAgent   = 256 // bytes
	maxForwarded   = 32  // hops that are looked at
)

// Info is what a call says about where it comes from, for audit events and logs.
type Info struct {
	// Method is the full method name.
	Method string
	// PeerAddress is the address at the other end of our socket, without port; empty if it is no IP address.
	PeerAddress string
	// ClientAddress is the nearest address that is not a trusted proxy's. ClientAddressClaimed says that it was read
	// from x-forwarded-for, and is so only as good as the proxies; otherwise it equals PeerAddress. A header from
	// anybody but a trusted proxy is ignored.
	ClientAddress        string
	ClientAddressClaimed bool
	// UserAgent is untrusted text: valid UTF-8, at most 256 bytes, no control characters.
	UserAgent string
	// CorrelationID is the caller's x-correlation-id if it has 1 to 64 of A–Z a–z 0–9 . _ : -, otherwise a fresh id.
	CorrelationID string
	// TraceID, SpanID, Traceparent and Tracestate (W3C) are of the span current in the context that was asked; empty
	// without one.
	TraceID, SpanID, Traceparent, Tracestate string
}

type infoKey struct{}

// RequestInfo returns what the server knows about the call of ctx; outside a call only the trace fields can be filled.
func RequestInfo(ctx context.Context) Info {
	info, _ := ctx.Value(infoKey{}).(Info)
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		carrier := propagation.MapCarrier{}
		propagation.TraceContext{}.Inject(ctx, carrier)
		info.TraceID, info.SpanID = span.TraceID().String(), span.SpanID().String()
		info.Traceparent, info.Tracestate = carrier["traceparent"], carrier["tracestate"]
	}
	return info
}

// WithInfo returns ctx as if it belonged to the call that info describes: for tests, and for work that no call asked
// for.
func WithInfo(ctx context.Context, info Info) context.Context {
	return context.WithValue(ctx, infoKey{}, info)
}

func (s *Server) withInfo(ctx context.Context, fullMethod string) (context.Context, string) {
	info := Info{Method: fullMethod, UserAgent: userAgent(first(ctx, "user-agent")), CorrelationID: first(ctx, correlationHeader)}
	if !validCorrelation(info.CorrelationID) {
		info.CorrelationID = s.cfg.NewID()
	}
	direct := peerAddress(ctx)
	client := clientAddress(direct, metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"), s.cfg.TrustedProxies)
	info.PeerAddress, info.ClientAddress = addressText(direct), addressText(client)
	info.ClientAddressClaimed = client != direct
	ctx = context.WithValue(ctx, drainKey{}, s.draining)
	return WithInfo(ctx, info), info.CorrelationID
}

func first(ctx context.Context, key string) string {
	values := metadata.ValueFromIncomingContext(ctx, key)
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

func validCorrelation(id string) bool {
	return id != "" && len(id) <= maxCorrelation && !strings.ContainsFunc(id, func(r rune) bool {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return false
		default:
			return !strings.ContainsRune("._:-", r)
		}
	})
}

func userAgent(raw string) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(raw, "\uFFFD"))
	if len(clean) <= maxUserAgent {
		return clean
	}
	cut := maxUserAgent
	for !utf8.RuneStart(clean[cut]) {
		cut--
	}
	return clean[:cut]
}

// peerAddress is the address of our socket's other end; the zero Addr for transports without one.
func peerAddress(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	return parseAddress(p.Addr.String())
}

// parseAddress reads an IP address with or without port and brackets, IPv4 in IPv6 unwrapped, zones dropped.
func parseAddress(s string) netip.Addr {
	s = strings.TrimSpace(s)
	if host, _, err := net.SplitHostPort(s); err == nil {
		s = host
	}
	addr, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}

// clientAddress walks x-forwarded-for from its end, where the nearest proxy wrote, for as long as the hop before is
// trusted. An entry that is no address ends the walk: whoever is behind it cannot be known.
func clientAddress(direct netip.Addr, forwarded []string, trusted []netip.Prefix) netip.Addr {
	hops := strings.Split(strings.Join(forwarded, ","), ",")
	client := direct
	for i := len(hops) - 1; i >= max(0, len(hops)-maxForwarded) && isTrusted(client, trusted); i-- {
		hop := parseAddress(hops[i])
		if !hop.IsValid() {
			break
		}
		client = hop
	}
	return client
}

func isTrusted(a netip.Addr, trusted []netip.Prefix) bool {
	for _, p := range trusted {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
