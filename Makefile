# onnxopt: everything runs in .venv, which the first target that needs it makes. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Without bytecode every process compiles what it imports, which takes 5 seconds longer.
unexport PYTHONDONTWRITEBYTECODE

# The stamps in .venv: what compiles the library, what runs onnxopt, what all targets need. Each adds to the one before.
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
COMPILES := $(VENV)/compiles
RUNS := $(VENV)/runs
READY := $(VENV)/ready
EXTRAS := .venv-extras
EXTRAS_PIP := $(EXTRAS)/bin/python -m pip --disable-pip-version-check --quiet --quiet

EXPORTERS := .venv-exporters
EXPORTERS_PIP := $(EXPORTERS)/bin/python -m pip --disable-pip-version-check --quiet --quiet
PADDLE := .venv-paddle

# Which Python makes .venv: 3.11 or later.
PYTHON ?= python3
# Options for pytest, for example: make test PYTEST="-k fuse -x"
PYTEST ?=
# Which benchmark `make bench` runs (python -m benchmarks lists them), for example: make bench BENCH="cpu.chains bias_4"
BENCH ?=
CPU_BENCHMARKS := cpu.optimizers cpu.chains cpu.models
# What `make wheel` builds for.
MACHINE ?= $(shell uname -m)
# How long each part of `make fuzz` goes on.
FUZZ_SECONDS ?= 60

CXX_SOURCES = $(shell find custom_ops cuda_kernels tests/support tests/fuzz/library onnxopt/verification onnxopt/include examples/cpp \
	-name '*.cc' -o -name '*.h' -o -name '*.cuh')

.PHONY: help setup build library demo test test-extras exporters check tidy wheel try-wheel aarch64 docs bench gpu-tests fuzz clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(READY) ## make .venv with everything that the other targets need

# The stamps are made again where what is to be installed has changed. Bytecode is left to the first import: compiling all
# of it here would take longer than the downloads.
$(COMPILES): pyproject.toml | $(BIN)/pip
	@$(PIP) install --no-compile "setuptools>=77" "cmake>=3.25" "ninja>=1.11"
	@touch $@

$(RUNS): setup.cfg $(COMPILES)
	@echo "Installing what onnxopt needs into $(VENV)"
	@$(PIP) install --no-compile --no-build-isolation -e .
	@touch $@

# torch goes first and alone, by its exact version: a range, or another package asking for it, could bring a build with
# several GB of CUDA libraries instead.
$(READY): setup.cfg $(COMPILES) | build
	@echo "Installing what the tests and checks need into $(VENV) (some minutes the first time)"
	@$(PIP) install --no-compile torch==2.13.0
	@$(PIP) install --no-compile --no-build-isolation -e ".[dev,models,benchmarks,examples]"
	@touch $@

$(BIN)/pip:
	@bash .ci/prerequisites "$(PYTHON)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)

# The compiler works while pip downloads.
build: $(COMPILES) ## compile custom_ops/ into onnxopt/lib/
	@$(MAKE) --silent --jobs=2 library $(RUNS)

library: $(COMPILES)
	@$(BIN)/python setup.py --quiet build_ops

demo: build ## optimize, verify, explain, benchmark and run two real models; installs only what that needs
	@$(BIN)/python examples/demo.py

test: $(READY) ## run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --basetemp=build/pytest $(PYTEST)

# An environment of their own: optimum-onnx pins an older transformers than models/ exports with, and nvidia-pytriton an
# older numpy, of which its server needs nothing.
$(EXTRAS)/ready: setup.cfg pyproject.toml | $(READY)
	@echo "Installing into $(EXTRAS) (several minutes the first time)"
	@rm -rf $(EXTRAS)
	@$(BIN)/python -m venv $(EXTRAS)
	@$(EXTRAS_PIP) install --no-compile torch==2.13.0
	@$(EXTRAS_PIP) install --no-compile "setuptools>=77" "cmake>=3.25" "ninja>=1.11"
	@$(EXTRAS_PIP) install --no-compile --no-build-isolation -e ".[dev,ray]" optimum-onnx "tritonclient[http]"
	@$(EXTRAS_PIP) install --no-compile --no-deps nvidia-pytriton
	@touch $@

test-extras: $(EXTRAS)/ready ## run the tests that need Ray, optimum-onnx or tritonserver, which `make test` skips
	@$(EXTRAS)/bin/python -m pytest --basetemp=build/pytest-extras tests/tools/test_optimum.py \
		tests/artifact/export/test_tritonserver.py tests/tools/test_batch.py -k "not test_batch.py or ray" $(PYTEST)

