# Every target starts from nothing: it makes .venv, installs what it needs, and does its work.

PYTHON ?= python3
EXTRAS ?= dev,flower
VENV := .venv
# Which of the deployment tests: `make e2e E2E='e2e and not long'` leaves out those that take a minute each.
E2E ?= e2e
# In how many processes; 0 is one after the other.
E2E_WORKERS ?= 2
CASES ?= 10000
COUNT ?= 100
BIN := $(VENV)/bin
# Bytecode is written when a module is first used: most of what torch and Flower install never is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# Where a machine forbids Python to write bytecode, every worker and process of the tests would compile pytest's
# rewritten modules again: seconds each.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test e2e fuzz faults thorough mutants sampled-mutants lint supply bench clean

demo: $(VENV)/.base
	$(BIN)/kohort demo --out out/demo

test: $(VENV)/.$(EXTRAS)
	$(BIN)/python -m pytest -n 2 --dist worksteal

e2e: $(VENV)/.$(EXTRAS)
	$(BIN)/python -m pytest -n $(E2E_WORKERS) --dist loadfile --no-loadscope-reorder -m '$(E2E)' tests/e2e

# Damaged inputs of every kind through the real commands: 10,000 of them, others every time (CASES, SEED).
fuzz: $(VENV)/.$(EXTRAS)
	$(BIN)/python tests/support/fuzzing.py --cases $(CASES) $(if $(SEED),--seed $(SEED))

# kill -9, interrupts, full and read-only disks, clocks that go back, too little memory, at random moments of the commands.
faults: $(VENV)/.$(EXTRAS)
	$(BIN)/python tests/support/faults.py $(if $(SEED),--seed $(SEED))

# The suite with drawn examples in full number, other ones every time, and with every lie of a hub; it draws fewer by
# default where one takes long.
thorough: $(VENV)/.$(EXTRAS)
	KOHORT_LIES=1 $(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile thorough

# Guards broken one by one: those listed by hand.
mutants: $(VENV)/.$(EXTRAS)
	$(BIN)/python tests/adversary/mutants.py

# A sample of all places that can be changed (COUNT, SEED; docs/mutation.md).
sampled-mutants: $(VENV)/.$(EXTRAS)
	test -f out/reach.jsonl || $(BIN)/python tools/mutate.py --record out/reach.jsonl
	$(BIN)/python tools/mutate.py --reach out/reach.jsonl --count $(COUNT) $(if $(SEED),--seed $(SEED)) --out out/mutants.jsonl

lint: $(VENV)/.$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Licences of what is installed, known vulnerabilities of what is pinned (asked where there is a network), and a wheel
# that is the same bytes twice.
supply: $(VENV)/.$(EXTRAS)
	$(BIN)/python tools/sbom.py --licences > /dev/null || { $(BIN)/python tools/sbom.py --licences | grep LOOK; exit 1; }
	$(BIN)/python tools/supply.py

bench: $(VENV)/.bench
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Some machines forbid Python to write bytecode on import; without it every start is five times slower. Kernels are
# compiled here, on all cores, and what draws tables is loaded, so that neither demo nor tests wait for it.
$(VENV)/.base: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --editable .
	$(BIN)/python -m compileall -q src
	$(BIN)/python -c "from rich import progress, table; from kohort.runs.compile import compile_kernels; compile_kernels()"
	touch $@

# Kernels need the base alone, so they are compiled while the extras are installed: what the installed kohort asks for.
$(VENV)/.%: $(VENV)/.pip pyproject.toml constraints.txt
	$(PIP) --editable .
	$(BIN)/python -m compileall -q src
	PYTHONPATH=src $(BIN)/python -c "from kohort.runs.compile import compile_kernels; compile_kernels(releases=True)" & \
	compiling=$$!; $(PIP) "kohort[$*]" && wait $$compiling
	touch $@

# The pip that comes with Python 3.11 takes a minute longer to find out what to install.
$(VENV)/.pip: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	touch $@
