# `make` alone lists the targets. Everything is installed into .venv, from the pins in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export INGOT_HOME ?= $(CURDIR)/.ingot
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help run test test-containers lint format bench-start model clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## console and engine on this machine's CPU, with the bundled model
	$(BIN)/ingot up

test: $(VENV)/.dev ## every test, the browser's too
	tests/browser/install.sh
	$(BIN)/pytest

test-containers: $(VENV)/.dev ## build the images and try them: needs a Docker daemon and its base images
	INGOT_CONTAINER_TESTS=1 $(BIN)/pytest tests/container

lint: $(VENV)/.dev ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## put the code into its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-start: $(VENV)/.dev ## how long a start takes, and how soon a failing one is told
	$(BIN)/python -m tests.bench.start

model: $(VENV)/.dev ## train the bundled model again (minutes)
	$(BIN)/python -m appliance.selftest.train

clean: ## remove the venv and this folder's state
	rm -rf $(VENV) $(INGOT_HOME)

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/.venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.run
