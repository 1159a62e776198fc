# Everything happens in .venv; `make demo` and `make test` set up what they need.
PYTHON ?= python3
# The CPU build is enough for everything here; a CUDA build of the same version works too.
TORCH  ?= torch==2.13.0
# The lower end of the supported range of transformers; the upper one is what pip chooses.
TRANSFORMERS_LOW := 5.14.0
INTEGRATION := $(addprefix tests/cache/test_, families.py generation.py chunks.py compressed.py context.py guards.py \
	properties.py extras.py rotary.py projection.py fold.py fold_rows.py fold_crop.py fold_memory.py fold_packed.py \
	recent_queries.py tail.py packed_caches.py compositions.py interrupted.py gradients.py misuse.py \
  right_padding.py) tests/test_deferred.py

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
DEV   := $(VENV)/.ready-dev
LOW   := $(VENV)/transformers-low
SCAN  := $(VENV)/scan
# Recorded journals and results; what looks like a key in them are hashes of weights and questions.
NO_SECRETS := ^tests/estimate/data/

.PHONY: help setup dev demo test test-low test-slow lint scan catalog format bench clean

help:
	@echo "make demo        set up, then run the main job on the bundled model"
	@echo "make test        set up, then run the tests"
	@echo "make test-low    the integration tests on the lowest supported transformers"
	@echo "make test-slow   a Ray cluster that loses a node (installs ray)"
	@echo "make lint        ruff, mypy, the contract on imports, spelling"
	@echo "make scan        secrets in the files, risky code, known vulnerabilities of dependencies"
	@echo "make catalog     write down what winnow methods lists, after a method was added"
	@echo "make bench       the benchmarks behind the tables in docs/results"

$(READY): pyproject.toml $(wildcard native/* native/*/* native/*/*/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[all]"
	touch $@

$(DEV): $(READY)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@# The peer library whose selections are compared; its own dependencies would change ours.
	$(BIN)/python -m pip install --quiet --no-deps kvpress==0.5.5 || echo "kvpress not available: its parity tests will be skipped"
	touch $@

setup: $(READY)
dev: $(DEV)

demo: $(READY)
	$(BIN)/winnow demo --out demo-output --force

test: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu"

# The lower end lives beside the environment, not in it: its pins differ from those of the rest.
$(LOW): Makefile | $(DEV)
	rm -rf $(LOW)
	$(BIN)/python -m pip install --quiet --target $(LOW) "transformers==$(TRANSFORMERS_LOW)"

test-low: $(LOW)
	PYTHONPATH=$(LOW) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu" $(INTEGRATION)

test-slow: $(DEV)
	$(BIN)/python -m pip install --quiet --editable ".[ray]"
	$(BIN)/python -m pytest -m slow

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

# Apart from the environment: what these need is nobody else's.
$(SCAN): Makefile
	rm -rf $(SCAN)
	$(PYTHON) -m venv $(SCAN)
	$(SCAN)/bin/python -m pip install --quiet "detect-secrets>=1.5" "bandit>=1.8" "pip-audit>=2.9" || (rm -rf $(SCAN); false)

scan: $(READY) $(SCAN)
	git ls-files -z | xargs -0 $(SCAN)/bin/detect-secrets-hook --exclude-files '$(NO_SECRETS)'
	$(SCAN)/bin/bandit --quiet --configfile pyproject.toml --recursive src
	$(SCAN)/bin/python .ci/audit.py "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

# What `winnow methods` lists without loading the library.
catalog: $(READY)
	$(BIN)/python -m winnow.commands.write_catalog

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV)
	$(BIN)/python benchmarks/decode_attention.py
	$(BIN)/python benchmarks/packed_attention.py
	$(BIN)/python benchmarks/packing.py
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/prefill_memory.py

clean:
	rm -rf $(VENV) build dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
