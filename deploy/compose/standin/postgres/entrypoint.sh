#!/bin/sh
# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Makes the cluster at the first start, as the published image does, and then is the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 >/dev/null
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
fi
exec "$@" -c listen_addresses='*'
