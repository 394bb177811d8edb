// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package grpcserver

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// pingsAccepted speaks bare HTTP/2 to addr: it sends n pings at the interval, without any call, and says whether the
// server kept the connection.
func pingsAccepted(t *testing.T, addr net.Addr, n int, every time.Duration) bool {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	acks := make(chan struct{}, n) // closed when the server says goodbye
	go func() {
		defer close(acks)
		for {
			f, err := framer.ReadFrame()
			if err != nil || f.Header().Type == http2.FrameGoAway {
				return
			}
			if ping, is := f.(*http2.PingFrame); is && ping.IsAck() {
				acks <- struct{}{}
			}
		}
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	sent, answered := 0, 0
	for {
		select {
		case <-tick.C:
			if sent == n {
				continue
			}
			if err := framer.WritePing(false, [8]byte{byte(sent)}); err != nil {
				return false
			}
			sent++
		case _, ok := <-acks:
			if !ok {
				return false
			}
			if answered++; answered == n {
				return true
			}
		}
	}
}
