# The front door. `make` or `make help` lists the verbs; `make RUN= check` uses the active environment.
PY  ?= .venv/bin/python
RUN ?= $(PY) -m
UV  ?= .venv/bin/uv
T   ?= tests

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types arch tidy check test demo bench lock build ci clean

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## create .venv from the hashed requirements and install this tree into it
	python3 -m venv .venv
	$(PY) -m pip install -q --require-hashes --no-deps -r requirements/test.txt
	$(PY) -m pip install -q --no-deps --no-build-isolation -e .

fmt:  ## format and autofix
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

lint:  ## ruff, both halves
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types:  ## mypy --strict over src
	$(RUN) mypy

arch:  ## who may import whom
	$(RUN) importlinter.cli lint

tidy:  ## the house rules that are tests
	$(RUN) pytest -q tests/tidy

check: lint types arch tidy  ## everything static; run it before each commit

test:  ## the whole suite; T=path picks files, SEED=n replays an order, FAST=1 leaves out the slow ones
	$(RUN) pytest $(if $(SEED),--randomly-seed=$(SEED)) $(if $(FAST),-m "not slow") $(T)

demo:  ## 336,776 flights through a cluster of its own, every count checked
	.venv/bin/cometmq demo

bench:  ## throughput and latency, with the machine and the conditions printed
	.venv/bin/cometmq bench $(ARGS)

lock:  ## resolve again and export the hashed requirements
	$(UV) lock
	$(UV) export -q --locked --no-emit-project --no-header --no-annotate --no-default-groups --group build --group demo -o requirements/demo.txt
	$(UV) export -q --locked --no-emit-project --no-header --no-annotate --no-default-groups --group test -o requirements/test.txt

build:  ## wheel and source archive in dist/
	$(UV) build

ci:  ## what the server runs
	.ci/run

clean:  ## remove caches and builds, keep .venv
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
