// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

func withHeader(ctx context.Context, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

func TestRequestInfoOfACall(t *testing.T) {
	t.Parallel()
	var got Info
	s := start(t, Config{
		TracerProvider: sdktrace.NewTracerProvider(), Propagator: propagation.TraceContext{},
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, NewID: func() string { return "made" },
	}, handlers{do: func(ctx context.Context, _ string) (string, error) { got = RequestInfo(ctx); return "x", nil }})
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx := withHeader(t.Context(), correlationHeader, "order-7:a_b.c", "x-forwarded-for", "203.0.113.9",
		"traceparent", "00-"+traceID+"-00f067aa0ba902b7-01", "tracestate", "vendor=1")
	var header metadata.MD
	if _, err := s.do(ctx, "x", grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got.UserAgent, "grpc-go/") || len(got.SpanID) != 16 || got.SpanID == "00f067aa0ba902b7" {
		t.Errorf("user agent %q, span %q", got.UserAgent, got.SpanID)
	}
	want := Info{
		Method: doMethod, PeerAddress: "127.0.0.1", ClientAddress: "203.0.113.9", ClientAddressClaimed: true,
		CorrelationID: "order-7:a_b.c", UserAgent: got.UserAgent, TraceID: traceID, SpanID: got.SpanID,
		Traceparent: "00-" + traceID + "-" + got.SpanID + "-01", Tracestate: "vendor=1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"order-7:a_b.c"}, header.Get(correlationHeader)); diff != "" {
		t.Error(diff)
	}
	if _, err := s.do(withHeader(t.Context(), correlationHeader, "bad id"), "x", grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if got.CorrelationID != "made" || header.Get(correlationHeader)[0] != "made" {
		t.Errorf("correlation %q, header %v", got.CorrelationID, header)
	}
}

func TestRequestInfoOutsideACall(t *testing.T) {
	t.Parallel()
	if got := RequestInfo(context.Background()); got != (Info{}) {
		t.Errorf("got %+v", got)
	}
	if got := RequestInfo(WithInfo(context.Background(), Info{CorrelationID: "c"})); got.CorrelationID != "c" {
		t.Errorf("got %+v", got)
	}
	ctx, span := sdktrace.NewTracerProvider().Tracer("t").Start(context.Background(), "s")
	defer span.End()
	if got := RequestInfo(ctx); got.TraceID != span.SpanContext().TraceID().String() || got.Traceparent == "" {
		t.Errorf("got %+v", got)
	}
}

func TestClientAddress(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for name, tc := range map[string]struct {
		direct    string
		forwarded []string
		want      string
	}{
		"no header":                      {"10.0.0.1", nil, "10.0.0.1"},
		"one proxy":                      {"10.0.0.1", []string{"203.0.113.9"}, "203.0.113.9"},
		"a stranger's header is ignored": {"198.51.100.1", []string{"203.0.113.9"}, "198.51.100.1"},
		"what the client added itself":   {"10.0.0.1", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		"two proxies":                    {"10.0.0.1", []string{"203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		"two headers":                    {"10.0.0.1", []string{"203.0.113.9", "10.0.0.2"}, "203.0.113.9"},
		"all trusted":                    {"10.0.0.1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		"rubbish ends the walk":          {"10.0.0.1", []string{"203.0.113.9, unknown, 10.0.0.2"}, "10.0.0.2"},
		"rubbish alone":                  {"10.0.0.1", []string{"x"}, "10.0.0.1"},
		"with port":                      {"10.0.0.1", []string{"203.0.113.9:4711"}, "203.0.113.9"},
		"IPv6":                           {"fd00::1", []string{"2001:db8::7"}, "2001:db8::7"},
		"IPv6 with port":                 {"fd00::1", []string{"[2001:db8::7]:80"}, "2001:db8::7"},
		"IPv4 in IPv6":                   {"::ffff:10.0.0.1", []string{"203.0.113.9"}, "203.0.113.9"},
		"endless":                        {"10.0.0.1", []string{strings.Repeat("10.0.0.9,", 1000) + "10.0.0.2"}, "10.0.0.9"},
		"no address of our own":          {"@", []string{"203.0.113.9"}, ""},
	} {
		got := clientAddress(parseAddress(tc.direct), tc.forwarded, trusted)
		if addressText(got) != tc.want {
			t.Errorf("%s: %s, want %s", name, addressText(got), tc.want)
		}
	}
}

func TestValidCorrelation(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"a": true, "A-1_2.3:4": true, strings.Repeat("a", 64): true,
		"": false, strings.Repeat("a", 65): false, "a b": false, "é": false, "a\n": false, "a/b": false, "a\x00": false, "{a}": false,
	} {
		if validCorrelation(id) != want {
			t.Errorf("%q: %t", id, !want)
		}
	}
}

func TestUserAgentIsMadeHarmless(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"curl/8": "curl/8", "": "", "a\nb\x00c\x1b[31m": "a b c [31m", "x\xff": "x\uFFFD", strings.Repeat("é", 500): strings.Repeat("é", 128),
	} {
		if got := userAgent(raw); got != want {
			t.Errorf("%q gave %q", raw, got)
		}
	}
}

// FuzzInfo: headers are strangers' text; what is kept of them is bounded, valid and harmless.
func FuzzInfo(f *testing.F) {
	f.Add("agent", "1.2.3.4, 5.6.7.8", "id")
	f.Add("\xff\n", ",,[::1]:80,", "")
	trusted := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	f.Fuzz(func(t *testing.T, agent, forwarded, id string) {
		if got := userAgent(agent); len(got) > maxUserAgent || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b") {
			t.Errorf("agent %q gave %q", agent, got)
		}
		if got := clientAddress(netip.MustParseAddr("10.0.0.1"), []string{forwarded}, trusted); !got.IsValid() || got.Zone() != "" {
			t.Errorf("forwarded %q gave %s", forwarded, got)
		}
		if validCorrelation(id) && (len(id) > maxCorrelation || !utf8.ValidString(id)) {
			t.Errorf("id %q is valid", id)
		}
	})
}
