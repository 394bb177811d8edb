// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports servers get lie below the range from which kernels take the local ports of outgoing connections, so that a
// server that is down for a while finds its port free again.
const (
	firstPort = 20000
	lastPort  = 31999
)

// FreePort returns a TCP port on 127.0.0.1 that nobody listens on at this moment. Another process can take
// it before the caller does: be ready to ask again.
func FreePort() (int, error) {
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := l.Close(); err == nil {
			return port, nil
		}
	}
	return 0, errors.New("no free port on 127.0.0.1")
}
