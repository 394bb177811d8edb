// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package redisstream

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/counterfoil/counterfoil/pkg/inbox"
)

// bound is the most bytes that the answer to a command may have; 0: any number. A read of a stream says how many entries it
// wants, and nobody knows their sizes before the client has them in memory.
type bound struct{ bytes atomic.Int64 }

// dialer returns what connects as the client would, to connections that hold to b.
func (b *bound) dialer(o *redis.Options) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dial := redis.NewDialer(o)
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		bounded := &boundedConn{Conn: conn, bound: b}
		if raw, ok := conn.(rawConn); ok {
			return &boundedSocket{bounded, raw}, nil
		}
		return bounded, nil
	}
}

// boundedConn counts what it reads in answer to its last write.
type boundedConn struct {
	net.Conn
	bound *bound
	read  atomic.Int64
}

// Write implements net.Conn.
func (c *boundedConn) Write(p []byte) (int, error) {
	c.read.Store(0)
	return c.Conn.Write(p)
}

// Read implements net.Conn. After an answer that is too large the client gives the connection up.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if most := c.bound.bytes.Load(); c.read.Add(int64(n)) > most && most > 0 {
		return 0, inbox.ErrTooLarge
	}
	return n, err
}

// boundedSocket also has what the client looks at to see that an idle connection was closed.
type boundedSocket struct {
	*boundedConn
	rawConn
}

type rawConn = syscall.Conn
