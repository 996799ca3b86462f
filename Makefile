# fedmend: `make demo` shows the whole story, `make test` checks everything.
# Needs nothing but make and Python 3.11 or newer; the rest is set up in .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := .stamps/setup
COMPILED := .stamps/compiled
JOBS   ?= 2
BENCH  ?= split
# Two processes with one thread each are quicker than two that fight for the cores. Tests that share
# what was made for them stay in one of them (tests/conftest.py).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)
PIP    := --quiet --disable-pip-version-check
# Compiled files are kept: every process would else compile what it imports, and tests start many.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format types docs bench clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the exact set of requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedmend needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Mend: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@# Only for speed: the pip that comes with Python 3.11 takes seconds to put there, and more than
	@# twice as long to read an index. Where it cannot fetch a newer one, it does.
	$(PYTHON) -m venv --without-pip $(VENV)
	@$(PYTHON) -m pip --python $(BIN)/python install $(PIP) --no-compile "pip>=25" 2> /dev/null \
	  || $(PYTHON) -m venv $(VENV)
	@# Of the 14,000 files most are never imported: Python compiles the others when they are.
	$(BIN)/python -m pip install $(PIP) --no-compile -r requirements.lock
	$(BIN)/python -m pip install $(PIP) --no-deps --no-build-isolation -e .
	@mkdir -p $(@D) && touch $@

# What tests import is compiled once, beside the type checker; else each of their processes does it.
$(COMPILED): $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq > $@ || { cat $@; rm $@; exit 1; }

demo: setup ## the whole flow on real data: look, align, mend, train, predict, demo-run/report.html
	$(BIN)/fedmend demo --out demo-run

test: setup ## lint, types, docs and tests: what CI runs
	@# The docs import the package as well: after what tests import is compiled.
	@$(MAKE) --no-print-directory -j $(JOBS) $(COMPILED) types lint docs
	$(PYTEST)

test-slow: setup ## the long tests too, and those on the data under FEDMEND_DATA
	$(PYTEST) -m "slow or real"

lint: setup ## ruff, and the house: how heavy it is, and that every import points downwards
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/house.py

format: setup ## ruff: mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup ## mypy over src
	$(BIN)/mypy

docs: setup ## build the documentation into site/, strictly
	$(BIN)/mkdocs build --strict --site-dir site

bench: setup ## a benchmark of benchmarks/: make bench BENCH=split
	$(BIN)/fedmend bench $(BENCH)

clean: ## remove .venv, caches, builds and demo-run (your runs/ stay)
	rm -rf $(VENV) .stamps build dist site demo-run .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
