# Two commands from a fresh clone: `make demo` rebuilds the paper at small size, `make test` checks that joma is right.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= joma-out

.PHONY: demo test bench docs results clean

demo: $(VENV)/installed
	$(BIN)/joma verify --out $(OUT)
	$(BIN)/joma simulate --preset figure4 --out $(OUT)/simulation
	$(BIN)/joma reproduce --preset quick --out $(OUT)
	$(BIN)/joma report $(OUT)

test: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto

bench: $(VENV)/installed
	$(BIN)/python benchmarks/theory.py
	$(BIN)/python benchmarks/rank.py
	$(BIN)/python benchmarks/entropy.py
	$(BIN)/python benchmarks/data.py
	$(BIN)/python benchmarks/train.py

docs: $(VENV)/installed
	$(BIN)/python -m joma.checks.documents docs
	$(BIN)/python -m joma.paper.documents

# Keeps the small part of `joma reproduce --preset full --out $(OUT)` in the repository, and writes of it in docs.
results: $(VENV)/installed
	$(BIN)/python -m joma.paper.documents keep $(OUT)

# The stamp is newer than the files that say what to install, or the set-up runs again.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "joma needs Python 3.11 or newer, found $$($(PYTHON) --version). Pass one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) $(OUT) build *.egg-info
