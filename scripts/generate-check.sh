#!/usr/bin/env bash
# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Fails if `make generate` changes, adds or removes a file. It compares the tree before and after, not
# with the last commit, so it is right in a tree with work in progress too.
set -euo pipefail
cd "$(dirname "$0")/.."

# snapshot prints a checksum of each file of the tree but what git ignores.
snapshot() {
	find . \( -name .git -o -path ./bin -o -path ./.dev \) -prune -o -type f ! -name '*.log' -print0 | sort -z | xargs -0 sha256sum
}

before=$(snapshot)
make --no-print-directory generate
if ! diff <(printf '%s\n' "$before") <(snapshot); then
	echo "generate-check: generated files are out of date (see above): run make generate and commit the result" >&2
	exit 1
fi
echo "generate-check: ok"
