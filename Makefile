# `make demo` and `make test` need Python 3.11 or later, make, and a package index; they make the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test files run whole in one worker, so that a file which starts MPI processes never meets itself.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest

# One thread a process: more ranks than cores would otherwise fight, and sums must keep their order.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
# Open MPI refuses to run as root (in a container, say) without both.
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test tests coverage soak bench lint format docs clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make .venv with the package and its tools

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "adfs needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,mpi]"
	@touch $@

demo: $(STAMP)  ## a short story on a 3 x 3 grid, and as a page in demo/
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## the linters and the tests, side by side
	$(MAKE) -j 2 lint tests

tests: $(STAMP)  ## the tests alone
	$(PYTEST) -n $(WORKERS) --dist loadfile

coverage: $(STAMP)  ## the tests, and which lines they reach (which makes them a quarter slower)
	$(PYTEST) -n $(WORKERS) --dist loadfile --cov --cov-report=term

soak: $(STAMP)  ## the long versions of the tests
	$(PYTEST) -m soak

bench: $(STAMP)  ## the benchmarks; the tables go to benchmarks/results
	$(BIN)/python -m benchmarks

lint: $(STAMP)  ## style, types, and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

format: $(STAMP)  ## put the code into its style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(STAMP)  ## the documentation, into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

clean:  ## remove everything that was made
	rm -rf $(VENV) build demo dist docs/_build docs/api docs/pictures docs/reference docs/tables.md .coverage .coverage.* .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
