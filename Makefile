# The front door. `make` or `make help` lists the verbs; `make BIN= check` uses the active environment.
BIN ?= .venv/bin/
T   ?= tests

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint types arch tidy check test cov demo bench bench-java fuzz fuzz-native pure interop peers patterns replicas spark slow soak sim sim-long planted install docs screenshots site changelog lock build ci clean

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## create .venv from the hashed requirements and install this tree into it
	python3 -m venv .venv
	$(BIN)pip install -q --require-hashes --no-deps -r requirements/test.txt
	$(BIN)pip install -q --no-deps --no-build-isolation -e .

fmt:  ## format and autofix
	$(BIN)ruff format .
	$(BIN)ruff check --fix .

lint:  ## ruff, both halves
	$(BIN)ruff check .
	$(BIN)ruff format --check .

types:  ## mypy --strict over src
	$(BIN)mypy

arch:  ## who may import whom
	$(BIN)lint-imports

tidy:  ## the house rules that are tests
	$(BIN)pytest -q tests/tidy --ignore tests/tidy/test_static.py  # whose checks lint, types and arch make

check: lint types arch tidy  ## everything static; run it before each commit

test:  ## the whole suite; T=path picks files, SEED=n replays an order, FAST=1 leaves out the slow ones
	$(BIN)pytest -n 4 $(if $(SEED),--randomly-seed=$(SEED)) $(if $(FAST),-m "not slow") $(T)

cov:  ## branches that the pure rooms' own tests take, at least 95 % a room; see tests/coverage.toml
	$(BIN)python tests/branch_coverage.py

demo:  ## 336,776 flights through a cluster of its own, every count checked
	$(BIN)cometmq demo

bench:  ## throughput and latency, with the machine and the conditions printed
	$(BIN)cometmq bench $(ARGS)

bench-java:  ## the same beside RocketMQ's Java broker, in turn; ARGS="--quick --html page.html"
	COMETMQ_INTEROP_CACHE=$${COMETMQ_INTEROP_CACHE:-$(CURDIR)/interop/.cache} \
		$(BIN)cometmq bench --against java $(ARGS)

fuzz:  ## spoilt frames, records and bodies at every decoder; ARGS="--seconds 600 --seed 7"
	$(BIN)python fuzz/fuzz_wire.py $(ARGS)

fuzz-native:  ## hostile bytes at the native core under sanitizers; ARGS="--seconds 600 --seed 7"
	$(BIN)python fuzz/fuzz_native.py $(ARGS)

pure:  ## the suite without the native core
	COMETMQ_PURE=1 $(BIN)pytest -n 4 $(T)

interop:  ## RocketMQ's own clients and servers against ours; ARGS="-k retry"
	INTEROP=full $(BIN)pytest -m interop tests/interop $(ARGS)

spark:  ## Spark with kills, clusters and every page; ARGS="-k archive"
	SPARK=full $(BIN)pytest tests/spark tests/docs $(ARGS)

peers:  ## the servers that `make patterns` and `make interop` start, from Debian's packages (needs root)
	apt-get install -y --no-install-recommends mariadb-server postgresql prometheus redis-server

patterns:  ## patterns in PostgreSQL, MariaDB and Redis, with processes killed at every step; ARGS="-k kills"
	$(BIN)pip install -q --require-hashes --no-deps -r requirements/patterns.txt
	PATTERNS=full $(BIN)pytest tests/patterns $(ARGS)

replicas:  ## replica sets of real processes: kills, stops, cut links, full disks (needs root); SERIES=50 ARGS="-k killed -s"
	REPLICAS=full $(BIN)pytest tests/replicas $(ARGS)

slow:  ## what tests/slow.txt keeps out of `make test`: more kills, full disks, damage, benchmarks
	SLOW=full $(BIN)pytest -n 4 tests $(foreach room,interop patterns replicas spark tidy docs golden,--ignore tests/$(room)) $(ARGS)

install:  ## the wheel and each extra from it, in fresh environments; ARGS="-k client"
	INSTALL=full $(BIN)pytest tests/install $(ARGS)

soak:  ## ten minutes of mixed clients that come, go and are killed; ARGS="--seconds 60 --seed 7"
	$(BIN)python -m interop.soak $(ARGS)

sim:  ## whole clusters from seeds with every kind of fault; ARGS="--seeds 0..2000 --minutes 10"
	$(BIN)python -m cometmq.testing.simulate $(ARGS)

sim-long:  ## new seeds for MINUTES minutes, from START on or from a random one
	$(BIN)python -m cometmq.testing.simulate --minutes $(or $(MINUTES),60) $(if $(START),--from $(START)) $(ARGS)

planted:  ## look for each planted bug from seed 0 on, and print how many seeds it took; ARGS="--only torn"
	$(BIN)python -m tests.planted.search $(ARGS)
	$(BIN)python -m tests.planted.replica_sets

lock:  ## resolve again and export the hashed requirements
	$(BIN)uv lock
	$(BIN)uv export -q --locked --no-emit-project --no-header --no-annotate --no-default-groups --group build --group demo -o requirements/demo.txt
	$(BIN)uv export -q --locked --no-emit-project --no-header --no-annotate --no-default-groups --group test -o requirements/test.txt
	$(BIN)uv export -q --locked --no-emit-project --no-header --no-annotate --only-group docs -o requirements/docs.txt
	$(BIN)uv export -q --locked --no-emit-project --no-header --no-annotate --only-group patterns -o requirements/patterns.txt
	$(BIN)uv export -q --locked --no-emit-project --no-header --no-annotate --only-group native -o requirements/native.txt

docs:  ## write the reference pages that repeat what the code says
	$(BIN)python docs/generate.py

screenshots:  ## the manual's pictures of reports and of the console, in Chromium; ARGS=--record runs the demo before
	$(BIN)python -m tests.browser.screenshots $(ARGS)
	$(BIN)python -m tests.browser.console_scene

site:  ## the manual as a site in site/; broken links and anchors fail
	command -v $(BIN)mkdocs >/dev/null || $(BIN)pip install -q --require-hashes --no-deps -r requirements/docs.txt
	$(BIN)mkdocs build --strict --clean

changelog:  ## fold the fragments of changes/ into CHANGELOG.md; ARGS="--draft" only shows them
	$(BIN)towncrier build --yes $(ARGS)

build:  ## wheel and source archive in dist/
	$(BIN)uv build

ci:  ## what the server runs
	.ci/run

clean:  ## remove caches and builds, keep .venv
	rm -rf dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
