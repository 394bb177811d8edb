# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Read by up.sh. The published images are used where they are or can be pulled. Where no
# registry answers, stand-ins are built from Debian's packages and with this machine's Go;
# POSTGRES_IMAGE, REDIS_IMAGE and SERVICE_DOCKERFILE name them.
# shellcheck shell=bash

has() { docker image inspect "$1" >/dev/null 2>&1; }

# available IMAGE: here already, or pulled now.
available() { has "$1" || timeout "${PULL_TIMEOUT:-120}" docker pull -q "$1" >/dev/null 2>&1; }

# debian builds the root file system that the stand-ins start from.
debian() {
	has counterfoil-standin/debian && return
	if ! command -v mmdebstrap >/dev/null; then
		if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
			echo "counterfoil: no image registry answers, and mmdebstrap is not here to build stand-ins: install it, or name images in POSTGRES_IMAGE, REDIS_IMAGE and GO_IMAGE" >&2
			exit 1
		fi
		apt-get update -qq && apt-get install -y -qq --no-install-recommends mmdebstrap
	fi
	mmdebstrap --quiet --variant=minbase --include=ca-certificates trixie - | docker import - counterfoil-standin/debian >/dev/null
}

# standin NAME CONTEXT builds one stand-in image.
standin() {
	has "counterfoil-standin/$1" && return
	debian
	echo "counterfoil: no registry answers for $1: building a stand-in from Debian's packages"
	docker build -q -t "counterfoil-standin/$1" "$2" >/dev/null
}

# binaries builds the services with this machine's Go, for images that hold nothing else.
binaries() {
	echo "counterfoil: no registry answers for golang: building the binaries with $(go env GOVERSION) of this machine"
	mkdir -p ../../.dev/standin/state/keys ../../.dev/standin/state/jwks
	(cd ../.. && CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs=false -ldflags=-s -o .dev/standin/ \
		./services/auth ./services/app ./services/admin ./cmd/migrate)
}

if [ -z "${POSTGRES_IMAGE:-}" ] && ! available postgres:17; then
	standin postgres standin/postgres
	POSTGRES_IMAGE=counterfoil-standin/postgres
fi
if [ -z "${REDIS_IMAGE:-}" ] && ! available redis:8; then
	standin redis standin/redis
	REDIS_IMAGE=counterfoil-standin/redis
fi
if [ -z "${GO_IMAGE:-}" ] && ! available golang:1.26; then
	binaries
	export SERVICE_DOCKERFILE=deploy/compose/standin/Dockerfile
fi
export POSTGRES_IMAGE=${POSTGRES_IMAGE:-postgres:17} REDIS_IMAGE=${REDIS_IMAGE:-redis:8} GO_IMAGE=${GO_IMAGE:-golang:1.26}
