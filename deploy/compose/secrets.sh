#!/usr/bin/env bash
# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Makes every secret that compose.yaml names, once: a file that has something in it is left as it is.
# The folder is closed to others; the files in it can be read by the containers' users.
set -euo pipefail
cd "$(dirname "$0")"
dir=${SECRETS_DIR:-secrets}
mkdir -p "$dir"
chmod 700 "$dir"

random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

# secret NAME VALUE writes a file if it is not there, or was left empty by an end in the middle.
secret() {
	if [ ! -s "$dir/$1" ]; then
		(umask 022 && printf '%s\n' "$2" >"$dir/$1")
	fi
}

value() { cat "$dir/$1"; }

secret superuser_password "$(random 16)"
secret bootstrap_password "$(random 12)"
for owner in auth app admin; do
	secret "${owner}_owner_password" "$(random 16)"
	secret "${owner}_service_password" "$(random 16)"
	secret "${owner}_redis_password" "$(random 16)"
	secret "${owner}_page_token_key" "$(random 32)"
	secret "${owner}_superuser_url" "postgres://postgres:$(value superuser_password)@${owner}-db:5432/postgres?sslmode=disable"
	secret "${owner}_database_url" "postgres://${owner}_service:$(value ${owner}_service_password)@${owner}-db:5432/${owner}?sslmode=disable"
	secret "${owner}_redis_url" "redis://${owner}:$(value ${owner}_redis_password)@redis:6379/0"
done
for owner in auth app; do
	secret "${owner}_mac_keys" "1:$(random 32)"
done

# Who may do what on the broker. An owner adds to its own stream and reads only its receipts; Admin reads all streams and
# adds to none of them; anybody may ask whether the server is there. Nobody can log in as the default user, yet it keeps
# its rights on the streams: when the server starts, it replays its log as that user, and many versions leave out,
# without a word but in the log, each transaction that the user may not make. A read of several entries is one. (What it
# left out was never pending: the next entry that is read marks it as read by everybody. github.com/redis/redis/issues/14541)
sed "s/AUTH_PASSWORD/$(value auth_redis_password)/; s/APP_PASSWORD/$(value app_redis_password)/; \
	s/ADMIN_PASSWORD/$(value admin_redis_password)/" users.acl >"$dir/redis_users"
chmod 644 "$dir/redis_users"
