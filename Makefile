# make            what there is
# make run        a broker on this machine, its data in ./data (ARGS='…' adds to `penstock serve`)
# make test       all tests (ARGS='…' adds to pytest)
# make check      format, lint, types, import contracts, tidiness
# make format     put the format right
# make docs       write the tables of docs/configuration.md anew
# make bench      measure a broker (ARGS='…' adds to `penstock bench`)
#
# Longer ones, each bounded:
# make kills      200 brokers killed with SIGKILL, also at failpoints (KILLS=n)
# make sim        the seeded simulation, many seeds (SIM_SEEDS=n)
# make fuzz       the fuzzers, a while each (FUZZ_SECONDS=n)
# make soak       publish, consume and kill for an hour (SOAK_SECONDS=n)
#
# Needs Python 3.11 or newer and nothing else; PYTHON=/path/to/python chooses one. Everything is
# installed into .venv, once: a second run starts at once.

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
KILLS ?= 200
SIM_SEEDS ?= 500
FUZZ_SECONDS ?= 300
SOAK_SECONDS ?= 3600

.PHONY: help run test check format docs bench kills sim fuzz soak clean

help:
	@sed -n '/^# /s/^# //p;/^#$$/s/^#$$//p;/^VENV/q' Makefile

$(VENV)/.for-run: pyproject.toml scripts/make-venv
	@scripts/make-venv "" $@

$(VENV)/.for-dev: pyproject.toml scripts/make-venv
	@scripts/make-venv dev,compat $@

$(VENV)/.for-fuzz: pyproject.toml scripts/make-venv
	@scripts/make-venv fuzz $@

run: $(VENV)/.for-run
	@exec $(BIN)/penstock serve $(ARGS)

test: $(VENV)/.for-dev
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.for-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/tidy

format: $(VENV)/.for-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.for-dev
	$(BIN)/python -m tests.tidy.documented

bench: $(VENV)/.for-dev
	$(BIN)/penstock bench $(ARGS)

kills: $(VENV)/.for-dev
	PENSTOCK_KILLS=$(KILLS) $(BIN)/python -m pytest tests/integration/test_kills.py --timeout=0 $(ARGS)

sim: $(VENV)/.for-dev
	PENSTOCK_SIM_SEEDS=$(SIM_SEEDS) $(BIN)/python -m pytest tests/sim --timeout=0 $(ARGS)

fuzz: $(VENV)/.for-fuzz
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS) $(ARGS)

soak: $(VENV)/.for-dev
	PENSTOCK_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest tests/integration/test_soak.py --timeout=0 $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