# The exporters of `python -m benchmarks cpu.exporters`, which pin one another's versions: later genai needs a transformers
# that optimum does not take. paddle2onnx has an environment of its own, as it needs an onnx of 2024; onnxruntime folds its
# constants.
$(EXPORTERS)/ready: Makefile | $(READY)
	@echo "Installing into $(EXPORTERS) (several minutes the first time)"
	@rm -rf $(EXPORTERS)
	@$(BIN)/python -m venv $(EXPORTERS)
	@$(EXPORTERS_PIP) install --no-compile torch==2.13.0
	@$(EXPORTERS_PIP) install --no-compile torchvision timm optimum-onnx ultralytics tensorflow-cpu keras tf2onnx onnxscript \
		onnxconverter-common onnxslim onnxsim onnxruntime accelerate onnxruntime-genai==0.11.4
	@touch $@

$(PADDLE)/ready: Makefile | $(READY)
	@echo "Installing into $(PADDLE)"
	@rm -rf $(PADDLE)
	@$(BIN)/python -m venv $(PADDLE)
	@$(PADDLE)/bin/python -m pip --disable-pip-version-check --quiet --quiet install --no-compile paddlepaddle==3.3.1 \
		paddle2onnx==2.1.0 onnxruntime==1.32.0
	@touch $@

exporters: $(EXPORTERS)/ready $(PADDLE)/ready ## install the exporters whose files `make bench BENCH=cpu.exporters` compares

check: $(READY) ## formatting, lint, types, the library without warnings, subjects of commits, the site's links
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)
	@$(BIN)/python setup.py --quiet build_ops --strict
	@$(BIN)/hadolint docker/*.Dockerfile
	@$(BIN)/python -m tests.support.commit_subjects
	@$(MAKE) docs
	@echo "make check: no complaints"

tidy: $(READY) ## clang-tidy over custom_ops/, about five minutes
	@printf '%s\n' $(filter custom_ops/%.cc,$(CXX_SOURCES)) | \
		xargs -P 2 -n 4 $(BIN)/clang-tidy -p build/custom_ops --quiet --warnings-as-errors='*'

wheel: $(READY) ## build the wheel into dist/, checked by auditwheel; MACHINE=aarch64 cross-compiles it
	@rm -rf build/lib build/lib.* build/bdist.* dist/*_$(MACHINE).whl
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist \
		--config-settings=--build-option=--plat-name=manylinux_2_28_$(MACHINE) .
	@.ci/check_wheel $(BIN)/python dist/*_$(MACHINE).whl

try-wheel: wheel ## install the wheel where there is no compiler, with all that it asks for; optimize, verify, run
	@.ci/try_wheel $(BIN)/python dist/*_$$(uname -m).whl

aarch64: $(READY) ## cross-compile the library for 64-bit ARM, and run it under qemu-user
	@$(BIN)/python setup.py --quiet build_ops --machine aarch64
	@ls build/deps/aarch64/onnxruntime-*.whl >/dev/null 2>&1 || $(PIP) download --no-deps --only-binary=:all: \
		--platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --dest build/deps/aarch64 \
		onnxruntime==$$($(BIN)/python -c 'import onnxruntime; print(onnxruntime.__version__)')
	@$(BIN)/python -m pytest -q tests/project/test_aarch64.py

docs: $(READY) ## build the documentation as a site in build/docs/site; a link that leads nowhere fails
	@$(BIN)/python docs/site/stage.py
	@$(BIN)/mkdocs build --config-file docs/site/mkdocs.yml 2>build/docs/log || { grep -E '^(WARNING|ERROR|Aborted)' build/docs/log; exit 1; }

bench: $(READY) ## run the benchmarks of the CPU, or the one that BENCH names
	@$(if $(BENCH),$(BIN)/python -m benchmarks $(BENCH),\
		for name in $(CPU_BENCHMARKS); do $(BIN)/python -m benchmarks $$name; done)

gpu-tests: $(READY) ## write build/gpu-tests: what the tests marked gpu need on a machine with a GPU
	@$(BIN)/python -m tests.support.gpu_bundle build/gpu-tests $(if $(GPU_PYTHON),--python $(GPU_PYTHON))

fuzz: $(READY) ## random graphs, networks in other spellings, damaged models, damaged files beside the library, FUZZ_SECONDS each; tests that are exhaustive
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)
	@$(BIN)/python -m tests.fuzz.respell --seconds $(FUZZ_SECONDS)
	@$(BIN)/python -m tests.fuzz.mutations --seconds $(FUZZ_SECONDS)
	@$(BIN)/python -m tests.fuzz.library --count 1000000 --seconds $(FUZZ_SECONDS) --libfuzzer
	@$(BIN)/python -m pytest -q --sanitizers --basetemp=build/pytest tests/fuzz/test_library_files.py tests/library/test_faults.py
	@$(BIN)/python -m tests.fuzz.backend
	@$(BIN)/python -m pytest -q -n 2 --basetemp=build/pytest -m exhaustive

clean: ## remove what was built; .venv and downloaded models stay
	rm -rf build dist onnxopt/lib *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
