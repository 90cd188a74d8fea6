# `make` alone lists the targets. Everything is installed into .venv, from the pins in constraints.txt.
# A Python of 3.11 or newer: python3 itself where it is one.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
# One process for each core, up to four, which take the test modules in turn: the browser's come last, so the order stays.
SPREAD := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
export INGOT_HOME ?= $(CURDIR)/.ingot
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Without a GPU, torch's build for CPUs is installed first: pip's default index has the one for CUDA, with gigabytes of
# libraries that nothing here would load. Where its own index cannot be reached, the other one does as well.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
define install
	@test -e /dev/nvidiactl || test -e /dev/dxg || $(BIN)/python -m pip install -qq --retries 1 --timeout 15 --no-deps \
		--constraint constraints.txt --extra-index-url "$${PIP_EXTRA_INDEX_URL:-$(TORCH_CPU_INDEX)}" torch
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '$(1)'
endef

SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)
QUIETLY := $(if $(SUDO),$(SUDO) --non-interactive)

.DEFAULT_GOAL := help
.PHONY: help run test test-architectures test-clients test-containers test-flashinfer test-vllm test-vllm-image lint format bench-start bench-cpu \
	bench-peer image bundle bench-container bench-door bench-prefixes bench-structured bench-storm diagnosis-score diagnosis-coverage \
	diagnosis-windows bench-proxy bench-truth model clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run $(VENV)/.kernels ## console and engine on this machine's CPU, with the bundled model
	@$(BIN)/ingot up

test: $(VENV)/.dev ## every test, the browser's too
	tests/browser/install.sh
	$(BIN)/pytest $(SPREAD)

test-architectures: $(VENV)/.dev ## compile every kernel for every architecture (an hour)
	INGOT_ALL_ARCHITECTURES=1 $(BIN)/pytest tests/cast/test_architectures.py

test-clients: $(VENV)/.dev ## LangChain, LiteLLM, OpenAI's agents, the AI SDK, Schemathesis and others against the engine: minutes, and 1 GB from the indexes once
	INGOT_CLIENTS=$$($(BIN)/python tests/clients/install.py) $(BIN)/pytest tests/clients -v -rs

test-containers: $(VENV)/.dev ## build the images and try them: needs a Docker daemon and its base images
	tests/browser/install.sh
	INGOT_CONTAINER_TESTS=1 $(BIN)/pytest tests/container -rs

test-vllm-image: $(VENV)/.dev ## build the engine for a GPU with vLLM, with and without compilers, and look into it: an hour, 40 GB of disk
	INGOT_CONTAINER_TESTS=1 INGOT_VLLM_IMAGE_TESTS=1 $(BIN)/pytest tests/container/test_vllm_image.py -rs

test-flashinfer: $(VENV)/.dev ## build modules of FlashInfer with nvcc, and load them sealed: minutes, and 300 MB from the index
	INGOT_FLASHINFER_TESTS=1 $(BIN)/pytest tests/cast/test_flashinfer_built.py

test-vllm: $(VENV)/.dev ## start a real vLLM for CPUs, well and in every way that fails: minutes, and 2 GB from the index once
	INGOT_VLLM_TESTS=1 INGOT_VLLM=$$($(BIN)/python tests/vllm/install.py) $(BIN)/pytest tests/vllm/test_real_vllm.py -v

image: ## build engine, console and gate with Docker; ARCH=sm_120 for a GPU, with CAST=triton without FlashInfer
	REVISION=$$(git rev-parse HEAD) $(if $(ARCH),COMPOSE_FILE=compose.yaml:compose.gpu.yaml INGOT_ARCH=$(ARCH) \
		INGOT_CAST_KIND=$(or $(CAST),full)) docker compose build

bundle: $(VENV)/.dev ## the images as one signed file to carry: KEY=site.key OUT=ingot.bundle, and ARCH=sm_120, MODELS="DIR ..."
	$(BIN)/ingot bundle create --tag $(or $(INGOT_TAG),local) --sign "$(KEY)" --out "$(OUT)" \
		$(if $(ARCH),--image ingot-engine:$(or $(INGOT_TAG),local)-$(ARCH)) $(foreach model,$(MODELS),--model "$(model)")

