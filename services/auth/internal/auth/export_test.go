// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import "time"

// BusyHashing takes every slot of a service's hasher until release is called; who wants one waits for a moment.
func BusyHashing(s *Service) (release func()) {
	h, wait := s.hasher, s.hasher.wait
	h.wait = time.Millisecond
	for range cap(h.slots) {
		h.slots <- struct{}{}
	}
	return func() {
		h.wait = wait
		for range cap(h.slots) {
			<-h.slots
		}
	}
}
