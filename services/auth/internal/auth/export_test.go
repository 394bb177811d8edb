// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package auth

import "time"

// HoldHashing takes every slot of a service's hasher until release is called; who wants one waits for it.
func HoldHashing(s *Service) (release func()) {
	for range cap(s.hasher.slots) {
		s.hasher.slots <- struct{}{}
	}
	return func() {
		for range cap(s.hasher.slots) {
			<-s.hasher.slots
		}
	}
}

// BusyHashing takes every slot of a service's hasher until release is called; who wants one waits for a moment.
func BusyHashing(s *Service) (release func()) {
	h, wait := s.hasher, s.hasher.wait
	h.wait = time.Millisecond
	free := HoldHashing(s)
	return func() {
		h.wait = wait
		free()
	}
}
