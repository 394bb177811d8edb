#!/usr/bin/env bash
# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Makes every secret that compose.yaml names, once: a file that exists is left as it is.
# The folder is closed to others; the files in it can be read by the containers' users.
set -euo pipefail
cd "$(dirname "$0")"
dir=${SECRETS_DIR:-secrets}
mkdir -p "$dir"
chmod 700 "$dir"

random() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

# secret NAME VALUE writes a file if it is not there.
secret() {
	if [ ! -e "$dir/$1" ]; then
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

# What each side may do on the streams, and nothing else: an owner adds to its own stream, Admin
# reads all of them and can add to none. The default user can only ask whether the server is there.
both='-@all +ping +client|setname +client|setinfo'
secret redis_users "user default on nopass resetkeys resetchannels -@all +ping
user auth on >$(value auth_redis_password) resetkeys resetchannels $both %W~audit:{auth} %R~receipts:{auth} +xadd +xread +xrevrange
user app on >$(value app_redis_password) resetkeys resetchannels $both %W~audit:{app} %R~receipts:{app} +xadd +xread +xrevrange
user admin on >$(value admin_redis_password) resetkeys resetchannels $both %RW~audit:{*} +xreadgroup +xack +xautoclaim +xpending +xinfo +info +xrange +xlen +xtrim +xgroup|create +xgroup|delconsumer +eval +evalsha +script|load (%W~receipts:{*} +xadd)"
