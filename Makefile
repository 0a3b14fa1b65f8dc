# weft's errands. `make demo` and `make test` need Python 3.11 to 3.13, a C++ compiler, nothing else.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
# What to install where the environment has no PyTorch yet, and flags for pip when it does. The
# plain Linux package from the registry brings CUDA libraries with it (gigabytes); on a machine
# without a GPU, point PIP_TORCH_FLAGS at PyTorch's CPU packages as its install page says.
TORCH ?= torch==2.13.0
PIP_TORCH_FLAGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN_STAMP := $(VENV)/.weft-run
DEV_STAMP := $(VENV)/.weft-dev

# Of `make fuzz`. The seeds are the same each time, so that what it finds is of the change and not of the day; other seeds are for
# campaigns (docs/internals/judge.md).
FUZZ_SEED ?= 1300000
FUZZ_COUNT ?= 100

# Of `make coverage`: the rooms that are measured, the least share of lines and branches of each, in per cent, and the tests that run.
ROOMS := tensor block fuse cascade masks schedule cost emit pipeline plan
COVERED ?= 90
TESTS ?= tests

.PHONY: help venv demo test lint style code types imports check coverage shuffled fuzz format bench files diagrams screenshots browser clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

venv: $(DEV_STAMP) ## make the virtual environment in .venv

demo: $(RUN_STAMP) ## derive attention; compile example functions; print what was fused, proven and measured
	$(BIN)/weft demo

bench: $(RUN_STAMP) ## measure against eager, Inductor and PyTorch's own attention
	$(BIN)/weft bench

test: style code imports $(DEV_STAMP) ## everything CI runs: lint, a minute of random functions, the tests
	@$(MAKE) --no-print-directory --jobs 2 types fuzz # the type checker has one thread
	@$(MAKE) --no-print-directory check

check: $(DEV_STAMP) ## the tests alone
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

coverage: $(DEV_STAMP) ## the tests, and which lines and branches of the core rooms they run; fails below 90 % of a room
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist worksteal -q $(TESTS)
	$(BIN)/coverage combine --quiet
	@failed=; for room in $(ROOMS); do \
	  $(BIN)/coverage report --skip-covered --show-missing --precision 1 --include "*/weft/$$room/*" --fail-under $(COVERED) \
	    || failed="$$failed $$room"; \
	done; test -z "$$failed" || { echo "below $(COVERED) %:$$failed"; exit 1; }

shuffled: $(DEV_STAMP) ## the tests ten times, in other orders, with other hash seeds and other cache folders
	for seed in 1 2 3 4 5 6 7 8 9 10; do \
	  echo "seed $$seed"; \
	  PYTHONHASHSEED=$$seed $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q --shuffled $$seed || exit 1; \
	done

fuzz: $(DEV_STAMP) ## random functions, a minute; other seeds: make fuzz FUZZ_SEED=5 FUZZ_COUNT=6000
	$(BIN)/weft fuzz --kind functions --seed $(FUZZ_SEED) --count $(FUZZ_COUNT) --jobs $(JOBS)

files: ## every source file with what it is for; of one room: make files ROOM=fuse
	@PYTHONPATH=tests $(PYTHON) -m testkit.files $(ROOM)

diagrams: $(RUN_STAMP) ## draw the pictures of docs/guide/reports.md again
	$(BIN)/python -m weft.lab.diagrams docs/guide/diagrams

screenshots: $(RUN_STAMP) ## take the screenshots of docs/guide/reports.md again, with Chromium
	$(BIN)/python -m weft.lab.screenshots docs/guide/reports

browser: ## install Chromium, for screenshots and the test that opens a report in it (Debian, Ubuntu; as root)
	apt-get install --yes --no-install-recommends chromium

lint: style code types imports ## formatting, lint, types, import order

style: $(DEV_STAMP)
	$(BIN)/ruff format --check .

code: $(DEV_STAMP)
	$(BIN)/ruff check .

types: $(DEV_STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(DEV_STAMP)
	$(BIN)/lint-imports --no-cache

format: $(DEV_STAMP) ## format, and mend what the linter can mend
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove the environment and every cache of the tools
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
	find src tests -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "weft needs Python 3.11, 3.12 or 3.13; '$(PYTHON)' is" \
	    "$$($(PYTHON) --version 2>/dev/null || echo missing). Name one: make PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

# PyTorch goes first and by itself: weft's own requirement is then met, and pip fetches no other.
$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install --quiet $(PIP_TORCH_FLAGS) '$(TORCH)'
	$(PIP) install --quiet --editable .
	@if [ ! -e /dev/nvidiactl ] && $(PIP) list 2>/dev/null | grep -q '^nvidia-'; then \
	  echo "warning: CUDA packages were installed on a machine without an NVIDIA GPU." \
	    "To avoid them: make clean, then set PIP_TORCH_FLAGS as the Makefile's head says." >&2; \
	fi
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	$(PIP) install --quiet --editable '.[dev]'
	@touch $@
