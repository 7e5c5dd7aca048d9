# Two commands: `make quickstart` and `make test`. Both build .venv first; nothing else is prepared.
VENV ?= .venv
BIN := $(VENV)/bin
# Test files that run at once, each in a process of one thread; those that need Slurm mostly wait.
JOBS ?= 4
GRID ?= recipes/grids/quickstart.yaml
PIP_FLAGS := --quiet --disable-pip-version-check -c constraints.txt
# The first of these that is Python 3.11 to 3.13.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
  && echo $$p && break; done)

.PHONY: quickstart test suite environment check format help

help:
	@echo "make quickstart   environment, a small real sweep, the report (up to 10 minutes)"
	@echo "make test         lint, types and the whole test suite"
	@echo "make format       rewrite the sources in the project's style"

quickstart: $(VENV)/.train
	$(BIN)/isoloss run $(GRID)
	$(BIN)/isoloss report $(GRID)
	@echo "MLflow: $(BIN)/mlflow ui --backend-store-uri sqlite:///results/mlflow.db"

# The type check takes a minute, in which the longest tests mostly wait.
test: environment
	@$(MAKE) --no-print-directory -j2 check suite

suite: environment
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

environment: $(VENV)/.dev

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.train: $(VENV)/.venv pyproject.toml constraints.txt
	$(BIN)/pip install $(PIP_FLAGS) -e '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	$(BIN)/pip install $(PIP_FLAGS) -e '.[train,dev]'
	@touch $@

# Debian splits ensurepip off into a package of its own.
$(VENV)/.venv:
	@test -n "$(PYTHON)" || { echo "isoloss needs Python 3.11 to 3.13; none was found" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { test "$$(id -u)" = 0 \
	  && apt-get update -qq && apt-get install -y -qq python3-venv; } \
	  || { echo "Python's venv is missing: sudo apt-get install python3-venv" >&2; exit 2; }
	@echo "Building the environment in $(VENV): 1 to 3 minutes"
	$(PYTHON) -m venv $(VENV)
	@touch $@
