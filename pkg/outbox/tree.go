// Copyright The Counterfoil Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"fmt"

	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"

	"github.com/counterfoil/counterfoil/pkg/envelope"
)

// tree is the Merkle tree of RFC 6962 over a ledger's events in the order of
// their numbers, leaf n-1 being envelope.LeafHash of number n. It is kept as its
// compact range, at most 63 hashes: the roots of the full subtrees that make up
// its size, the largest first. That is all it takes to add a leaf or find the root.
type tree struct{ leaves *compact.Range }

var treeHashes = compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}

// newTree returns the tree of size leaves that has this compact range.
func newTree(size int64, hashes [][]byte) (tree, error) {
	for i, h := range hashes {
		if len(h) != rfc6962.DefaultHasher.Size() {
			return tree{}, fmt.Errorf("compact_range[%d] has %d bytes, not %d", i+1, len(h), rfc6962.DefaultHasher.Size())
		}
	}
	leaves, err := treeHashes.NewRange(0, uint64(max(size, 0)), hashes)
	if err != nil {
		return tree{}, fmt.Errorf("a tree of %d leaves: %w", size, err)
	}
	return tree{leaves}, nil
}

// add appends the events' leaves.
func (t tree) add(msgs []Message) error {
	for i := range msgs {
		leaf := envelope.LeafHash(msgs[i].EventID, msgs[i].Payload)
		if err := t.leaves.Append(leaf[:], nil); err != nil {
			return fmt.Errorf("extend the tree: %w", err)
		}
	}
	return nil
}

// size is how many leaves the tree has.
func (t tree) size() int64 { return int64(t.leaves.End()) }

// compactRange is what newTree is made from again.
func (t tree) compactRange() [][]byte { return t.leaves.Hashes() }
