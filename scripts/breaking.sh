#!/usr/bin/env bash
# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Refuses a change of the contracts that breaks callers or stored events.
#
#   scripts/breaking.sh [revision]
#
# Without a revision it compares with the point where this branch left main; on main itself with the
# newest release tag. Before the first release, on main, nothing has been promised and it says so.
set -euo pipefail
cd "$(dirname "$0")/.."

# base prints the commit to compare with, or nothing.
base() {
	local main fork
	for main in origin/main main; do
		if fork=$(git merge-base HEAD "$main" 2>/dev/null) && [ "$fork" != "$(git rev-parse HEAD)" ]; then
			echo "$fork"
			return
		fi
	done
	git describe --tags --match 'v[0-9]*' --abbrev=0 2>/dev/null || true
}

if ! git rev-parse --git-dir >/dev/null 2>&1; then
	echo "breaking: this is not a git checkout, nothing to compare with"
	exit 0
fi
against=${1:-$(base)}
if [ -z "$against" ]; then
	echo "breaking: no release yet, nothing to compare with (try: make breaking AGAINST=HEAD~1)"
	exit 0
fi
if [ -z "$(git ls-tree -r --name-only "$against" -- proto)" ]; then
	echo "breaking: $against holds no contracts, nothing to compare with"
	exit 0
fi
echo "breaking: comparing the contracts with $against"

# The old tree is unpacked rather than read through buf's own git input: that would clone the repository.
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive "$against" -- proto third_party buf.yaml | tar -x -C "$old"
bin/buf breaking --against "$old"
