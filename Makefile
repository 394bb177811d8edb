# `make` prints what can be asked for. Each target is a line or two: the work is in the programs it calls.
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help generate generate-check lint breaking vet build test test-short demo demo-compose up down bench mutate ci clean
.DELETE_ON_ERROR:

GO  ?= go
PKG ?= ./...

help: ## print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

generate: bin/buf ## rewrite everything that is generated (protobuf code, and what `go generate` makes)
	bin/buf generate
	$(GO) generate ./...

generate-check: bin/buf ## fail if `make generate` would change a file
	scripts/generate-check.sh

lint: bin/buf bin/golangci-lint ## buf lint, buf breaking, golangci-lint, gofumpt
	bin/buf lint
	scripts/breaking.sh
	bin/golangci-lint run ./...

breaking: bin/buf ## compare the contracts with the last release, or with AGAINST=<git revision>
	scripts/breaking.sh $(AGAINST)

vet: ## go vet, without and with the failpoints
	$(GO) vet ./...
	$(GO) vet -tags failpoints ./...

build: ## all binaries into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./cmd/... ./services/...

test: bin/testrun ## all tests on real Postgres and Redis, with -race (PKG=./pkg/... for a part, RUN=Regexp for some)
	$(if $(filter ./...,$(PKG)),bin/testrun -tags failpoints ./internal/failpoint)
	bin/testrun $(if $(RUN),-run '$(RUN)') $(PKG)

test-short: ## only the tests that need no server
	$(GO) test -short $(PKG)

demo: ## play the whole system on this machine, without Docker, and check that nothing is missing
	$(GO) run ./test/demo

up: ## start the whole system under Docker Compose and wait until it is healthy
	deploy/compose/up.sh

demo-compose: ## play the demo's scenario against `make up`
	$(GO) run ./test/demo -compose

down: ## stop `make up` and delete its volumes
	deploy/compose/down.sh

bench: ## measure drain, latency and the cost of an event; writes bench.json (FLOOR=dir for a comparison)
	$(GO) run ./test/bench $(if $(FLOOR),-floor '$(FLOOR)')

mutate: ## break each promise once and see that its named test turns red
	$(GO) run ./test/mutations

ci: ## exactly what CI runs
	.ci/run

clean: ## delete bin/ and .dev/
	rm -rf bin .dev

# The tools are built once from their pinned versions in tools/go.mod and stay out of our own go.mod.
bin/buf: tools/go.mod
	cd tools && $(GO) build -buildvcs=false -o ../bin/buf github.com/bufbuild/buf/cmd/buf

bin/golangci-lint: tools/go.mod
	cd tools && $(GO) build -buildvcs=false -o ../bin/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

bin/grpcurl: tools/go.mod
	cd tools && $(GO) build -buildvcs=false -o ../bin/grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl

.PHONY: bin/testrun
bin/testrun:
	@$(GO) build -buildvcs=false -o bin/testrun ./internal/devserver/testrun
