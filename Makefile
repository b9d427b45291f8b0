# From a fresh clone: `make demo` shows what joma does, `make check` takes a minute, `make test` runs everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT ?= joma-out
THREADS ?= 1
FAST := tests/claims tests/charts tests/measure tests/test_house.py tests/test_metrics.py tests/test_errors.py tests/test_architecture.py
FLOOR := tests/measure/test_entropy.py tests/measure/test_rank.py tests/probe/test_checkpoint.py tests/probe/test_measurement.py \
	tests/probe/test_scan.py tests/probe/test_watch.py

.PHONY: demo check test bench drill loggers fuzz floor docs results clean

# The kept results come first, so that there is a page to read while the rest is computed.
demo: $(VENV)/demo
	@echo "$(OUT)/index.html shows the kept results in a moment, and at the end also what is computed here."
	$(BIN)/joma report results --out $(OUT)
	$(BIN)/joma verify --out $(OUT)
	$(BIN)/joma reproduce figure4 --threads $(THREADS) --out $(OUT)
	$(BIN)/joma train --recipe small --seed 1 --threads $(THREADS) --out $(OUT)/training
	$(BIN)/joma report results $(OUT) --out $(OUT)

# Without the checker of shapes, which makes every call ten times slower. `make test` has it.
check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n auto -o addopts=--strict-markers -m "not slow" $(FAST)

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
	$(BIN)/python benchmarks/watch.py
	$(BIN)/python benchmarks/audit.py
	$(BIN)/python benchmarks/explore.py

# Damaged files and odd options for everything that reads.
fuzz: $(VENV)/installed
	$(BIN)/python tests/fuzz.py --inputs 20000

# The lowest versions that watch and scan support, in an environment of their own: several GB of torch's GPU libraries.
# Series on the hub need a newer client than these versions bring, so tests that read some are left out.
floor:
	$(PYTHON) -m venv build/floor
	build/floor/bin/pip install --quiet 'torch==2.6.0' 'transformers==4.50.0' 'numpy<2.3' accelerate pytest hypothesis '.[report]'
	build/floor/bin/python -m pytest -q -o addopts= -k 'not hub and not revisions and not bad_input' $(FLOOR)

# Against the real packages, offline; those that are not installed are skipped: pip install '.[loggers]' brings them all.
loggers: $(VENV)/installed
	WANDB_MODE=offline $(BIN)/pytest -q -rs -o addopts=--strict-markers tests/probe/real_loggers.py

# Kills commands 300 times and compares what they leave with calls in peace. Plants 20 kinds of faults in series of
# checkpoints, alone and two at once, and scans 200 sound series.
drill: $(VENV)/installed
	$(BIN)/python tests/kill_drill.py --kills 300 --seed 1
	$(BIN)/python tests/probe/drill.py

# The site, offline: documents from statements and results first, then pages, with every notebook run and every link checked.
docs: $(VENV)/docs
	$(BIN)/python -m joma.checks.documents docs
	$(BIN)/python -m joma.paper.documents
	$(BIN)/sphinx-build -q -W --keep-going docs build/site
	$(BIN)/joma explore --static build/site/explore.html
	@echo "Site: build/site/index.html"

# Keeps results and tables of `joma reproduce --preset full --out $(OUT)`, or of `--preset small` where no full ones are kept, and writes of
# them in docs.
results: $(VENV)/installed
	$(BIN)/python -m joma.paper.documents keep $(OUT)

# A stamp is newer than the files that say what to install, or the set-up runs again. The demo needs no test tools.
define set_up
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "joma needs Python 3.11 or newer, found $$($(PYTHON) --version). Pass one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable $(1)
	@touch $(2)
endef

$(VENV)/demo: pyproject.toml constraints.txt
	$(call set_up,'.[report]',$@)

$(VENV)/docs: $(VENV)/installed
	$(call set_up,'.[docs]',$@)

$(VENV)/installed: pyproject.toml constraints.txt
	$(call set_up,'.[dev]',$(VENV)/demo $@)

clean:
	rm -rf $(VENV) $(OUT) build *.egg-info
