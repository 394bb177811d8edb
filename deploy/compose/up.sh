#!/usr/bin/env bash
# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Starts the whole system under Docker Compose, waits until every service is healthy and
# makes the first operator. Running it again changes nothing that works.
set -euo pipefail
cd "$(dirname "$0")"
source ./engine.sh
source ./images.sh
./secrets.sh

compose build
compose up -d

# health prints a container's state: healthy, starting, unhealthy, exited …
health() {
	docker inspect -f '{{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}' "$(compose ps -q "$1")" 2>/dev/null || echo absent
}

deadline=$((SECONDS + ${WAIT_SECONDS:-180}))
for service in auth app admin; do
	until [ "$(health "$service")" = healthy ]; do
		if [ $SECONDS -ge $deadline ]; then
			compose ps
			compose logs --tail=40 "$service"
			echo "counterfoil: $service is $(health "$service") after ${WAIT_SECONDS:-180} s: its last lines are above" >&2
			exit 1
		fi
		sleep 1
	done
done

# Refused with a clear error if there is an operator already, which is as good.
if ! bootstrap=$(compose run --rm bootstrap 2>&1) && ! grep -qi already <<<"$bootstrap"; then
	printf '%s\n' "$bootstrap" >&2
	exit 1
fi

cat <<EOF

Counterfoil is up.
  auth   gRPC 127.0.0.1:${AUTH_PORT:-7001}   metrics http://127.0.0.1:${AUTH_DEBUG_PORT:-7101}/metrics
  app    gRPC 127.0.0.1:${APP_PORT:-7002}   metrics http://127.0.0.1:${APP_DEBUG_PORT:-7102}/metrics
  admin  gRPC 127.0.0.1:${ADMIN_PORT:-7003}   metrics http://127.0.0.1:${ADMIN_DEBUG_PORT:-7103}/metrics

Try:
  make demo-compose                 a realistic day, and the audit trail it leaves
  go run ./cmd/counterfoil login ${BOOTSTRAP_EMAIL:-operator@example.com} --password-file ${SECRETS_DIR:-deploy/compose/secrets}/bootstrap_password
  go run ./cmd/counterfoil audit list
  make down                         stop it and delete its data
EOF
