# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Read by up.sh and down.sh: finds the engine and Compose, v2 or Debian's v1.
# shellcheck shell=bash

compose() { "${COMPOSE[@]}" -f compose.yaml -p "${COMPOSE_PROJECT_NAME:-counterfoil}" "$@"; }

if ! docker info >/dev/null 2>&1; then
	echo "counterfoil: no Docker engine answers: start it, or try 'make demo', which needs none" >&2
	exit 1
fi
if docker compose version >/dev/null 2>&1; then
	COMPOSE=(docker compose)
elif command -v docker-compose >/dev/null; then
	COMPOSE=(docker-compose)
else
	echo "counterfoil: install Docker Compose: the package docker-compose-plugin or docker-compose" >&2
	exit 1
fi
