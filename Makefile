# `make demo` and `make test` set up .venv on their own; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread per worker: several that each take all cores only wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
READY := $(VENV)/.ready
DEMO ?= demo
WORKERS ?= 2
# Slow tests wait for processes they started, so one worker more than cores keeps both busy.
WORKERS_FULL ?= 3
# Without cached bytecode, every process compiles PyTorch's sources anew: 11 s in place of 4.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo docs test test-full lint types contract wheel check size clean help

help:
	@echo "make demo       a made-up cell: train both models, test, explain, rank; then one page"
	@echo "make test       laws, units, real files, commands (a few minutes)"
	@echo "make test-full  these and the slow ones: faults, several processes, learning, the docs"
	@echo "make check      lint, types, the import contract, and a wheel that is used"
	@echo "make docs       the docs as a site in site/, to be read without a network"
	@echo "make size       lines of code, docstrings and comments by package"
	@echo "make setup      make .venv; the others do it when it is needed"
	@echo "make clean      remove .venv, caches, and the demo"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "deltacell needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version)."; \
	    echo "Name another one: make setup PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
# The pip that comes with Python 3.11 resolves three times as slowly.
	$(PIP) --upgrade pip
	$(PIP) torch
	$(PIP) -e '.[dev,metabolism,sql,tensorboard,xlsx]'
	@touch $(READY)

demo: setup
	$(BIN)/deltacell demo --out $(DEMO)

docs: setup
	$(BIN)/python docs/site.py
	$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

test: setup
	$(PYTEST) -m "not slow and not timed" -n $(WORKERS) --dist worksteal

test-full: setup
# One worker runs all tests of a file, which share what is slow to make; slow files come first.
	$(PYTEST) -m "not timed and not full" -n $(WORKERS_FULL) --dist loadfile --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check src devtools tests
	$(BIN)/ruff format --check src devtools tests

types: setup
	$(BIN)/mypy

contract: setup
	$(BIN)/lint-imports --no-cache

wheel: setup
	PYTHON=$(PYTHON) bash .ci/wheel

check: lint types contract wheel

size:
	@$(PYTHON) devtools/deltacell_dev/size.py

clean:
	rm -rf $(VENV) $(DEMO) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
