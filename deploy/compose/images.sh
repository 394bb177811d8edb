# Copyright The Counterfoil Authors
# SPDX-License-Identifier: Apache-2.0

# Read by up.sh. The published images are used where they are or can be pulled. Where no
# registry answers, stand-ins are built from Debian's packages and this machine's Go, and
# POSTGRES_IMAGE, REDIS_IMAGE and GO_IMAGE name them.
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

# golang builds a stand-in from the Go that is installed here, and the certificates it trusts.
golang() {
	has counterfoil-standin/golang && return
	debian
	echo "counterfoil: no registry answers for golang: building a stand-in from $(go env GOVERSION)"
	local context
	context=$(mktemp -d)
	cp standin/golang/Dockerfile "$context"
	tar -C "$(go env GOROOT)" -cf "$context/go.tar" .
	cp /etc/ssl/certs/ca-certificates.crt "$context/" 2>/dev/null || : >"$context/ca-certificates.crt"
	docker build -q -t counterfoil-standin/golang --build-arg GOPROXY="$(go env GOPROXY)" "$context" >/dev/null
	rm -rf "$context"
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
	golang
	GO_IMAGE=counterfoil-standin/golang
fi
export POSTGRES_IMAGE=${POSTGRES_IMAGE:-postgres:17} REDIS_IMAGE=${REDIS_IMAGE:-redis:8} GO_IMAGE=${GO_IMAGE:-golang:1.26}