lint: $(VENV)/.dev ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## put the code into its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-start: $(VENV)/.dev ## how long a start takes, and how soon a failing one is told
	tests/browser/install.sh
	$(BIN)/python -m tests.bench.start

bench-cpu: $(VENV)/.dev ## tokens a second on the CPU, as a share of what bare matrix products would allow
	$(BIN)/python -m tests.bench.cpu

bench-peer: $(VENV)/.dev ## start and speed on the CPU beside a real vLLM, in turns: ten minutes (a GPU: tests/gpu/peer.sh)
	INGOT_VLLM=$$($(BIN)/python tests/vllm/install.py) $(BIN)/python -m tests.bench.peer

bench-prefixes: $(VENV)/.dev ## how much of conversations a model with recurrent layers finds in its cache: half a minute, no model
	$(BIN)/python -m tests.bench.prefixes

bench-door: $(VENV)/.dev ## the front door alone: streamed tokens a second, and what it adds to the first one
	$(BIN)/python -m tests.bench.door

bench-structured: $(VENV)/.dev ## structured output on the CPU: what it costs, and 500 answers over 50 schemas
	$(BIN)/python -m tests.bench.structured

bench-storm: $(VENV)/.dev ## half an hour of random requests at twice what the engine takes: memory, leftovers, agreement
	$(BIN)/python -m tests.bench.storm

bench-truth: $(VENV)/.dev ## provoke failures: how soon the true cause is told; INGOT_VLLM names a vLLM for CPUs to provoke too
	$(BIN)/python -m tests.bench.truth

bench-container: $(VENV)/.dev ## how large the images and the bundle are, and how long their first token takes
	$(BIN)/python -m tests.bench.container

diagnosis-score: $(VENV)/.dev ## the diagnosis against the real start logs in ../shared/startup-logs
	@$(BIN)/python -m tests.diagnosis.score

diagnosis-coverage: $(VENV)/.dev ## how many of vLLM's own errors have a specific answer; INGOT_VLLM names the vLLM
	@$(BIN)/python -m tests.diagnosis.coverage

diagnosis-windows: $(VENV)/.dev ## no part of a healthy log may look like a failure: 2,000 random ones
	@$(BIN)/python -m tests.diagnosis.windows

bench-proxy: $(VENV)/.dev ## what the front door adds to the latency of a real vLLM
	INGOT_VLLM=$$($(BIN)/python tests/vllm/install.py) $(BIN)/python -m tests.vllm.bench_proxy

model: $(VENV)/.dev ## train the bundled model again (minutes)
	$(BIN)/python -m appliance.selftest.train

clean: ## remove the venv; the state in .ingot stays
	rm -rf $(VENV)

# Debian's python3 comes without venv; then its package is installed first.
$(VENV)/.venv:
	@test -n "$(PYTHON)" || { echo "Ingot needs Python 3.11 or newer: install it, or name it with PYTHON=..."; exit 1; }
	@echo "Creating a virtual environment in $(VENV): a few seconds, once."
	@$(PYTHON) -m venv $(VENV) || { $(SUDO) apt-get install --yes --quiet python3-venv && $(PYTHON) -m venv $(VENV); }
	@touch $@

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/.venv
	@echo "Installing Ingot into $(VENV): a minute or two, once."
	$(call install,.)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.venv $(VENV)/.kernels
	@echo "Installing Ingot and what its tests need into $(VENV): a minute or two, once."
	$(call install,.[dev])
	@touch $@ $(VENV)/.run

# For this processor, in C++. Without a compiler, and where none can be had without asking, torch computes, more slowly.
$(VENV)/.kernels: kernels/cpu/build.py kernels/cpu/library.py $(wildcard kernels/cpu/*.cpp kernels/cpu/*.h) | $(VENV)/.compiler
	@! $(BIN)/python -m kernels.cpu.build || touch $@

# Asked for once, whatever comes of it.
$(VENV)/.compiler: | $(VENV)/.venv
	@command -v $${CXX:-c++} >/dev/null || { echo "Installing a C++ compiler, for the kernels of this processor: half a minute, once."; \
		$(QUIETLY) apt-get update -qq && $(QUIETLY) apt-get install --yes -qq --no-install-recommends g++ >/dev/null; } || true
	@touch $@
