#!/usr/bin/env bash
# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Stops what up.sh started and deletes its data and its secrets.
set -euo pipefail
cd "$(dirname "$0")"
source ./engine.sh
compose down --volumes --remove-orphans
rm -rf "${SECRETS_DIR:-secrets}"
