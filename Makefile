# Every target starts from nothing: it makes .venv, installs what it needs, and does its work.

PYTHON ?= python3
EXTRAS ?= dev,flower
VENV := .venv
# Which of the deployment tests: `make e2e E2E='e2e and not long'` leaves out those that take a minute each.
E2E ?= e2e
# In how many processes: 0 is one after the other, as the tests that take a minute each need it.
E2E_WORKERS ?= 0
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Where a machine forbids Python to write bytecode, every worker and process of the tests would compile pytest's
# rewritten modules again: seconds each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test e2e fuzz lint bench clean

demo: $(VENV)/.base
	$(BIN)/kohort demo --out out/demo

test: $(VENV)/.$(EXTRAS)
	$(BIN)/python -m pytest -n 2 --dist worksteal

e2e: $(VENV)/.$(EXTRAS)
	$(BIN)/python -m pytest -n $(E2E_WORKERS) --dist loadfile -m '$(E2E)' tests/e2e

# Drawn examples in full number and other ones every time; the default suite draws fewer where one takes long.
fuzz: $(VENV)/.$(EXTRAS)
	KOHORT_LIES=1 $(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile thorough
	$(BIN)/python tests/adversary/mutants.py

lint: $(VENV)/.$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(VENV)/.bench
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Some machines forbid Python to write bytecode on import; without it every start is five times slower. Kernels are
# compiled here, on all cores, so that neither the demo nor the tests wait for it.
$(VENV)/.base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	$(BIN)/python -m compileall -q src
	$(BIN)/python -c "from kohort.runs.compile import compile_kernels; compile_kernels()"
	touch $@

$(VENV)/.%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[$*]"
	$(BIN)/python -m compileall -q src
	$(BIN)/python -c "from kohort.runs.compile import compile_kernels; compile_kernels()"
	touch $@
